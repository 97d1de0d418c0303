"""Backward rules of pooling windows."""

from __future__ import annotations

import math

import numpy as np

from sanderling.workshop.learning.draft import integer, integers
from sanderling.workshop.learning.gradients.convolution import Window, window
from sanderling.workshop.learning.gradients.step import Step, fixed, gradient, reshaped


@gradient("MaxPool")
def max_pool(step: Step) -> None:
    """Each window's gradient goes to the place that the node tells, numbered through the whole tensor."""
    node = step.node
    if integer(node, "storage_order", 0):
        raise step.refuse("its places are numbered by columns")
    while len(node.output) < 2:
        node.output.append(step.draft.name("places"))
    size = step.op("Unsqueeze", step.op("Size", step.x(0)), step.draft.integers([0]))
    zeros = step.op("Expand", step.draft.number(0.0), size)
    flat = step.draft.integers([-1])
    places, g = step.op("Reshape", node.output[1], flat), step.op("Reshape", step.g, flat)
    added = step.op("ScatterElements", zeros, places, g, axis=0, reduction="add")
    step.give(0, reshaped(step, added, step.x(0)))


@gradient("AveragePool")
def average_pool(step: Step) -> None:
    """Each window's gradient, shared among its places."""
    rank = len(step.shape(0)) - 2
    spatial = range(2, 2 + rank)
    moved = window(step, step.node, integers(step.node, "kernel_shape", [1] * rank))
    size, out = fixed(step, step.shape(0), spatial), fixed(step, step.out_shape, spatial)
    tiled = moved.kernel == moved.strides and not any(moved.pads)
    if tiled and all(n * k == length for n, k, length in zip(out, moved.kernel, size, strict=True)):
        step.give(0, _copied(step, moved, out))
        return
    (channels,) = fixed(step, step.shape(0), [1])
    extra = []
    for axis in range(rank):
        reach = moved.dilations[axis] * (moved.kernel[axis] - 1) + 1
        covered = (out[axis] - 1) * moved.strides[axis] + reach - moved.pads[axis] - moved.pads[axis + rank]
        extra.append(size[axis] - covered)
    if min(extra) < 0:
        raise step.refuse("its last windows reach beyond the padding (ceil_mode)")
    counts = _counts(moved, size, out, padded=bool(integer(step.node, "count_include_pad", 0)))
    g = step.op("Div", step.g, step.draft.constant(counts))
    ones = step.draft.constant(np.ones((channels, 1, *moved.kernel), np.float32))
    options = {"strides": moved.strides, "pads": moved.pads, "dilations": moved.dilations}
    step.give(0, step.op("ConvTranspose", g, ones, output_padding=extra, group=channels, **options))


def _copied(step: Step, moved: Window, out: list[int]) -> str:
    """Windows that lie side by side: every place gets the same."""
    (channels,) = fixed(step, step.shape(0), [1])
    g = step.scaled(step.g, 1 / math.prod(moved.kernel))
    apart, wide = [-1, channels], [1, channels]
    for n, k in zip(out, moved.kernel, strict=True):
        apart += [n, 1]
        wide += [n, k]
    g = step.op("Reshape", g, step.draft.integers(apart))
    return reshaped(step, step.op("Expand", g, step.draft.integers(wide)), step.x(0))


def _counts(moved: Window, size: list[int], out: list[int], *, padded: bool) -> np.ndarray:
    """By how many places each window's mean was divided, (1, 1, *out)."""
    counts = np.ones((1, 1), np.float32)
    for axis, (n, length) in enumerate(zip(out, size, strict=True)):
        starts = np.arange(n) * moved.strides[axis] - moved.pads[axis]
        taps = starts[:, None] + np.arange(moved.kernel[axis]) * moved.dilations[axis]
        inside = (taps >= 0) & (taps < length)
        along = np.full(n, moved.kernel[axis]) if padded else inside.sum(1)
        counts = counts[..., None] * along.astype(np.float32)
    return np.ascontiguousarray(counts)
