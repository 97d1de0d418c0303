"""Backward rules of normalisation and of softmax."""

from __future__ import annotations

import numpy as np

from sanderling.workshop.learning.draft import integer, number
from sanderling.workshop.learning.gradients.step import Step, gradient, reduced_to


@gradient("BatchNormalization")
def batch_normalization(step: Step) -> None:
    """With its running statistics, which stay as they are, it is one factor and one offset a channel."""
    if step.wanted - {0, 1, 2}:
        raise step.refuse("its running statistics are not trained")
    rank = len(step.shape(0))
    others = [axis for axis in range(rank) if axis != 1]
    if 0 in step.wanted:
        factor = step.mul(step.x(1), _inverse_deviation(step))
        step.give(0, step.mul(step.g, _channels(step, factor, rank)))
    if 1 in step.wanted:
        step.give(1, step.summed(step.mul(step.g, normalized(step)), others, keep=False))
    if 2 in step.wanted:
        step.give(2, step.summed(step.g, others, keep=False))


def normalized(step: Step) -> str:
    """(x − mean) / deviation of a batch normalisation."""
    rank = len(step.shape(0))
    centred = step.op("Sub", step.x(0), _channels(step, step.x(3), rank))
    return step.mul(centred, _channels(step, _inverse_deviation(step), rank))


def _inverse_deviation(step: Step) -> str:
    variance = step.draft.known(step.x(4))
    if variance is None:
        raise step.refuse("its running variance is not constant")
    epsilon = number(step.node, "epsilon", 1e-5)
    return step.draft.constant((1 / np.sqrt(variance.astype(np.float64) + epsilon)).astype(np.float32))


def _channels(step: Step, value: str, rank: int) -> str:
    """(C) as (C, 1, 1), so that it meets axis 1."""
    if rank == 2:
        return value
    known = step.draft.known(value)
    if known is not None:
        return step.draft.constant(known.reshape(-1, *[1] * (rank - 2)))
    return step.op("Unsqueeze", value, step.draft.integers(range(1, rank - 1)))


@gradient("LayerNormalization")
def layer_normalization(step: Step) -> None:
    """dx = inverse deviation · (s − mean(s) − n · mean(s · n)), s = scale · g, n the normalised input.

    Source: Ba, Kiros and Hinton 2016, "Layer Normalization".
    """
    rank = len(step.shape(0))
    first = integer(step.node, "axis", -1) % rank
    axes = list(range(first, rank))
    scale = step.shape(1)
    if {0, 1} & step.wanted:
        hat, inverse = layer_normalized(step)
    if 0 in step.wanted:
        s = step.mul(step.g, step.x(1))
        mean = step.op("ReduceMean", s, step.draft.integers(axes), keepdims=1)
        along = step.op("ReduceMean", step.mul(s, hat), step.draft.integers(axes), keepdims=1)
        rest = step.op("Sub", step.op("Sub", s, mean), step.mul(hat, along))
        step.give(0, step.mul(rest, inverse))
    if 1 in step.wanted:
        step.give(1, reduced_to(step, step.mul(step.g, hat), step.out_shape, scale))
    if 2 in step.wanted:
        step.give(2, reduced_to(step, step.g, step.out_shape, step.shape(2)))


def layer_normalized(step: Step) -> tuple[str, str]:
    """The normalised input and the inverse deviation, which the node itself gives besides its output."""
    node = step.node
    while len(node.output) < 3:
        node.output.append(step.draft.name("statistics"))
    mean, inverse = node.output[1], node.output[2]
    return step.mul(step.op("Sub", step.x(0), mean), inverse), inverse


@gradient("InstanceNormalization")
def instance_normalization(step: Step) -> None:
    """A layer normalisation over the spatial axes of each channel."""
    x, rank = step.x(0), len(step.shape(0))
    axes = step.draft.integers(range(2, rank))
    centred = step.op("Sub", x, step.op("ReduceMean", x, axes, keepdims=1))
    variance = step.op("ReduceMean", step.mul(centred, centred), axes, keepdims=1)
    epsilon = step.draft.number(number(step.node, "epsilon", 1e-5))
    inverse = step.op("Reciprocal", step.op("Sqrt", step.op("Add", variance, epsilon)))
    hat = step.mul(centred, inverse)
    if 0 in step.wanted:
        s = step.mul(step.g, _channels(step, step.x(1), rank))
        mean = step.op("ReduceMean", s, axes, keepdims=1)
        along = step.op("ReduceMean", step.mul(s, hat), axes, keepdims=1)
        step.give(0, step.mul(step.op("Sub", step.op("Sub", s, mean), step.mul(hat, along)), inverse))
    others = [axis for axis in range(rank) if axis != 1]
    if 1 in step.wanted:
        step.give(1, step.summed(step.mul(step.g, hat), others, keep=False))
    if 2 in step.wanted:
        step.give(2, step.summed(step.g, others, keep=False))


@gradient("Softmax")
def softmax(step: Step) -> None:
    """y · (g − Σ g · y)."""
    axis = integer(step.node, "axis", -1)
    weighted = step.mul(step.g, step.y)
    total = step.summed(weighted, [axis], keep=True)
    step.give(0, step.op("Sub", weighted, step.mul(step.y, total)))


@gradient("LogSoftmax")
def log_softmax(step: Step) -> None:
    """g − softmax(x) · Σ g."""
    axis = integer(step.node, "axis", -1)
    total = step.summed(step.g, [axis], keep=True)
    step.give(0, step.op("Sub", step.g, step.mul(step.op("Exp", step.y), total)))
