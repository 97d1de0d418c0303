"""Operators that only move elements: codes stay codes."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from sanderling.run.litert.flatbuffer import Tensor
from sanderling.run.litert.graph import ContradictionError, Node
from sanderling.run.litert.layout import Layout, arranged, cheapest, order, place_of
from sanderling.run.litert.lowering import Lowering, Writer
from sanderling.run.litert.values import Value


def same(lowering: Lowering, node: Node) -> None:
    """Nothing is written."""
    if len(node.outputs) > 1 and node.outputs[1]:
        raise node.refused("its mask is not returned")
    if node.operator == "Dropout" and node.has(2) and bool(lowering.constant_of(node, 2)):
        raise node.refused("training mode has no exact form")
    lowering.set_value(node.outputs[0], lowering.value(node.inputs[0]))


def reshape(lowering: Lowering, node: Node) -> None:
    """Reshape, Flatten, Squeeze, Unsqueeze: the new shape is known."""
    value = lowering.value(node.inputs[0])
    if math.prod(value.shape) != math.prod(node.shapes[0]):
        raise ContradictionError(f"operator {node.label}: {value.shape} cannot become {node.shapes[0]}")
    if value.constant is not None:
        real = lowering.real(node.inputs[0]).constant
        assert real is not None
        array = real.reshape(node.shapes[0])
        lowering.set_value(node.outputs[0], Value(node.outputs[0], node.shapes[0], str(array.dtype), array))
        return
    tensor = lowering.tensor(lowering.moved(node.inputs[0]))
    same_shape = tensor.shape == node.shapes[0]
    result = tensor if same_shape else lowering.reshape(tensor, node.shapes[0])
    lowering.define(node.outputs[0], node.shapes[0], result)


def transpose(lowering: Lowering, node: Node) -> None:
    """Axes in another order, which may be one that is at hand in another layout."""
    value = lowering.value(node.inputs[0])
    rank = len(value.shape)
    permutation = tuple(node.attributes.get("perm", range(rank)[::-1]))
    if value.constant is not None:
        quantization = value.quantization and value.quantization.along(permutation.index(value.quantization.axis))
        array = value.constant.transpose(permutation)
        lowering.set_value(node.outputs[0], Value(node.outputs[0], array.shape, value.dtype, array, quantization))
        return
    value = lowering.moved(node.inputs[0])
    for source, tensor in value.forms.items():
        for target in Layout:
            wanted = [permutation[axis] for axis in order(rank, target)]
            if [order(rank, source)[place] for place in range(rank)] == wanted:
                lowering.define(node.outputs[0], node.shapes[0], tensor, target)
                return
    source, tensor = next(iter(value.forms.items()))
    places = [order(rank, source).index(axis) for axis in permutation]
    lowering.define(node.outputs[0], node.shapes[0], lowering.transpose(tensor, places))


def concat(lowering: Lowering, node: Node) -> None:
    """Tensors one after the other along an axis; codes are brought to the scale of the result first."""
    rank, ending = len(node.shapes[0]), lowering.ending(node)
    values = [lowering.value(name) for name in node.inputs]
    quantization = ending.quantization if ending.activation == "NONE" else None
    if quantization is None or not all(value.quantization and value.quantization.per_tensor for value in values):
        quantization = None
        values = [lowering.real(name) for name in node.inputs]
    layout = cheapest(values)
    tensors = [lowering.tensor(value, layout) for value in values]
    if quantization is not None:
        tensors = [lowering.quantize(tensor, quantization) for tensor in tensors]
    place = place_of(node.attributes["axis"], rank, layout)
    shape = arranged(node.shapes[0], layout)
    result = _joined(lowering, tensors, place, shape)
    if ending.activation != "NONE":
        result = lowering.like(ending.activation, [result], shape)
    lowering.define(ending.name, node.shapes[0], result, layout)


def _joined(lowering: Lowering, tensors: list[Tensor], axis: int, shape: tuple[int, ...]) -> Tensor:
    return lowering.like("CONCATENATION", tensors, shape, ("ConcatenationOptions", {"axis": axis}))


def gather(lowering: Lowering, node: Node) -> None:
    """Places along an axis; known ones may be counted from the end, computed ones are counted from the start."""
    value = lowering.moved(node.inputs[0])
    indices = lowering.real(node.inputs[1])
    axis = node.attributes.get("axis", 0) % len(value.shape)
    size = value.shape[axis]
    if indices.constant is not None:
        if np.any(indices.constant < -size) or np.any(indices.constant >= size):
            raise node.refused(f"indices leave [-{size}, {size - 1}]")
        places = lowering.ints(np.where(indices.constant < 0, indices.constant + size, indices.constant))
    else:
        places = lowering.tensor(indices)
    tensor = lowering.tensor(value)
    options = ("GatherOptions", {"axis": axis, "batchDims": 0})
    result = lowering.like("GATHER", [tensor, places], node.shapes[0], options)
    lowering.define(node.outputs[0], node.shapes[0], result)


def expand(lowering: Lowering, node: Node) -> None:
    """Repeated along axes of size 1."""
    value = lowering.moved(node.inputs[0])
    tensor = lowering.tensor(value)
    if tensor.shape != node.shapes[0]:
        sizes = lowering.ints(node.shapes[0])
        tensor = lowering.like("BROADCAST_TO", [tensor, sizes], node.shapes[0], ("BroadcastToOptions", {}))
    lowering.define(node.outputs[0], node.shapes[0], tensor)


def tile(lowering: Lowering, node: Node) -> None:
    """Repeated as often as is said."""
    tensor = lowering.tensor(lowering.moved(node.inputs[0]))
    repeats = lowering.ints(lowering.constant_of(node, 1))
    result = lowering.like("TILE", [tensor, repeats], node.shapes[0], ("TileOptions", {}))
    lowering.define(node.outputs[0], node.shapes[0], result)


def blocks(lowering: Lowering, node: Node, code: str) -> None:
    """Channels to space and back; TFLite has the order of ONNX's DCR."""
    size = node.attributes["blocksize"]
    value = lowering.moved(node.inputs[0])
    if node.attributes.get("mode", b"DCR") == b"CRD":
        lowering.define(node.outputs[0], node.shapes[0], _channels_first(lowering, lowering.tensor(value), size))
        return
    table = "DepthToSpaceOptions" if code == "DEPTH_TO_SPACE" else "SpaceToDepthOptions"
    result = lowering.like(
        code,
        [lowering.tensor(value, Layout.CHANNELS_LAST)],
        arranged(node.shapes[0], Layout.CHANNELS_LAST),
        (table, {"blockSize": size}),
    )
    lowering.define(node.outputs[0], node.shapes[0], result, Layout.CHANNELS_LAST)


def _channels_first(lowering: Lowering, tensor: Tensor, size: int) -> Tensor:
    rows, channels, height, width = tensor.shape
    split = lowering.reshape(tensor, (rows * channels // size**2, size, size, height, width))
    turned = lowering.transpose(split, (0, 3, 1, 4, 2))
    return lowering.reshape(turned, (rows, channels // size**2, height * size, width * size))


WRITERS: dict[str, Writer] = {
    "Concat": concat,
    "DepthToSpace": partial(blocks, code="DEPTH_TO_SPACE"),
    "Dropout": same,
    "Expand": expand,
    "Flatten": reshape,
    "Gather": gather,
    "Identity": same,
    "Reshape": reshape,
    "SpaceToDepth": partial(blocks, code="SPACE_TO_DEPTH"),
    "Squeeze": reshape,
    "Tile": tile,
    "Transpose": transpose,
    "Unsqueeze": reshape,
}
