"""YOLOX: (N, cells, 5 + classes), offsets in the cells of the grids, unless the graph decodes them.

Source: Megvii YOLOX, ``yolox/models/yolo_head.py`` ``decode_outputs``: centre = (offset + cell) * stride, side =
exp(value) * stride; objectness and classes are probabilities already.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from sanderling.core.tensor import Array, TensorSpec
from sanderling.model.detection import DetectionSpec, family_spec
from sanderling.run.vision.detections import DetectionRules, Detections, Floats
from sanderling.run.vision.heads import yolov5
from sanderling.run.vision.heads.base import Arrays, Head, Size, cells, edges, raw_threshold

_SIDES, _OBJECTNESS = 4, 4


def recognise(outputs: tuple[TensorSpec, ...], size: Size) -> DetectionSpec | None:
    """One anchor in every cell of the grids of strides 8, 16 and 32, of 64 too in the larger networks."""
    found = yolov5.roles(outputs, family_spec("yolox"))
    for strides in yolov5.STRIDES:
        if found is not None and found["boxes"].shape[1] == cells(size, strides):
            return family_spec("yolox", strides=strides)
    return None


def candidates(arrays: Arrays, spec: DetectionSpec, size: Size, rules: DetectionRules) -> Iterator[Detections]:
    """As YOLOv5's, but that sides may be given in cells."""
    least = raw_threshold(rules.least_score, spec.scores)
    for raw in arrays["boxes"]:  # (A, 5 + C)
        anchors, scores, numbers = yolov5.scored(raw, raw[:, _OBJECTNESS] >= least, spec, rules)
        yield Detections(_boxes(raw[anchors, :_SIDES], anchors, spec, size), scores, numbers)


def _boxes(raw: Array, anchors: Array, spec: DetectionSpec, size: Size) -> Floats:
    if spec.units != "cells":
        return edges(raw, spec, size)
    corners, strides = grid(size, spec.strides)
    values, stride = raw.astype(np.float64), strides[anchors, None]
    centre = (values[:, :2] + corners[anchors]) * stride
    with np.errstate(over="ignore"):
        half = np.exp(values[:, 2:]) * stride / 2
    return np.concatenate([centre - half, centre + half], axis=1)


@lru_cache(maxsize=8)
def grid(size: Size, strides: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Column and row of every cell, float64 (A, 2), and its stride, (A,): levels, rows, columns."""
    corners, steps = [], []
    for stride in strides:
        columns, rows = -(-size[0] // stride), -(-size[1] // stride)
        y, x = np.divmod(np.arange(rows * columns), columns)
        corners.append(np.stack([x, y], axis=1).astype(np.float64))
        steps.append(np.full(rows * columns, float(stride)))
    return np.concatenate(corners), np.concatenate(steps)


HEAD = Head("yolox", "one float output (N, cells, 5 + classes)", recognise, yolov5.roles, yolov5.classes, candidates)
