"""Resize: TFLite's own kernels where they pick the same elements, and plain copies where they do not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sanderling.core.tensor import Array
from sanderling.run.litert.flatbuffer import Options
from sanderling.run.litert.graph import Node
from sanderling.run.litert.layout import Layout
from sanderling.run.litert.lowering import Lowering, Writer

_IMAGE = 4  # axes
_FLAGS: dict[str, dict[str, bool]] = {
    "half_pixel": {"halfPixelCenters": True},
    "pytorch_half_pixel": {"halfPixelCenters": True},  # differs for an output of one element only
    "align_corners": {"alignCorners": True},
    "asymmetric": {},
}
_ROUND: dict[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda places: np.ceil(places - 0.5),
    "round_prefer_ceil": lambda places: np.floor(places + 0.5),
}


def resize(lowering: Lowering, node: Node) -> None:
    """An image of another height and width."""
    mode = node.attributes.get("mode", b"nearest").decode()
    shape, out = lowering.value(node.inputs[0]).shape, node.shapes[0]
    if len(shape) != _IMAGE or shape[:2] != out[:2]:
        raise node.refused("only height and width of (N, C, H, W) are resized")
    if node.attributes.get("antialias", 0) or node.attributes.get("exclude_outside", 0):
        raise node.refused("antialias and exclude_outside have no exact form")
    scales = _scales(lowering, node, shape, out)
    if mode == "nearest":
        _nearest(lowering, node, scales)
    elif mode == "linear":
        _linear(lowering, node, scales)
    else:
        raise node.refused(f"mode {mode} has no exact form")


def _nearest(lowering: Lowering, node: Node, scales: list[float]) -> None:
    """Rows, then columns, that a list of places picks; one operator where the places are TFLite's own."""
    value = lowering.moved(node.inputs[0])
    tensor = lowering.tensor(value, Layout.CHANNELS_LAST)
    sizes, out = tensor.shape[1:3], node.shapes[0][2:]
    places = [_places(node, scale, size, count) for scale, size, count in zip(scales, sizes, out, strict=True)]
    plain = [
        np.minimum(np.floor(np.arange(count) * np.float32(size / count)), size - 1)
        for size, count in zip(sizes, out, strict=True)
    ]
    if all(np.array_equal(mine, theirs) for mine, theirs in zip(places, plain, strict=True)):
        shape = (tensor.shape[0], *out, tensor.shape[3])
        options: Options = ("ResizeNearestNeighborOptions", {})
        tensor = lowering.like("RESIZE_NEAREST_NEIGHBOR", [tensor, lowering.ints(out)], shape, options)
    else:
        for axis, picked in ((1, places[0]), (2, places[1])):
            shape = (*tensor.shape[:axis], picked.size, *tensor.shape[axis + 1 :])
            options = ("GatherOptions", {"axis": axis})
            tensor = lowering.like("GATHER", [tensor, lowering.ints(picked)], shape, options)
    lowering.define(node.outputs[0], node.shapes[0], tensor, Layout.CHANNELS_LAST)


def _linear(lowering: Lowering, node: Node, scales: list[float]) -> None:
    tensor = lowering.tensor(lowering.real(node.inputs[0]), Layout.CHANNELS_LAST)
    coordinates, out = _coordinates(node), node.shapes[0][2:]
    if coordinates not in _FLAGS or (coordinates == "pytorch_half_pixel" and 1 in out):
        raise node.refused(f"linear with {coordinates} has no exact form")
    for scale, size, count in zip(scales, tensor.shape[1:3], out, strict=True):
        if coordinates != "align_corners" and abs(scale * size - count) > 1e-6 * count:
            raise node.refused(f"scale {scale} does not lead from {size} to {count} elements exactly")
    shape = (tensor.shape[0], *out, tensor.shape[3])
    options = ("ResizeBilinearOptions", _FLAGS[coordinates])
    result = lowering.emit("RESIZE_BILINEAR", [tensor, lowering.ints(out)], shape, options)
    lowering.define(node.outputs[0], node.shapes[0], result, Layout.CHANNELS_LAST)


def _scales(lowering: Lowering, node: Node, shape: tuple[int, ...], out: tuple[int, ...]) -> list[float]:
    """Of height and width: given, or what the sizes make of them."""
    position = 1 if node.operator == "Upsample" or node.opset < 11 else 2
    given = lowering.argument(node, "scales", position)
    if given is not None and given.size:
        axes = node.attributes.get("axes", range(_IMAGE))
        whole = [int(np.floor(np.float32(size) * np.float32(scale))) for size, scale in zip(shape, given, strict=False)]
        if len(given) == _IMAGE and tuple(whole) != out:  # standard and engines round the size differently
            raise node.refused(f"scales {given.tolist()} lead to a size that depends on rounding")
        by_axis = {int(axis) % _IMAGE: float(scale) for axis, scale in zip(axes, given, strict=True)}
        return [by_axis.get(axis, 1.0) for axis in (2, 3)]
    if node.attributes.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        raise node.refused("keep_aspect_ratio_policy has no exact form")
    return [out[axis] / shape[axis] for axis in (2, 3)]


def _coordinates(node: Node) -> str:
    if node.operator == "Upsample" or node.opset < 11:
        return "asymmetric"
    return str(node.attributes.get("coordinate_transformation_mode", b"half_pixel").decode())


def _places(node: Node, scale: float, size: int, count: int) -> Array:
    """The element that each one of ``count`` is a copy of, as ONNX rounds."""
    coordinates = _coordinates(node)
    steps = np.arange(count, dtype=np.float32)
    step = np.float32(scale)
    if coordinates == "asymmetric":
        found = steps / step
    elif coordinates in ("half_pixel", "pytorch_half_pixel"):
        alone = coordinates == "pytorch_half_pixel" and count == 1
        found = np.zeros_like(steps) if alone else (steps + np.float32(0.5)) / step - np.float32(0.5)
    elif coordinates == "align_corners":
        found = steps * np.float32((size - 1) / (count - 1)) if count > 1 else np.zeros_like(steps)
    else:
        raise node.refused(f"nearest with {coordinates} has no exact form")
    rounding = "floor" if node.operator == "Upsample" or node.opset < 11 else ""
    rounding = rounding or node.attributes.get("nearest_mode", b"round_prefer_floor").decode()
    places: Array = np.clip(_ROUND[rounding](found), 0, size - 1).astype(np.int64)
    return places


WRITERS: dict[str, Writer] = {"Resize": resize, "Upsample": resize}
