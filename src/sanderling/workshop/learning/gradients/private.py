"""Each sample's own gradient of a parameter, (N, *shape): for clipping per sample.

Gradients of values that have a batch are each sample's own already, as no sample's loss depends on another. Only where
a parameter meets the batch must the sum over the batch be left out; before that, on values that parameters alone make,
gradients carry the batch as an axis in front.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from sanderling.workshop.learning.draft import Shape, integer, integers, number
from sanderling.workshop.learning.gradients.convolution import weight_gradients, window
from sanderling.workshop.learning.gradients.normalization import layer_normalized, normalized
from sanderling.workshop.learning.gradients.step import Rule, Step, dynamic_axes, fixed, reduced_to

MEETING: dict[str, Rule] = {}
ALONE: dict[str, Rule] = {}
_LARGEST_TABLE = 1 << 20


def _meeting(*kinds: str) -> Callable[[Rule], Rule]:
    """Register the rule of operators in which a parameter meets the batch."""
    return partial(_register, MEETING, kinds)


def _alone(*kinds: str) -> Callable[[Rule], Rule]:
    """Register the rule of operators on values that parameters alone make."""
    return partial(_register, ALONE, kinds)


def _register(rules: dict[str, Rule], kinds: tuple[str, ...], rule: Rule) -> Rule:
    rules.update(dict.fromkeys(kinds, rule))
    return rule


def _rows(step: Step, value: str, shape: Shape) -> str:
    """(N, …, C) as (N, rows, C)."""
    if len(shape) == 2:
        return step.op("Unsqueeze", value, step.draft.integers([1]))
    if len(shape) == 3:
        return value
    (width,) = fixed(step, shape, [len(shape) - 1])
    inner = fixed(step, shape, range(1, len(shape) - 1))
    return step.op("Reshape", value, step.draft.integers([-1, math.prod(inner), width]))


@_meeting("MatMul")
def matmul(step: Step) -> None:
    """A layer's weight: xᵀ · g of each sample."""
    if len(step.shape(1)) != 2:
        raise step.refuse("a parameter of more than two axes meets the batch in it")
    x = step.op("Transpose", _rows(step, step.x(0), step.shape(0)), perm=[0, 2, 1])
    step.give(1, step.op("MatMul", x, _rows(step, step.g, step.out_shape)))


@_meeting("Gemm")
def gemm(step: Step) -> None:
    """A layer's weight and bias."""
    if integer(step.node, "transA", 0):
        raise step.refuse("its input is turned")
    if 1 in step.wanted:
        g = step.scaled(step.g, number(step.node, "alpha", 1.0))
        left, right = (g, step.x(0)) if integer(step.node, "transB", 0) else (step.x(0), g)
        column = step.op("Unsqueeze", left, step.draft.integers([2]))
        step.give(1, step.op("MatMul", column, step.op("Unsqueeze", right, step.draft.integers([1]))))
    if 2 in step.wanted:
        _give_kept(step, 2, step.scaled(step.g, number(step.node, "beta", 1.0)))


@_meeting("Conv")
def conv(step: Step) -> None:
    """A kernel and its bias."""
    weight = step.shape(1)
    spatial = range(2, len(weight))
    if 1 in step.wanted:
        moved = window(step, step.node, fixed(step, weight, spatial))
        step.give(1, weight_gradients(step, moved, fixed(step, step.out_shape, spatial)))
    if 2 in step.wanted:
        step.give(2, step.summed(step.g, spatial, keep=False))


@_meeting("Add", "Sub")
def add(step: Step) -> None:
    """A bias."""
    for place in step.wanted:
        negative = place == 1 and step.node.op_type == "Sub"
        _give_kept(step, place, step.op("Neg", step.g) if negative else step.g)


@_meeting("Mul")
def mul(step: Step) -> None:
    """A scale."""
    for place in step.wanted:
        _give_kept(step, place, step.mul(step.g, step.x(1 - place)))


