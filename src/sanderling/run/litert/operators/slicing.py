"""Parts of a tensor, and a tensor with something around it."""

from __future__ import annotations

import numpy as np

from sanderling.core.tensor import Array
from sanderling.run.litert.flatbuffer import Tensor
from sanderling.run.litert.graph import Node
from sanderling.run.litert.layout import arranged, cheapest, order, place_of
from sanderling.run.litert.lowering import Lowering, Writer

_REFLECT = 0


def slice_(lowering: Lowering, node: Node) -> None:
    """Starts, ends and steps along some axes."""
    value = lowering.moved(node.inputs[0])
    rank = len(value.shape)
    cuts = [range(size) for size in value.shape]
    for axis, cut in _cuts(lowering, node, value.shape):
        cuts[axis] = cut
    layout = cheapest([value])
    tensor = lowering.tensor(value, layout)
    placed = [cuts[axis] for axis in order(rank, layout)]
    shape = [len(cut) for cut in placed]
    lowering.define(node.outputs[0], node.shapes[0], _cut(lowering, tensor, placed, shape), layout)


def _cuts(lowering: Lowering, node: Node, shape: tuple[int, ...]) -> list[tuple[int, range]]:
    """Axis, and the places along it that are kept."""
    starts, ends = lowering.argument(node, "starts", 1), lowering.argument(node, "ends", 2)
    assert starts is not None
    assert ends is not None
    axes, steps = lowering.argument(node, "axes", 3), lowering.argument(node, "steps", 4)
    axes = np.arange(starts.size) if axes is None else axes
    steps = np.ones(starts.size, np.int64) if steps is None else steps
    return [
        (int(axis) % len(shape), range(shape[int(axis)])[int(start) : int(end) : int(step)])
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)
    ]


def _cut(lowering: Lowering, tensor: Tensor, cuts: list[range], shape: list[int]) -> Tensor:
    if all(cut.step == 1 for cut in cuts):
        begin = lowering.ints([cut.start for cut in cuts])
        return lowering.like("SLICE", [tensor, begin, lowering.ints(shape)], shape, ("SliceOptions", {}))
    backwards = sum(1 << place for place, cut in enumerate(cuts) if cut.stop < 0)  # ends before the first element
    places = [[cut.start for cut in cuts], [cut.stop for cut in cuts], [cut.step for cut in cuts]]
    tensors = [tensor, *(lowering.ints(numbers) for numbers in places)]
    return lowering.like("STRIDED_SLICE", tensors, shape, ("StridedSliceOptions", {"endMask": backwards}))


def split(lowering: Lowering, node: Node) -> None:
    """Parts along an axis, equal or not."""
    value = lowering.moved(node.inputs[0])
    rank = len(value.shape)
    axis = node.attributes.get("axis", 0) % rank
    layout = cheapest([value])
    tensor = lowering.tensor(value, layout)
    place = place_of(axis, rank, layout)
    shapes = [arranged(shape, layout) for shape in node.shapes]
    if len(set(shapes)) == 1:
        parts = lowering.emit_several(
            "SPLIT",
            [lowering.ints(np.array(place)), tensor],
            shapes,
            ("SplitOptions", {"numSplits": len(shapes)}),
            dtype=tensor.dtype,
            quantization=tensor.quantization,
        )
    else:
        starts = np.cumsum([0, *(shape[place] for shape in shapes)])
        parts = tuple(
            _cut(lowering, tensor, _only(tensor, place, int(start), shape[place]), list(shape))
            for start, shape in zip(starts, shapes, strict=False)
        )
    for name, shape, part in zip(node.outputs, node.shapes, parts, strict=True):
        if name:
            lowering.define(name, shape, part, layout)


def _only(tensor: Tensor, place: int, start: int, size: int) -> list[range]:
    cuts = [range(whole) for whole in tensor.shape]
    cuts[place] = range(start, start + size)
    return cuts


def pad(lowering: Lowering, node: Node) -> None:
    """A constant around a tensor, or its reflection."""
    mode = node.attributes.get("mode", b"constant")
    if mode not in (b"constant", b"reflect"):
        raise node.refused(f"mode {mode.decode()} has no exact form")
    fill = _fill(lowering, node)
    plain = mode == b"reflect"
    value = lowering.moved(node.inputs[0]) if plain or not fill else lowering.real(node.inputs[0])
    rank = len(value.shape)
    pads = _pads(lowering, node, rank)
    if np.any(pads < 0):
        raise node.refused("negative pads have no exact form")
    layout = cheapest([value])
    tensor = lowering.tensor(value, layout)
    amounts = lowering.ints(pads[list(order(rank, layout))])
    shape = arranged(node.shapes[0], layout)
    if plain:
        result = lowering.like("MIRROR_PAD", [tensor, amounts], shape, ("MirrorPadOptions", {"mode": _REFLECT}))
    elif not fill:
        result = lowering.like("PAD", [tensor, amounts], shape, ("PadOptions", {}))
    else:
        constant = lowering.constant(np.array(fill, tensor.dtype))
        result = lowering.like("PADV2", [tensor, amounts, constant], shape, ("PadV2Options", {}))
    lowering.define(node.outputs[0], node.shapes[0], result, layout)


def _fill(lowering: Lowering, node: Node) -> float:
    value = lowering.argument(node, "value", 2)
    return 0.0 if value is None else float(value)


def _pads(lowering: Lowering, node: Node, rank: int) -> Array:
    """Shape (rank, 2): before and after, for each axis."""
    given = lowering.argument(node, "pads", 1)
    assert given is not None
    axes = lowering.constant_of(node, 3) if node.has(3) else np.arange(rank)
    pads = np.zeros((rank, 2), np.int64)
    pads[axes] = given.reshape(2, -1).T
    return pads


WRITERS: dict[str, Writer] = {"Pad": pad, "Slice": slice_, "Split": split}
