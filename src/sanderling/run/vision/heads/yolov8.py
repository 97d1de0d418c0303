"""YOLOv8, YOLO11 and others without anchors that are decoded in the graph: (N, 4 + classes, anchors).

Source: Ultralytics' export format "onnx": centre x, centre y, width, height in pixels, then a score for each class.
"""

from __future__ import annotations

from collections.abc import Iterator

from sanderling.core.tensor import TensorSpec
from sanderling.model.detection import DetectionSpec, family_spec
from sanderling.run.vision.detections import DetectionRules, Detections
from sanderling.run.vision.heads.base import (
    Arrays,
    Head,
    Roles,
    Size,
    above,
    edges,
    only_output,
    raw_threshold,
    to_probabilities,
)

_SIDES = 4


def recognise(outputs: tuple[TensorSpec, ...], size: Size) -> DetectionSpec | None:  # noqa: ARG001 - a head's form
    """One output with more anchors than rows."""
    spec = family_spec("yolov8")
    return spec if roles(outputs, spec) else None


def roles(outputs: tuple[TensorSpec, ...], spec: DetectionSpec) -> Roles | None:
    """One float output of rank 3, more anchors than rows."""
    found = only_output(outputs, spec, rank=3)
    if found is None:
        return None
    _, rows, anchors = found.shape
    if not isinstance(rows, int) or rows <= _SIDES or (isinstance(anchors, int) and anchors <= rows):
        return None
    return {"boxes": found}


def classes(found: Roles, spec: DetectionSpec) -> int | None:  # noqa: ARG001 - a head's form
    """All rows but the first four."""
    return int(found["boxes"].shape[1]) - _SIDES


def candidates(arrays: Arrays, spec: DetectionSpec, size: Size, rules: DetectionRules) -> Iterator[Detections]:
    """An anchor counts once for each class that it gives enough of a score."""
    least = raw_threshold(rules.least_score, spec.scores)
    for raw in arrays["boxes"]:  # (4 + C, A)
        numbers, anchors = above(raw[_SIDES:], least, rules.candidates)
        scores = to_probabilities(raw[_SIDES + numbers, anchors], spec.scores)
        yield Detections(edges(raw[:_SIDES, anchors].T, spec, size), scores, numbers)


HEAD = Head("yolov8", "one float output (N, 4 + classes, anchors)", recognise, roles, classes, candidates)
