"""What a detector found on one picture, and by which rules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Detections:
    """What a model found on one picture, best first.

    Attributes:
        boxes: float64, shape (k, 4): left, top, right, bottom in pixels, of the model's input or of the source.
        scores: float64, shape (k,).
        classes: int64, shape (k,).
        quads: float64, shape (k, 4, 2): corners of boxes that may be turned, clockwise; None where none are.
    """

    boxes: Floats
    scores: Floats
    classes: Numbers
    quads: Floats | None = None

    def __len__(self) -> int:
        return len(self.scores)

    def pick(self, rows: Numbers | npt.NDArray[np.bool_] | slice) -> Detections:
        """Some of them, in that order."""
        quads = None if self.quads is None else self.quads[rows]
        return Detections(self.boxes[rows], self.scores[rows], self.classes[rows], quads)


@dataclass(frozen=True)
class DetectionRules:
    """Which candidates count.

    Attributes:
        least_score: in [0, 1].
        most_overlap: intersection over union up to which two boxes are two objects, in [0, 1].
        agnostic: boxes of different classes are held against each other too.
        most: detections of a picture.
        candidates: so many of the best are looked at.
    """

    least_score: float = 0.25
    most_overlap: float = 0.5
    agnostic: bool = False
    most: int = 300
    candidates: int = 1_000


# What mAP is measured by: the tail of weak detections counts too.
EVALUATION_RULES = DetectionRules(least_score=0.001, most_overlap=0.65, most=100)


def no_detections() -> Detections:
    """Of a picture on which nothing was found."""
    return Detections(np.empty((0, 4)), np.empty(0), np.empty(0, np.int64))
