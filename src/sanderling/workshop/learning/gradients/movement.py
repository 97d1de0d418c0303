"""Backward rules of operators that move elements and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sanderling.workshop.learning.draft import attribute, integer, integers
from sanderling.workshop.learning.gradients.step import (
    Step,
    fixed,
    gradient,
    positive,
    reduced_to,
    reshaped,
    shape_of,
    static,
)


@gradient("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(step: Step) -> None:
    """The same elements in the old shape."""
    step.give(0, reshaped(step, step.g, step.x(0)))


@gradient("Transpose")
def transpose(step: Step) -> None:
    """Axes go back to where they were."""
    rank = len(step.shape(0))
    perm = integers(step.node, "perm", list(range(rank))[::-1])
    step.give(0, step.op("Transpose", step.g, perm=[perm.index(axis) for axis in range(rank)]))


@gradient("Expand")
def expand(step: Step) -> None:
    """Sum over what was repeated."""
    step.give(0, reduced_to(step, step.g, step.out_shape, step.shape(0)))


@gradient("Tile")
def tile(step: Step) -> None:
    """Sum over the repetitions."""
    repeats = [int(count) for count in static(step, 1, "number of repetitions")]
    shape = step.shape(0)
    split: list[int] = []
    for axis, count in enumerate(repeats):
        size = shape[axis]
        split += [count, -1 if isinstance(size, str) else size]
    if split.count(-1) > 1:
        raise step.refuse("more than one axis is dynamic")
    apart = step.op("Reshape", step.g, step.draft.integers(split))
    step.give(0, step.summed(apart, range(0, 2 * len(repeats), 2), keep=False))


@gradient("Concat")
def concat(step: Step) -> None:
    """Each input gets its part."""
    axis = integer(step.node, "axis", 0) % len(step.out_shape)
    start = 0
    for place in range(len(step.node.input)):
        (size,) = fixed(step, step.shape(place), [axis])
        if place in step.wanted:
            step.give(place, _slice(step, step.g, [axis], [start], [start + size]))
        start += size


@gradient("Split")
def split(step: Step) -> None:
    """Join the parts' gradients, zeros where none flows back."""
    axis = integer(step.node, "axis", 0) % len(step.shape(0))
    parts = []
    for output, g in zip(step.node.output, step.gradients, strict=True):
        parts.append(g if g is not None else _zeros(step, shape_of(step, output)))
    step.give(0, step.op("Concat", *parts, axis=axis))


@gradient("Slice")
def cut(step: Step) -> None:
    """Put back in place, zeros around."""
    shape = step.shape(0)
    starts, ends = (static(step, place, what) for place, what in ((1, "start"), (2, "end")))
    axes = positive(_listed(step, 3, len(starts)), len(shape))
    steps = static(step, 4, "steps") if step.has(4) else np.ones(len(starts), np.int64)
    g = step.g
    front, behind = [0] * len(shape), [0] * len(shape)
    for axis, start, end, stride in zip(axes, starts, ends, steps, strict=True):
        if int(start) == 0 and int(end) > 1 << 30 and stride == 1:
            continue  # all of it
        (size,) = fixed(step, shape, [axis])
        places = range(size)[slice(int(start), int(end) if abs(int(end)) < 1 << 30 else None, int(stride))]
        if stride == 1:
            front[axis], behind[axis] = places.start, size - places.start - len(places)
        else:
            g = scattered(step, g, axis, np.asarray(places, np.int64), size, len(shape))
    step.give(0, _padded(step, g, front, behind))


@gradient("Pad")
def pad(step: Step) -> None:
    """What is inside the border."""
    if attribute(step.node, "mode", "constant") != "constant":
        raise step.refuse(f"its mode is {attribute(step.node, 'mode')}, only constant borders are handled")
    widths = [int(width) for width in static(step, 1, "width")]
    shape = step.shape(0)
    axes = positive(_listed(step, 3, len(shape)), len(shape))
    count = len(axes)
    moved = [place for place in range(count) if widths[place] or widths[place + count]]
    sizes = fixed(step, shape, [axes[place] for place in moved])
    starts = [widths[place] for place in moved]
    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
    step.give(0, _slice(step, step.g, [axes[place] for place in moved], starts, ends) if moved else step.g)


