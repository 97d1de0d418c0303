"""YOLOv5, YOLOv7 and others with anchors that are decoded in the graph: (N, anchors, 5 + classes).

Source: Ultralytics YOLOv5, ``models/yolo.py`` ``Detect``: centre x, centre y, width, height in pixels, objectness, then
a score for each class; a detection's score is the product of both.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sanderling.core.tensor import Array, TensorSpec
from sanderling.model.detection import DetectionSpec, family_spec
from sanderling.run.vision.detections import DetectionRules, Detections, Floats, Numbers
from sanderling.run.vision.heads.base import (
    Arrays,
    Head,
    Roles,
    Size,
    above,
    cells,
    edges,
    only_output,
    raw_threshold,
    to_probabilities,
)

STRIDES = ((8, 16, 32), (8, 16, 32, 64))
_SIDES, _OBJECTNESS, _CLASSES = 4, 4, 5
_ANCHORS_A_CELL = 3


def recognise(outputs: tuple[TensorSpec, ...], size: Size) -> DetectionSpec | None:
    """Three anchors in every cell of the grids of strides 8, 16 and 32, of 64 too in the larger networks."""
    spec = family_spec("yolov5")
    found = roles(outputs, spec)
    if found is None or found["boxes"].shape[1] not in [_ANCHORS_A_CELL * cells(size, levels) for levels in STRIDES]:
        return None
    return spec


def roles(outputs: tuple[TensorSpec, ...], spec: DetectionSpec) -> Roles | None:
    """One float output of rank 3 with sides, objectness and at least one class."""
    found = only_output(outputs, spec, rank=3)
    if found is None or not isinstance(found.shape[2], int) or found.shape[2] <= _CLASSES:
        return None
    return {"boxes": found}


def classes(found: Roles, spec: DetectionSpec) -> int | None:  # noqa: ARG001 - a head's form
    """All columns but the first five."""
    return int(found["boxes"].shape[2]) - _CLASSES


def candidates(arrays: Arrays, spec: DetectionSpec, size: Size, rules: DetectionRules) -> Iterator[Detections]:
    """An anchor counts once for each class whose product with its objectness is enough."""
    least = raw_threshold(rules.least_score, spec.scores)
    for raw in arrays["boxes"]:  # (A, 5 + C)
        # A product of two probabilities is above neither: where objectness is too low nothing else is looked at.
        anchors, scores, numbers = scored(raw, raw[:, _OBJECTNESS] >= least, spec, rules)
        yield Detections(edges(raw[anchors, :_SIDES], spec, size), scores, numbers)


def scored(raw: Array, likely: Array, spec: DetectionSpec, rules: DetectionRules) -> tuple[Numbers, Floats, Numbers]:
    """Of the likely anchors those, once for each class, that score enough: anchors, scores, classes; each (k,)."""
    anchors = np.flatnonzero(likely)
    if 2 * len(anchors) > len(raw):  # to leave out a few costs more than to look at all
        anchors = np.arange(len(raw))
        chosen = raw[:, _OBJECTNESS:]
    else:
        chosen = raw[anchors, _OBJECTNESS:]
    if spec.scores != "probability":
        chosen = to_probabilities(chosen, spec.scores)
    rows, numbers = above(chosen[:, 1:] * chosen[:, :1], rules.least_score, rules.candidates)
    return anchors[rows], chosen[rows, 1 + numbers].astype(np.float64) * chosen[rows, 0], numbers


HEAD = Head("yolov5", "one float output (N, anchors, 5 + classes)", recognise, roles, classes, candidates)
