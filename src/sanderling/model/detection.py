"""How a detector's outputs are read, as data that every host can carry out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sanderling.core.errors import OptionError
from sanderling.core.json_text import json_object

HeadName = Literal["yolov5", "yolov8", "yolox", "ssd", "centernet", "detr", "nms_in_graph", "db_text"]
ScoreForm = Literal["probability", "sigmoid", "softmax"]
BoxForm = Literal["cxcywh", "xyxy", "yxyx"]
BoxUnit = Literal["pixels", "shares", "cells", "priors"]
Role = Literal["boxes", "scores", "classes", "count", "offsets"]
HEAD_NAMES: tuple[HeadName, ...] = get_args(HeadName)


class PriorBoxes(BaseModel):
    """Boxes that a detector's offsets start from: of each level, in every cell, the same sizes.

    The order is that of the published networks: levels, rows, columns, sizes.

    Attributes:
        strides: of each level, pixels of the model's input; a level has ``ceil(side / stride)`` cells.
        sizes: of each level, widths and heights in pixels of the model's input.
        variances: factors on offsets of the centre and of the logarithm of the sides.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    strides: tuple[int, ...] = Field(min_length=1)
    sizes: tuple[tuple[tuple[float, float], ...], ...]
    variances: tuple[float, float] = (0.1, 0.2)

    @model_validator(mode="after")
    def _consistent(self) -> PriorBoxes:
        if len(self.sizes) != len(self.strides):
            raise ValueError(f"sizes are of {len(self.sizes)} levels, strides of {len(self.strides)}")
        if min(self.strides) < 1 or any(min(side) <= 0 for level in self.sizes for side in level):
            raise ValueError("strides and sizes must be greater than 0")
        return self


class DetectionSpec(BaseModel):
    """How boxes, scores and classes are read from a model's outputs.

    Attributes:
        head: the family, whose file under ``run/vision/heads`` says which outputs it has.
        outputs: names of the outputs by role; roles that are left out are told apart by shape.
        scores: what the score outputs hold: probabilities, logits of each class by itself (``sigmoid``), or logits of
            one among all (``softmax``).
        boxes: the order of a box's numbers.
        units: what they are measured in: pixels of the model's input, ``shares`` of its sides, ``cells`` of the grid
            (offset in it and logarithm of the sides), or offsets from ``priors``.
        background: the class that stands for nothing, counted from the end if negative; None where there is none.
        strides: of the levels that have a grid, pixels of the model's input.
        priors: with the unit ``priors``.
        threshold: of ``db_text``: the least probability of a pixel that is text.
        growth: of ``db_text``: how far a region grows, as a share of its area over its circumference.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    head: HeadName
    outputs: dict[Role, str] = {}
    scores: ScoreForm = "probability"
    boxes: BoxForm = "cxcywh"
    units: BoxUnit = "pixels"
    background: int | None = None
    strides: tuple[int, ...] = ()
    priors: PriorBoxes | None = None
    threshold: float = Field(default=0.3, gt=0, lt=1)
    growth: float = Field(default=1.5, ge=0, le=10)

    @model_validator(mode="after")
    def _consistent(self) -> DetectionSpec:
        if (self.units == "priors") != (self.priors is not None):
            raise ValueError("priors are given with the unit 'priors', and with no other")
        if self.units == "cells" and not self.strides:
            raise ValueError("the unit 'cells' needs strides")
        if self.strides and min(self.strides) < 1:
            raise ValueError(f"strides must be greater than 0, got {min(self.strides)}")
        return self


# What a family's published networks give, where the package says nothing else.
FAMILY_FIELDS: dict[HeadName, dict[str, Any]] = {
    "yolov5": {},
    "yolov8": {},
    "yolox": {"units": "cells", "strides": (8, 16, 32)},
    "ssd": {"boxes": "xyxy", "units": "shares", "scores": "softmax", "background": 0},
    "centernet": {"units": "cells", "strides": (4,), "scores": "sigmoid"},
    "detr": {"units": "shares", "scores": "softmax", "background": -1},
    "nms_in_graph": {"boxes": "xyxy"},
    "db_text": {},
}


def family_spec(head: HeadName, **fields: Any) -> DetectionSpec:  # noqa: ANN401 - of any field
    """A family as its published networks are, with some fields otherwise.

    Raises:
        pydantic.ValidationError: the fields do not fit each other.
    """
    defaults = dict(FAMILY_FIELDS[head])
    if fields.get("priors") is not None:
        defaults |= {"units": "priors", "boxes": "cxcywh"}
    if fields.get("units", "cells") != "cells":
        defaults.pop("strides", None)
    if fields.get("scores") == "sigmoid":  # each class is by itself, so that none has to stand for nothing
        defaults.pop("background", None)
    return DetectionSpec.model_validate({"head": head, **defaults, **fields})


def parse_detection(text: str) -> DetectionSpec:
    """Read a family's name, a JSON object with ``head`` and what differs from it, or the path of a file of it.

    Raises:
        OptionError: the text is none of these, or a key or value is unknown.
    """
    fields = _fields(text)
    head = fields.pop("head", None)
    if head not in HEAD_NAMES:
        raise OptionError(f"detection: head is {head!r}: available are {', '.join(HEAD_NAMES)}")
    try:
        return family_spec(head, **fields)
    except ValidationError as error:
        detail = error.errors()[0]
        place = ".".join(map(str, detail["loc"])) or "detection"
        known = ", ".join(DetectionSpec.model_fields)
        raise OptionError(f"detection: {place}: {detail['msg']}; known keys are {known}") from error


def written_fields(text: str) -> frozenset[str]:
    """The fields that such a text gives itself; the others are the family's."""
    return frozenset(_fields(text))


def _fields(text: str) -> dict[str, Any]:
    if text in HEAD_NAMES:
        return {"head": text}
    source = text
    if not text.lstrip().startswith("{"):
        try:
            source = Path(text).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise OptionError(
                f"detection '{text}' is neither a family ({', '.join(HEAD_NAMES)}), nor JSON, nor a readable file"
            ) from error
    return dict(json_object(source, "detection"))