@gradient("Gather")
def gather(step: Step) -> None:
    """Rows that were looked up get their gradients added."""
    shape = step.shape(0)
    rank = len(shape)
    axis = integer(step.node, "axis", 0) % rank
    (size,) = fixed(step, shape, [axis])
    indices = step.draft.known(step.x(1))
    if indices is not None and indices.ndim == 0:
        place = int(indices) % size
        front, behind = [0] * rank, [0] * rank
        front[axis], behind[axis] = place, size - place - 1
        step.give(0, _padded(step, step.op("Unsqueeze", step.g, step.draft.integers([axis])), front, behind))
    elif indices is not None and indices.ndim == 1:
        step.give(0, scattered(step, step.g, axis, indices.astype(np.int64) % size, size, rank))
    elif axis == 0:
        step.give(0, _rows_added(step))
    else:
        raise step.refuse(f"it looks up along axis {axis} at computed places")


def _rows_added(step: Step) -> str:
    """Gradient of a table (rows, …) from those of the rows that were looked up; -1 counts from the end."""
    width = fixed(step, step.shape(0), range(len(step.shape(0))))
    g = step.op("Reshape", step.g, step.draft.integers([-1, *width[1:]]))
    places = step.op("Reshape", step.x(1), step.draft.integers([-1, 1]))
    zeros = _zeros(step, step.draft.integers(width))
    return step.op("ScatterND", zeros, places, g, reduction="add")


@gradient("GatherElements")
def gather_elements(step: Step) -> None:
    """Elements that were looked up get their gradients added."""
    axis = integer(step.node, "axis", 0)
    zeros = _zeros(step, shape_of(step, step.x(0)))
    step.give(0, step.op("ScatterElements", zeros, step.x(1), step.g, axis=axis, reduction="add"))


@gradient("Trilu")
def trilu(step: Step) -> None:
    """The same triangle of the gradient."""
    more = [step.x(1)] if step.has(1) else []
    step.give(0, step.op("Trilu", step.g, *more, upper=integer(step.node, "upper", 1)))


@gradient("CumSum")
def cumsum(step: Step) -> None:
    """The sum from the other end."""
    turned, open_end = integer(step.node, "reverse", 0), integer(step.node, "exclusive", 0)
    step.give(0, step.op("CumSum", step.g, step.x(1), reverse=1 - turned, exclusive=open_end))


@gradient("DepthToSpace", "SpaceToDepth")
def depth_to_space(step: Step) -> None:
    """The one undoes the other; SpaceToDepth is the inverse of the mode DCR."""
    if attribute(step.node, "mode", "DCR") != "DCR":
        raise step.refuse("its mode is CRD, only DCR is handled")
    back = "SpaceToDepth" if step.node.op_type == "DepthToSpace" else "DepthToSpace"
    step.give(0, step.op(back, step.g, blocksize=integer(step.node, "blocksize", 1)))


@gradient("Resize")
def resize(step: Step) -> None:
    """Nearest neighbours, a whole number of times larger: sum over the copies."""
    mode = attribute(step.node, "mode", "nearest")
    rank = len(step.shape(0))
    axes = list(range(2, rank))
    size, out = fixed(step, step.shape(0), axes), fixed(step, step.out_shape, axes)
    if mode != "nearest" or any(large % small for small, large in zip(size, out, strict=True)):
        raise step.refuse(f"mode {mode} from {size} to {out}; only nearest, a whole number of times larger, is handled")
    (channels,) = fixed(step, step.shape(0), [1])
    apart = [-1, channels]
    for small, large in zip(size, out, strict=True):
        apart += [small, large // small]
    g = step.op("Reshape", step.g, step.draft.integers(apart))
    step.give(0, step.summed(g, range(3, 3 + 2 * len(size), 2), keep=False))


def scattered(step: Step, g: str, axis: int, places: np.ndarray, size: int, rank: int) -> str:
    """Put what lies along an axis at ``places`` of a longer axis, added where places are equal: a thin product."""
    spread = np.zeros((len(places), size), np.float32)
    spread[np.arange(len(places)), places] = 1
    if axis == rank - 1:
        return step.op("MatMul", g, step.draft.constant(spread))
    last = [*(other for other in range(rank) if other != axis), axis]
    back = [last.index(other) for other in range(rank)]
    wide = step.op("MatMul", step.op("Transpose", g, perm=last), step.draft.constant(spread))
    return step.op("Transpose", wide, perm=back)


def _listed(step: Step, place: int, count: int) -> list[int]:
    """Axes that an input lists; the first ones without it."""
    return [int(axis) for axis in static(step, place, "axes")] if step.has(place) else list(range(count))


def _slice(step: Step, value: str, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> str:
    whole = step.draft.integers
    return step.op("Slice", value, whole(starts), whole(ends), whole(axes))


def _padded(step: Step, value: str, front: Sequence[int], behind: Sequence[int]) -> str:
    if not any(front) and not any(behind):
        return value
    return step.op("Pad", value, step.draft.integers([*front, *behind]))


def _zeros(step: Step, shape: str) -> str:
    return step.op("Expand", step.draft.number(0.0), shape)
