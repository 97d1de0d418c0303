"""Backward rules of sums, means and extremes over axes."""

from __future__ import annotations

import math

import numpy as np

from sanderling.workshop.learning.draft import integer, integers
from sanderling.workshop.learning.gradients.step import Step, fixed, gradient, positive, shape_of, spread, static


def reduced_axes(step: Step) -> list[int]:
    """Axes that a reduction removes, counted from the front."""
    rank = len(step.shape(0))
    if step.has(1):
        return positive([int(axis) for axis in static(step, 1, "axes")], rank)
    return positive(integers(step.node, "axes", range(rank)), rank)


def _kept(step: Step, value: str, axes: list[int]) -> str:
    """A reduced value with its reduced axes as 1."""
    if integer(step.node, "keepdims", 1):
        return value
    return step.op("Unsqueeze", value, step.draft.integers(axes))


def _count(step: Step, axes: list[int]) -> str:
    """How many elements went into each result."""
    shape = step.shape(0)
    if not any(isinstance(shape[axis], str) for axis in axes):
        return step.draft.number(float(math.prod(fixed(step, shape, axes))))
    sizes = step.op("Gather", shape_of(step, step.x(0)), step.draft.integers(axes))
    count = step.op("ReduceProd", sizes, keepdims=0)
    return step.op("Cast", count, to=1)


@gradient("ReduceSum")
def reduce_sum(step: Step) -> None:
    """dx everywhere."""
    axes = reduced_axes(step)
    step.give(0, spread(step, _kept(step, step.g, axes), step.x(0), axes))


@gradient("ReduceMean")
def reduce_mean(step: Step) -> None:
    """dx / n everywhere."""
    axes = reduced_axes(step)
    g = step.op("Div", _kept(step, step.g, axes), _count(step, axes))
    step.give(0, spread(step, g, step.x(0), axes))


@gradient("GlobalAveragePool")
def global_average_pool(step: Step) -> None:
    """dx / n everywhere."""
    axes = list(range(2, len(step.shape(0))))
    step.give(0, spread(step, step.op("Div", step.g, _count(step, axes)), step.x(0), axes))


@gradient("ReduceMax", "ReduceMin", "GlobalMaxPool")
def reduce_extreme(step: Step) -> None:
    """dx where the extreme is, shared evenly where it is several times, as PyTorch's amax does."""
    pooled = step.node.op_type == "GlobalMaxPool"
    axes = list(range(2, len(step.shape(0)))) if pooled else reduced_axes(step)
    y, g = (step.y, step.g) if pooled else (_kept(step, step.y, axes), _kept(step, step.g, axes))
    there = step.op("Cast", step.op("Equal", step.x(0), y), to=1)
    share = step.op("Div", g, step.summed(there, axes, keep=True))
    step.give(0, step.mul(there, share))


@gradient("ReduceL2")
def reduce_l2(step: Step) -> None:
    """x / y · dx; 0 where the norm is 0."""
    axes = reduced_axes(step)
    length = step.op("Max", _kept(step, step.y, axes), step.draft.number(float(np.finfo(np.float32).tiny)))
    step.give(0, step.mul(step.x(0), step.op("Div", _kept(step, step.g, axes), length)))


@gradient("ReduceL1")
def reduce_l1(step: Step) -> None:
    """sign x · dx."""
    axes = reduced_axes(step)
    step.give(0, step.mul(step.op("Sign", step.x(0)), _kept(step, step.g, axes)))


@gradient("ReduceSumSquare")
def reduce_sum_square(step: Step) -> None:
    """2 · x · dx."""
    axes = reduced_axes(step)
    step.give(0, step.mul(step.scaled(step.x(0), 2.0), _kept(step, step.g, axes)))


@gradient("ReduceLogSumExp")
def reduce_log_sum_exp(step: Step) -> None:
    """exp(x − y) · dx."""
    axes = reduced_axes(step)
    share = step.op("Exp", step.op("Sub", step.x(0), _kept(step, step.y, axes)))
    step.give(0, step.mul(share, _kept(step, step.g, axes)))
