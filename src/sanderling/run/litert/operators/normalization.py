"""Normalisations, taken apart into means, products and sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sanderling.core.tensor import Array
from sanderling.run.litert.flatbuffer import Tensor
from sanderling.run.litert.graph import Node
from sanderling.run.litert.layout import arranged, cheapest
from sanderling.run.litert.lowering import Lowering

_EPSILON = 1e-5


def batch_normalization(lowering: Lowering, node: Node) -> None:
    """A factor and an addend for each channel."""
    if node.attributes.get("training_mode", 0):
        raise node.refused("training mode has no exact form")
    scale, bias, mean, variance = (lowering.constant_of(node, position).astype(np.float64) for position in range(1, 5))
    factor = scale / np.sqrt(variance + node.attributes.get("epsilon", _EPSILON))
    value = lowering.real(node.inputs[0])
    layout = cheapest([value])
    tensor = lowering.tensor(value, layout)
    sizes = [1] * len(value.shape)
    sizes[1] = value.shape[1]
    wide = arranged(sizes, layout)
    factors, addends = (
        lowering.constant(array.astype(np.float32).reshape(wide)) for array in (factor, bias - mean * factor)
    )
    scaled = lowering.like("MUL", [tensor, factors], tensor.shape, ("MulOptions", {}))
    result = lowering.like("ADD", [scaled, addends], tensor.shape, ("AddOptions", {}))
    lowering.define(node.outputs[0], node.shapes[0], result, layout)


def layer_normalization(lowering: Lowering, node: Node) -> None:
    """Over the last axes; mean and deviation are not returned."""
    if any(node.outputs[1:]):
        raise node.refused("its mean and deviation are not returned")
    value = lowering.real(node.inputs[0])
    rank = len(value.shape)
    axes = range(node.attributes.get("axis", -1) % rank, rank)
    result = _normalized(lowering, lowering.tensor(value), axes, node.attributes.get("epsilon", _EPSILON))
    for position, code, table in ((1, "MUL", "MulOptions"), (2, "ADD", "AddOptions")):
        if node.has(position):
            other = lowering.tensor(lowering.real(node.inputs[position]))
            result = lowering.like(code, [result, other], result.shape, (table, {}))
    lowering.define(node.outputs[0], node.shapes[0], result)


def instance_normalization(lowering: Lowering, node: Node) -> None:
    """Over space, for each row and channel."""
    value = lowering.real(node.inputs[0])
    rank = len(value.shape)
    axes = range(2, rank)
    result = _normalized(lowering, lowering.tensor(value), axes, node.attributes.get("epsilon", _EPSILON))
    wide = (1, -1, *[1] * (rank - 2))
    scale, bias = (lowering.constant(lowering.constant_of(node, position).reshape(wide)) for position in (1, 2))
    scaled = lowering.like("MUL", [result, scale], result.shape, ("MulOptions", {}))
    lowering.define(
        node.outputs[0], node.shapes[0], lowering.like("ADD", [scaled, bias], result.shape, ("AddOptions", {}))
    )


def _normalized(lowering: Lowering, tensor: Tensor, axes: Sequence[int], epsilon: float) -> Tensor:
    shape = [1 if axis in axes else size for axis, size in enumerate(tensor.shape)]
    keep = ("ReducerOptions", {"keepDims": True})
    places = lowering.ints(list(axes))
    mean = lowering.like("MEAN", [tensor, places], shape, keep)
    centred = lowering.like("SUB", [tensor, mean], tensor.shape, ("SubOptions", {}))
    squares = lowering.like("MUL", [centred, centred], tensor.shape, ("MulOptions", {}))
    variance = lowering.like("MEAN", [squares, places], shape, keep)
    raised = lowering.like("ADD", [variance, lowering.constant(_number(epsilon))], shape, ("AddOptions", {}))
    deviation = lowering.like("SQRT", [raised], shape)
    return lowering.like("DIV", [centred, deviation], tensor.shape, ("DivOptions", {}))


def _number(value: float) -> Array:
    return np.array(value, np.float32)


WRITERS = {
    "BatchNormalization": batch_normalization,
    "InstanceNormalization": instance_normalization,
    "LayerNormalization": layer_normalization,
}