@_meeting("LayerNormalization")
def layer_normalization(step: Step) -> None:
    """Its scale and bias."""
    if 1 in step.wanted:
        _give_kept(step, 1, step.mul(step.g, layer_normalized(step)[0]))
    if 2 in step.wanted:
        _give_kept(step, 2, step.g)


@_meeting("BatchNormalization")
def batch_normalization(step: Step) -> None:
    """Its scale and bias; with running statistics no sample knows of another."""
    if step.wanted - {1, 2}:
        raise step.refuse("its running statistics are not trained")
    spatial = range(2, len(step.shape(0)))
    for place, g in ((1, None), (2, step.g)):
        if place in step.wanted:
            each = g or step.mul(step.g, normalized(step))
            step.give(place, step.summed(each, spatial, keep=False) if spatial else each)


@_meeting("Gather")
def gather(step: Step) -> None:
    """A small table: which of its rows each sample looked up, as a product."""
    table = fixed(step, step.shape(0), range(len(step.shape(0))))
    if len(table) != 2 or math.prod(table) > _LARGEST_TABLE or integer(step.node, "axis", 0):
        raise step.refuse(f"a table {table} for each sample is too large")
    numbers = step.draft.constant(np.arange(table[0], dtype=np.int64))
    ids = step.op("Cast", step.x(1), to=7)
    hot = step.op("Equal", step.op("Unsqueeze", ids, step.draft.integers([-1])), numbers)
    hot = _rows(step, step.op("Cast", hot, to=1), (*step.shape(1), table[0]))
    g = _rows(step, step.g, step.out_shape)
    step.give(0, step.op("MatMul", step.op("Transpose", hot, perm=[0, 2, 1]), g))


def _give_kept(step: Step, place: int, g: str) -> None:
    """Sum what was broadcast, but for the batch."""
    own, out = step.shape(place), step.out_shape
    lead = len(out) - len(own)
    if lead == 0 and own and own[0] != 1:
        raise step.refuse("a parameter has an axis for the batch")
    wide = (out[0], *[1] * (lead - 1), *own) if lead else (out[0], *own[1:])
    kept = reduced_to(step, g, out, wide)
    step.give(place, _batched(step, kept, own))


def _batched(step: Step, value: str, shape: Shape) -> str:
    """The elements as (N, *shape)."""
    if dynamic_axes(shape):
        raise step.refuse("a parameter has no fixed size")
    return step.op("Reshape", value, step.draft.integers([-1, *fixed(step, shape, range(len(shape)))]))


@_alone("Identity", "Cast")
def identity(step: Step) -> None:
    """Pass on."""
    step.give(0, step.g)


@_alone("Transpose")
def transpose(step: Step) -> None:
    """Axes behind the batch go back."""
    rank = len(step.shape(0))
    perm = integers(step.node, "perm", list(range(rank))[::-1])
    step.give(0, step.op("Transpose", step.g, perm=[0, *(1 + perm.index(axis) for axis in range(rank))]))


@_alone("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(step: Step) -> None:
    """The same elements behind the batch."""
    step.give(0, _batched(step, step.g, step.shape(0)))


@_alone("Gather")
def gather_alone(step: Step) -> None:
    """Rows of a table at places that are the same for all samples, as positions are."""
    table = fixed(step, step.shape(0), range(len(step.shape(0))))
    places = step.draft.known(step.x(1))
    if places is None or len(table) != 2 or math.prod(table) > _LARGEST_TABLE or integer(step.node, "axis", 0):
        raise step.refuse(f"a table {table} for each sample is too large, or looked up at computed places")
    hot = np.zeros((table[0], places.size), np.float32)
    hot[places.reshape(-1), np.arange(places.size)] = 1
    g = step.op("Reshape", step.g, step.draft.integers([-1, places.size, table[1]]))
    step.give(0, step.op("MatMul", step.draft.constant(hot), g))
