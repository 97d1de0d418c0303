"""Find out how a detector's outputs are read: from what the user says, their shapes, and the values they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from pydantic import ValidationError

from sanderling.core.errors import EngineError, OptionError
from sanderling.core.progress import Event, Progress
from sanderling.core.tensor import Array, Feeds, TensorSpec
from sanderling.measure.samples import Samples
from sanderling.model.detection import DetectionSpec, parse_detection, written_fields
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions
from sanderling.run.vision.reading import DetectionReader, find_reader

_LOOKED_AT = 4  # samples
_ROUNDING = 1e-3
_LARGEST_SHARE = 2.0  # of a side of the model's input; a box may reach over the edge
_LARGEST_OFFSET = 32.0  # in cells; e to that power is no picture's side
_FEW = 0.05


def chosen_reader(
    text: str | None, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> DetectionReader | None:
    """What reads the outputs, as ``--detection`` says, or as their shapes show; None for other models.

    Raises:
        OptionError: the text cannot be read, or does not fit the outputs.
    """
    return find_reader(inputs, outputs, parse_detection(text) if text is not None else None)


def settled(
    reader: DetectionReader, text: str | None, model: onnx.ModelProto, samples: Samples, progress: Progress
) -> DetectionReader:
    """Look at what the float model gives for a few samples, where shapes cannot tell what numbers mean.

    Args:
        reader: as shapes and ``text`` say.
        text: of ``--detection``; what it says is held to, or refused.
        model: the float graph.
        samples: to run it on.
        progress: told what was changed.

    Raises:
        OptionError: the values are not what the text says, or mean nothing that is known.
    """
    given = written_fields(text) if text is not None else frozenset()
    calls = _outputs(model, samples)
    changed = {**_scores(reader, calls), **_boxes(reader, calls)}
    for field, (value, why) in changed.items():
        if field in given:
            said = getattr(reader.spec, field)
            raise OptionError(f"detection: {field} are said to be {said!r}, but {why}: expected {value!r}")
        reason = f"{field} are read as {value!r}: {why}"
        progress.event(Event(kind="detection-recognised", subject=reader.spec.head, reason=reason))
    spec = reader.spec.model_dump() | {field: value for field, (value, _) in changed.items()}
    if spec["units"] != "cells":
        spec["strides"] = ()
    try:
        return replace(reader, spec=DetectionSpec.model_validate(spec))
    except ValidationError as error:
        raise OptionError(f"detection: {error.errors()[0]['msg']}") from error


def _outputs(model: onnx.ModelProto, samples: Samples) -> list[Feeds]:
    try:
        executable = engine().load(model.SerializeToString(), EngineOptions())
    except EngineError:  # the build says so where it loads the variants
        return []
    try:
        return [executable.run(samples.one(index)) for index in range(min(_LOOKED_AT, len(samples)))]
    finally:
        executable.close()


_Change = dict[str, tuple[Any, str]]


def _scores(reader: DetectionReader, calls: Sequence[Feeds]) -> _Change:
    """Whether scores are probabilities."""
    head, form = reader.spec.head, reader.spec.scores
    found = [_score_values(head, reader.arrays(call)) for call in calls]
    values = [each for each in found if each.size]  # suppression in the graph may leave nothing
    if not values:
        return {}
    low, high = min(float(each.min()) for each in values), max(float(each.max()) for each in values)
    inside = low >= -_ROUNDING and high <= 1 + _ROUNDING
    told = f"they are {low:.3g} to {high:.3g}"
    if form == "probability" and not inside and head != "nms_in_graph":
        return {"scores": ("sigmoid", told)}
    if form == "softmax" and inside and all(np.abs(each.sum(axis=-1) - 1).max() < _ROUNDING for each in values):
        return {"scores": ("probability", f"{told}, and the classes' sum is 1")}
    if form == "sigmoid" and inside:
        return {"scores": ("probability", told)}
    return {}


def _score_values(head: str, arrays: dict[Any, Array]) -> Array:
    boxes = arrays["boxes"]
    if head == "yolov8":
        return boxes[:, 4:]
    if head in ("yolov5", "yolox"):
        return boxes[:, :, 4:]
    return np.asarray(arrays.get("scores", boxes))


def _boxes(reader: DetectionReader, calls: Sequence[Feeds]) -> _Change:
    """Whether boxes are in the unit that is expected."""
    head, units = reader.spec.head, reader.spec.units
    if head in ("centernet", "db_text") or not calls:
        return {}
    sides = np.concatenate([_sides(head, reader.arrays(call)) for call in calls])
    largest = float(np.abs(sides).max(initial=0.0))
    told = f"the largest of their numbers is {largest:.3g}"
    if units == "pixels" and 0 < largest <= _LARGEST_SHARE:
        return {"units": ("shares", told)}
    if (units == "shares" and largest > _LARGEST_SHARE * 4) or (units == "cells" and largest > _LARGEST_OFFSET):
        return {"units": ("pixels", told)}
    if head == "ssd" and units == "shares":
        return _order(reader, sides)
    return {}


def _order(reader: DetectionReader, sides: Array) -> _Change:
    """Whether boxes of SSD are edges, centres with sides, or offsets from priors that nobody has listed."""
    turned = float(((sides[:, 2] < sides[:, 0]) | (sides[:, 3] < sides[:, 1])).mean())
    if reader.spec.boxes != "xyxy" or turned <= _FEW:
        return {}
    if float((sides[:, 2:] < 0).mean()) > _FEW:
        raise OptionError(
            f"detection: {turned:.0%} of the boxes have a right edge before the left one, and negative sides: they "
            "look like offsets from prior boxes; list these with --detection "
            '\'{"head": "ssd", "priors": {"strides": […], "sizes": […]}}\''
        )
    return {"boxes": ("cxcywh", f"{turned:.0%} of them have a right edge before the left one")}


def _sides(head: str, arrays: dict[Any, Array]) -> Array:
    """The four numbers of every box, shape (k, 4)."""
    boxes = arrays["boxes"]
    if head == "yolov8":
        boxes = boxes[:, :4].transpose(0, 2, 1)
    elif boxes.ndim == 4:
        boxes = boxes[..., 3:]
    return boxes[..., :4].reshape(-1, 4).astype(np.float64)
