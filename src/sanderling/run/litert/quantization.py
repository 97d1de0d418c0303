"""QuantizeLinear and DequantizeLinear in TFLite's terms: int8 tensors that carry scale and zero point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sanderling.core.errors import ModelError
from sanderling.core.tensor import Array

_UNSIGNED_SHIFT = 128  # from uint8 to int8; exact, as codes and zero points move together
_CODE_DTYPES = ("uint8", "int8", "int32")


@dataclass(frozen=True)
class Quantization:
    """How codes stand for real numbers: ``scale * (code - zero_point)``.

    Attributes:
        scales: float32 values, one for the tensor or one for each place along ``axis``.
        zero_points: as many, of codes that are int8 (or int32, for biases).
        axis: along which there are several; 0 where there is one.
    """

    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int = 0

    @property
    def per_tensor(self) -> bool:
        """Whether one scale is for all."""
        return len(self.scales) == 1

    def along(self, axis: int) -> Quantization:
        """The same, with the scales' axis somewhere else."""
        return Quantization(self.scales, self.zero_points, 0 if self.per_tensor else axis)

    def dequantize(self, codes: Array) -> Array:
        """Real numbers, float32, computed as DequantizeLinear does."""
        shape = [1] * codes.ndim
        if not self.per_tensor:
            shape[self.axis] = -1
        zeros = np.array(self.zero_points, np.int32).reshape(shape)
        scales = np.array(self.scales, np.float32).reshape(shape)
        real: Array = (codes.astype(np.int32) - zeros).astype(np.float32) * scales
        return real.reshape(codes.shape)


def read_quantization(scale: Array, zero_point: Array | None, dtype: str, axis: int, rank: int) -> Quantization:
    """Read the parameters of one QuantizeLinear or DequantizeLinear.

    Args:
        scale: float32, shape () or (C,).
        zero_point: same shape; None for zeros.
        dtype: of the codes, as the ONNX graph has them.
        axis: of C, may be negative.
        rank: of the tensor.

    Raises:
        ModelError: codes of another dtype, or scales in blocks.
    """
    if dtype not in _CODE_DTYPES:
        raise ModelError(f"its codes are {dtype}: only {', '.join(_CODE_DTYPES)} have a kernel")
    if scale.ndim > 1 or scale.dtype != np.float32:
        raise ModelError(f"its scale is {scale.dtype} of shape {scale.shape}: expected float32, one or one a channel")
    zeros = np.zeros(scale.size, np.int64) if zero_point is None else zero_point.astype(np.int64).ravel()
    zeros = zeros - (_UNSIGNED_SHIFT if dtype == "uint8" else 0)
    place = axis % rank if scale.size > 1 and rank else 0
    return Quantization(tuple(map(float, scale.ravel())), tuple(map(int, zeros)), place)


def signed(codes: Array) -> Array:
    """Codes as TFLite keeps them: uint8 becomes int8."""
    if codes.dtype == np.uint8:
        return (codes.astype(np.int16) - _UNSIGNED_SHIFT).astype(np.int8)
    return codes


def bias_fits(bias: Quantization, inputs: Quantization, weights: Quantization) -> bool:
    """Whether a bias has the scale that TFLite takes for granted: that of its input times that of its weights."""
    expected = np.float32(inputs.scales[0]) * np.array(weights.scales, np.float32)
    scales = np.broadcast_to(np.array(bias.scales, np.float32), expected.shape)
    return not any(bias.zero_points) and bool(np.allclose(scales, expected, rtol=1e-6, atol=0))
