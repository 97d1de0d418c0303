"""Conv, ConvTranspose: channels last, weights (out, height, width, in)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sanderling.core.tensor import Array
from sanderling.run.litert.flatbuffer import Tensor
from sanderling.run.litert.graph import Node
from sanderling.run.litert.layout import Layout
from sanderling.run.litert.lowering import Ending, Lowering
from sanderling.run.litert.operators.windows import Activation, as_image, back, placed, two, window_of
from sanderling.run.litert.quantization import Quantization, bias_fits
from sanderling.run.litert.values import Value

_SAME, _VALID = 0, 1


@dataclass(frozen=True)
class Operands:
    """What a layer with weights reads, all quantised or none of it.

    Attributes:
        weights: as the ONNX graph has them.
        bias: shape (out channels,).
        quantization: of the output, if it is quantised.
    """

    image: Value
    weights: Array
    weights_quantization: Quantization | None
    bias: Array
    bias_quantization: Quantization | None
    quantization: Quantization | None


def operands(lowering: Lowering, node: Node, ending: Ending, axis: int) -> Operands:
    """Read a layer's inputs: in int8 where everything has its codes, as real numbers elsewhere.

    Args:
        axis: of the weights, along which output channels are.
    """
    image, weights = lowering.value(node.inputs[0]), lowering.value(node.inputs[1])
    bias = lowering.value(node.inputs[2]) if node.has(2) else None
    channels = weights.shape[axis]
    integers = _integers(image, weights, bias, ending, axis)
    if integers and weights.constant is not None:
        return Operands(image, weights.constant, weights.quantization, *integers, ending.quantization)
    real = lowering.constant_of(node, 2) if node.has(2) else np.zeros(channels, np.float32)
    real = np.broadcast_to(real.reshape(-1), (channels,))
    return Operands(lowering.real(node.inputs[0]), lowering.constant_of(node, 1), None, real, None, None)


def _integers(
    image: Value, weights: Value, bias: Value | None, ending: Ending, axis: int
) -> tuple[Array, Quantization] | None:
    """The bias as codes, where the whole layer can be computed in codes; None elsewhere."""
    steps, output = weights.quantization, ending.quantization
    if image.quantization is None or steps is None or output is None or weights.constant is None:
        return None
    if any(steps.zero_points) or weights.constant.dtype != np.int8 or not image.quantization.per_tensor:
        return None
    if not steps.per_tensor and steps.axis != axis:
        return None
    scales = np.float32(image.quantization.scales[0]) * np.array(steps.scales, np.float32)
    taken = Quantization(tuple(map(float, scales)), (0,) * scales.size)
    if bias is None:
        return np.zeros(weights.shape[axis], np.int32), taken
    if bias.constant is None or bias.quantization is None or bias.constant.dtype != np.int32:
        return None
    fits = bias_fits(bias.quantization, image.quantization, steps)
    return (bias.constant.reshape(-1), taken) if fits else None


def conv(lowering: Lowering, node: Node) -> None:
    """A convolution over one or two axes; depthwise where each group has one input channel."""
    rank, out = len(node.shapes[0]), node.shapes[0][1]
    if rank not in (3, 4):
        raise node.refused(f"it has {rank - 2} axes of space: one or two have an exact form")
    ending = lowering.ending(node)
    layer = operands(lowering, node, ending, 0)
    window = window_of(node, layer.image.shape[2:], layer.weights.shape[2:], node.shapes[0][2:])
    groups = node.attributes.get("group", 1)
    depthwise = groups > 1 and groups == layer.image.shape[1]
    weights = layer.weights.reshape(*layer.weights.shape[:2], *window.kernel)
    order, axis = ((1, 2, 3, 0), 3) if depthwise else ((0, 2, 3, 1), 0)
    image, padding = placed(lowering, _image(lowering, layer.image), window)
    options = {
        "padding": padding,
        "strideH": window.strides[0],
        "strideW": window.strides[1],
        "dilationHFactor": window.dilations[0],
        "dilationWFactor": window.dilations[1],
        "fusedActivationFunction": Activation[ending.activation],
    }
    table = "Conv2DOptions"
    if depthwise:
        options["depthMultiplier"] = out // groups
        table = "DepthwiseConv2DOptions"
    result = lowering.emit(
        "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D",
        [
            image,
            lowering.constant(
                weights.transpose(order), layer.weights_quantization and layer.weights_quantization.along(axis)
            ),
            lowering.constant(layer.bias, layer.bias_quantization),
        ],
        (image.shape[0], *window.out, out),
        (table, options),
        quantization=layer.quantization,
    )
    lowering.define(ending.name, node.shapes[0], back(lowering, result, rank), Layout.CHANNELS_LAST)


def conv_transpose(lowering: Lowering, node: Node) -> None:
    """A transposed convolution without groups: all of it, then cut where the graph pads."""
    rank, out = len(node.shapes[0]), node.shapes[0][1]
    axes = rank - 2
    if rank not in (3, 4) or node.attributes.get("group", 1) != 1:
        raise node.refused("one or two axes of space, without groups, have an exact form")
    if any(step != 1 for step in node.attributes.get("dilations", [1])):
        raise node.refused("dilations have no exact form")
    strides = two(node.attributes.get("strides", [1] * axes), 1)
    ending = lowering.ending(node)
    layer = operands(lowering, node, ending, 1)
    image = _image(lowering, layer.image)
    kernel = two(layer.weights.shape[2:], 1)
    full = [(image.shape[i + 1] - 1) * strides[i] + kernel[i] for i in (0, 1)]
    wanted = two(node.shapes[0][2:], 1)
    start = _start(node, full, wanted)
    if any(begin < 0 or begin + size > whole for begin, size, whole in zip(start, wanted, full, strict=True)):
        raise node.refused("it reaches beyond what its input touches (output_padding), which has no exact form")
    weights = layer.weights.reshape(*layer.weights.shape[:2], *kernel).transpose(1, 2, 3, 0)
    shape = (image.shape[0], *full, out)
    whole = lowering.emit(
        "TRANSPOSE_CONV",
        [
            lowering.ints(shape),
            lowering.constant(weights, layer.weights_quantization and layer.weights_quantization.along(0)),
            image,
            lowering.constant(layer.bias, layer.bias_quantization),
        ],
        shape,
        (
            "TransposeConvOptions",
            {
                "padding": _VALID,
                "strideH": strides[0],
                "strideW": strides[1],
                "fusedActivationFunction": Activation[ending.activation],
            },
        ),
        quantization=layer.quantization,
    )
    cut = whole
    if wanted != tuple(full):
        sizes = (shape[0], *wanted, out)
        begin = lowering.ints([0, *start, 0])
        cut = lowering.like("SLICE", [whole, begin, lowering.ints(sizes)], sizes, ("SliceOptions", {}))
    lowering.define(ending.name, node.shapes[0], back(lowering, cut, rank), Layout.CHANNELS_LAST)


def _start(node: Node, full: list[int], wanted: tuple[int, int]) -> tuple[int, int]:
    """How many rows and columns of the full result are cut off at the start."""
    axes = len(node.shapes[0]) - 2
    auto = node.attributes.get("auto_pad", b"NOTSET").decode()
    extra = two(node.attributes.get("output_padding", [0] * axes), 0)
    if auto == "NOTSET" and "output_shape" not in node.attributes:
        return two(node.attributes.get("pads", [0] * 2 * axes)[:axes], 0)
    if auto == "VALID":
        return 0, 0
    total = [whole + more - size for whole, more, size in zip(full, extra, wanted, strict=True)]
    upper = auto == "SAME_UPPER"
    return two([amount // 2 if upper else amount - amount // 2 for amount in total], 0)


def _image(lowering: Lowering, value: Value) -> Tensor:
    return as_image(lowering, lowering.tensor(value, Layout.CHANNELS_LAST))


WRITERS = {"Conv": conv, "ConvTranspose": conv_transpose}
