"""Detectors whose graph has dropped duplicates already, in the forms that exporters give.

- rows: (N, detections, 6), a box, its score and its class: Ultralytics with ``nms=True``, YOLOv10;
- Caffe's rows: (1, 1, detections, 7), picture, class, score and a box in shares, as OpenVINO's DetectionOutput;
- parts: boxes (N, detections, 4), scores and classes (N, detections), and mostly their count: TensorRT's EfficientNMS,
  TensorFlow Lite's Detection_PostProcess.

Rows beyond the last detection have a score of 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sanderling.core.tensor import Array, TensorSpec
from sanderling.model.detection import DetectionSpec, Role, family_spec
from sanderling.run.vision.detections import DetectionRules, Detections
from sanderling.run.vision.heads.base import Arrays, Head, Roles, Size, edges, fixed, is_float, only_output

_ROW, _CAFFE_ROW = 6, 7
_MOST_ROWS = 1_000
_MOST_CLASSES = 2_048  # that half precision counts exactly
_CLASS_NAMES, _SCORE_NAMES, _COUNT_NAMES = ("class", "label"), ("score", "conf"), ("num", "count")


def recognise(outputs: tuple[TensorSpec, ...], size: Size) -> DetectionSpec | None:  # noqa: ARG001 - a head's form
    """One of the three forms, with at most a thousand rows."""
    found = roles(outputs, family_spec("nms_in_graph"))
    if found is None or (fixed(found["boxes"].shape[-2]) or _MOST_ROWS) > _MOST_ROWS:
        return None
    return family_spec("nms_in_graph", **({"units": "shares"} if _is_caffe(found["boxes"].shape) else {}))


def roles(outputs: tuple[TensorSpec, ...], spec: DetectionSpec) -> Roles | None:
    """A single output holds rows; of several, shapes, dtypes and names tell what they are."""
    if len(outputs) == 1 or set(spec.outputs) == {"boxes"}:
        rows, caffe = only_output(outputs, spec, rank=3), only_output(outputs, spec, rank=4)
        if rows is not None and rows.shape[2] == _ROW:
            return {"boxes": rows}
        return {"boxes": caffe} if caffe is not None and _is_caffe(caffe.shape) else None
    known: Roles = {}
    for output in outputs:
        role = next((role for role, name in spec.outputs.items() if name == output.name), None) or _role(output)
        if role in known or (role is None and not spec.outputs):
            return None
        if role is not None:
            known[role] = output
    return known if {"boxes", "scores", "classes"} <= known.keys() else None


def _is_caffe(shape: tuple[int | str, ...]) -> bool:
    return len(shape) == 4 and shape[1] == 1 and shape[3] == _CAFFE_ROW


def _role(output: TensorSpec) -> Role | None:
    """What one of several outputs is, by its shape, its dtype and its name."""
    name, rank = output.name.lower(), len(output.shape)
    if rank == 3 and output.shape[2] == 4 and is_float(output):
        return "boxes"
    if rank == 1 or (rank == 2 and (output.shape[1] == 1 or any(word in name for word in _COUNT_NAMES))):
        return "count"
    if rank != 2:
        return None
    if not is_float(output) or any(word in name for word in _CLASS_NAMES):
        return "classes"
    return "scores" if any(word in name for word in _SCORE_NAMES) else None


def classes(found: Roles, spec: DetectionSpec) -> int | None:  # noqa: ARG001 - a head's form
    """The outputs do not tell."""
    return None


def candidates(arrays: Arrays, spec: DetectionSpec, size: Size, rules: DetectionRules) -> Iterator[Detections]:
    """The rows that score enough."""
    for boxes, scores, numbers in _pictures(arrays):
        with np.errstate(invalid="ignore"):
            enough = (scores >= rules.least_score) & (numbers >= 0) & (numbers < _MOST_CLASSES)
        yield Detections(
            edges(boxes[enough], spec, size), scores[enough].astype(np.float64), numbers[enough].astype(np.int64)
        )


def _pictures(arrays: Arrays) -> Iterator[tuple[Array, Array, Array]]:
    """Boxes (k, 4), scores (k,) and classes (k,) of each picture."""
    if len(arrays) == 1 and arrays["boxes"].ndim == 4:
        for rows in arrays["boxes"][:, 0]:
            there = rows[rows[:, 0] >= 0]  # a negative picture ends the list
            yield there[:, 3:7], there[:, 2], there[:, 1]
    elif len(arrays) == 1:
        for rows in arrays["boxes"]:
            yield rows[:, :4], rows[:, 4], rows[:, 5]
    else:
        counts = arrays.get("count")
        for index, boxes in enumerate(arrays["boxes"]):
            last = len(boxes) if counts is None else int(counts.reshape(-1)[index])
            yield boxes[:last], arrays["scores"][index, :last], arrays["classes"][index, :last]


HEAD = Head(
    "nms_in_graph",
    "one float output (N, detections, 6) or (1, 1, detections, 7), or outputs boxes (N, detections, 4), scores and "
    "classes (N, detections)",
    recognise,
    roles,
    classes,
    candidates,
    suppresses=False,
)
