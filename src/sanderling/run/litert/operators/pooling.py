"""Pools."""

from __future__ import annotations

import numpy as np

from sanderling.core.tensor import Array
from sanderling.run.litert.flatbuffer import Tensor
from sanderling.run.litert.graph import Node
from sanderling.run.litert.layout import Layout
from sanderling.run.litert.lowering import Lowering
from sanderling.run.litert.operators.windows import Activation, Window, as_image, back, window_of, with_pads
from sanderling.run.litert.values import Value

_SAME, _VALID = 0, 1
_LOWEST = {"float32": float(np.finfo(np.float32).min), "int8": -128}


def max_pool(lowering: Lowering, node: Node) -> None:
    """The largest of each window; pads are lower than anything."""
    if len(node.outputs) > 1 and node.outputs[1]:
        raise node.refused("indices of the largest have no exact form")
    value = lowering.moved(node.inputs[0])
    window, image = _image(lowering, node, value)
    if window.dilations != (1, 1):
        raise node.refused("dilations have no exact form")
    if image.dtype not in _LOWEST:
        raise node.refused(f"{image.dtype} has no exact form")
    padding = _VALID
    if window.padded and window.is_same:
        padding = _SAME
    elif window.padded:
        fill = None if _is_never_negative(lowering, image) else _LOWEST[image.dtype]
        image = with_pads(lowering, image, window, fill)
    _pool(lowering, node, "MAX_POOL_2D", image, window, padding)


def _is_never_negative(lowering: Lowering, image: Tensor) -> bool:
    """Whether zeros are as low as anything in it: XNNPACK pads with zeros, and with nothing else."""
    if image.quantization is not None:
        return image.quantization.zero_points == (_LOWEST["int8"],)
    maker = next((operation for operation in lowering.program.operations if image in operation.outputs), None)
    if maker is None:
        return False
    fused = maker.options[1].get("fusedActivationFunction") if maker.options else None
    return maker.code in ("RELU", "RELU6") or fused in (Activation.RELU, Activation.RELU6)


def average_pool(lowering: Lowering, node: Node) -> None:
    """The mean of each window; pads count as zeros, or not at all."""
    window, image = _image(lowering, node, lowering.real(node.inputs[0]))
    if window.dilations != (1, 1):
        raise node.refused("dilations have no exact form")
    counted = bool(node.attributes.get("count_include_pad", 0))
    if not window.padded:
        _pool(lowering, node, "AVERAGE_POOL_2D", image, window, _VALID)
    elif window.is_same and not counted:
        _pool(lowering, node, "AVERAGE_POOL_2D", image, window, _SAME)
    else:
        _pool(lowering, node, "AVERAGE_POOL_2D", with_pads(lowering, image, window), window, _VALID, counted=counted)


def _image(lowering: Lowering, node: Node, value: Value) -> tuple[Window, Tensor]:
    if len(value.shape) not in (3, 4):
        raise node.refused(f"it has {len(value.shape) - 2} axes of space: one or two have an exact form")
    window = window_of(node, value.shape[2:], node.attributes["kernel_shape"], node.shapes[0][2:])
    return window, as_image(lowering, lowering.tensor(value, Layout.CHANNELS_LAST))


def _pool(
    lowering: Lowering,
    node: Node,
    code: str,
    image: Tensor,
    window: Window,
    padding: int,
    *,
    counted: bool | None = None,
) -> None:
    options = {
        "padding": padding,
        "strideH": window.strides[0],
        "strideW": window.strides[1],
        "filterHeight": window.kernel[0],
        "filterWidth": window.kernel[1],
    }
    shape = (image.shape[0], *window.out, image.shape[3])
    result = lowering.like(code, [image], shape, ("Pool2DOptions", options))
    if counted is not None:
        weights = _weights(window, counted=counted)
        if not np.all(weights == 1):
            result = lowering.emit("MUL", [result, lowering.constant(weights)], shape, ("MulOptions", {}))
    lowering.define(node.outputs[0], node.shapes[0], back(lowering, result, len(node.shapes[0])), Layout.CHANNELS_LAST)


def _weights(window: Window, *, counted: bool) -> Array:
    """Elements of a window over those that count, shape (1, H, W, 1)."""
    counts = []
    for axis in (0, 1):
        start = np.arange(window.out[axis]) * window.strides[axis] - window.before[axis]
        low = -window.before[axis] if counted else 0
        high = window.size[axis] + (window.declared_after[axis] if counted else 0)
        counts.append(np.minimum(start + window.kernel[axis], high) - np.maximum(start, low))
    area = window.kernel[0] * window.kernel[1]
    shares: Array = (area / np.multiply.outer(*counts)).astype(np.float32)
    return shares[None, :, :, None]


WRITERS = {"MaxPool": max_pool, "AveragePool": average_pool}
