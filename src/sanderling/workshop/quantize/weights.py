"""Weights as int8 with one symmetric scale for each output channel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

Float = npt.NDArray[np.float32]
LARGEST = 127


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight in eight bits.

    Attributes:
        values: int8, the weight's shape, in [-127, 127].
        scale: float32, > 0, shape (C,): real units per step of each output channel.
        axis: position of the output channels.
    """

    values: npt.NDArray[np.int8]
    scale: Float
    axis: int

    def dequantized(self) -> Float:
        """What the eight bits stand for, float32."""
        real: Float = self.values * along(self.scale, self.axis, self.values.ndim)
        return real


def round_to_nearest(weight: Float, *, axis: int) -> QuantizedWeight:
    """Round a weight to int8 with one symmetric scale per channel.

    Args:
        weight: float32, any shape, finite.
        axis: position of the output channels.
    """
    scale = channel_scale(weight, axis=axis)
    steps = np.round(weight / along(scale, axis, weight.ndim))
    return QuantizedWeight(np.clip(steps, -LARGEST, LARGEST).astype(np.int8), scale, axis)


def channel_scale(weight: Float, *, axis: int) -> Float:
    """Real units per step so that ±127 steps hold each channel, shape (C,); 1 for a channel of zeros."""
    others = tuple(index for index in range(weight.ndim) if index != axis)
    scale = (np.abs(weight).max(axis=others) / LARGEST).astype(np.float32)
    return np.where(scale < np.finfo(np.float32).tiny, np.float32(1), scale)


def widened(weight: QuantizedWeight, least_scale: npt.NDArray[np.float64]) -> QuantizedWeight:
    """The weight with each scale at least ``least_scale``, shape (C_out,), so that its bias fits 32 bits.

    Channels of tiny weights beside a large bias lose steps that do not count.
    """
    least = least_scale.reshape(-1, len(weight.scale)).max(axis=0)
    scale = np.maximum(weight.scale, least.astype(np.float32) * np.float32(1.001))
    if np.array_equal(scale, weight.scale):
        return weight
    steps = np.round(weight.dequantized() / along(scale, weight.axis, weight.values.ndim))
    return QuantizedWeight(steps.astype(np.int8), scale, weight.axis)


def output_axis(node: onnx.NodeProto, weight: npt.NDArray[np.generic]) -> int:
    """Position of the output channels in the weight of a Conv, ConvTranspose, Gemm or MatMul.

    Source: ONNX operators Conv, ConvTranspose, Gemm, MatMul.
    """
    if node.op_type == "Gemm":
        return 0 if is_transposed(node) else 1
    if node.op_type == "ConvTranspose":
        return 1
    return 0 if node.op_type == "Conv" else weight.ndim - 1


def group_count(node: onnx.NodeProto) -> int:
    """Groups of a convolution; 1 for other operators."""
    return int(next((attribute.i for attribute in node.attribute if attribute.name == "group"), 1))


def is_transposed(node: onnx.NodeProto) -> bool:
    """Whether a Gemm's weight is stored as (outputs, inputs)."""
    return any(attribute.name == "transB" and attribute.i for attribute in node.attribute)


def along(values: Float, axis: int, rank: int) -> Float:
    """Values of shape (C,) shaped so that they broadcast along ``axis`` of an array of that rank."""
    return values.reshape([-1 if index == axis else 1 for index in range(rank)])
