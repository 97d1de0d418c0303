"""What a detector found on pictures, read from its output, and what there was to find."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sanderling.core.errors import DataError
from sanderling.core.tensor import Array, TensorSpec

MOST_DETECTIONS = 100
_LOWEST_SCORE = 0.001
_MOST_CANDIDATES = 1_000
_DUPLICATE_IOU = 0.65
_BOX_SIDES = 4

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Objects:
    """What is to be found on the pictures, padded to the same number on each.

    Attributes:
        boxes: float64, shape (n, m, 4): left, top, right, bottom in pixels of the model's input.
        classes: int64, shape (n, m); −1 where there is no object.
    """

    boxes: Floats
    classes: Numbers

    def __len__(self) -> int:
        return len(self.classes)

    def pick(self, rows: slice | Numbers) -> Objects:
        """The objects of some pictures."""
        return Objects(self.boxes[rows], self.classes[rows])


@dataclass(frozen=True)
class Detections:
    """What a model found on one picture, best first.

    Attributes:
        boxes: float64, shape (k, 4): left, top, right, bottom in pixels of the model's input.
        scores: float64, shape (k,).
        classes: int64, shape (k,).
    """

    boxes: Floats
    scores: Floats
    classes: Numbers


def detector_classes(outputs: tuple[TensorSpec, ...]) -> int | None:
    """Number of classes when the model looks like YOLOv8: one float output (N, 4 + C, anchors), anchors > 4 + C."""
    if len(outputs) != 1 or len(outputs[0].shape) != 3 or not outputs[0].dtype.startswith("float"):
        return None
    _, rows, anchors = outputs[0].shape
    if not isinstance(rows, int) or rows <= _BOX_SIDES or (isinstance(anchors, int) and anchors <= rows):
        return None
    return rows - _BOX_SIDES


def read_detections(raw: Array) -> list[Detections]:
    """Read an output in the form of YOLOv8's, and keep the best of boxes that lie on each other.

    An anchor counts once for each class that it gives a score of at least 0.001. Of two boxes of one class with an
    intersection over union above 0.65 the better is kept; a picture has at most 100.

    Args:
        raw: float, shape (n, 4 + C, anchors): centre x, centre y, width, height, then the scores of C classes.
    """
    return [_read_picture(picture.astype(np.float64)) for picture in raw]


def _read_picture(raw: Floats) -> Detections:
    sides, scores = raw[:_BOX_SIDES], raw[_BOX_SIDES:]
    classes, anchors = np.nonzero(scores >= _LOWEST_SCORE)
    found = scores[classes, anchors]
    order = np.argsort(-found, kind="stable")[:_MOST_CANDIDATES]
    classes, anchors = classes[order], anchors[order]
    centre, half = sides[:2, anchors], sides[2:, anchors] / 2
    boxes = np.concatenate([centre - half, centre + half]).T  # (k, 4)
    kept = without_duplicates(boxes, classes)
    return Detections(boxes[kept], found[order][kept], classes[kept].astype(np.int64))


def without_duplicates(boxes: Floats, classes: Numbers) -> Numbers:
    """Non-maximum suppression within each class.

    Args:
        boxes: float64, shape (k, 4), best first.
        classes: int64, shape (k,).

    Returns:
        int64: positions of those that stay, best first, at most 100.
    """
    kept: list[int] = []
    waiting = np.arange(len(boxes))
    while len(waiting) and len(kept) < MOST_DETECTIONS:
        best, waiting = int(waiting[0]), waiting[1:]
        kept.append(best)
        overlap = pairwise_iou(boxes[best : best + 1], boxes[waiting])[0]
        waiting = waiting[(classes[waiting] != classes[best]) | ~(overlap > _DUPLICATE_IOU)]
    return np.array(kept, np.int64)


def pairwise_iou(boxes: Floats, others: Floats) -> Floats:
    """Intersection over union of (k, 4) with (m, 4): float64, shape (k, m).

    It is 0 for a box that is empty, inside out or not finite.
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        low = np.maximum(boxes[:, None, :2], others[None, :, :2])
        high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
        common = np.prod(np.maximum(high - low, 0), axis=2)
        areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)[:, None] + np.prod(others[:, 2:] - others[:, :2], axis=1)
        shares: Floats = np.nan_to_num(common / (areas - common), nan=0.0, posinf=0.0)
    return shares


def read_objects(boxes: Array, classes: Array, *, count: int) -> Objects:
    """Check boxes and classes of ``count`` pictures.

    Args:
        boxes: float or integer, shape (count, m, 4): left, top, right, bottom.
        classes: integers, shape (count, m); −1 where there is no object.
        count: number of pictures.

    Raises:
        DataError: another shape or dtype, a box without area or with values that are not finite, or no object at all.
    """
    wanted = f"expected boxes ({count}, m, 4): left, top, right, bottom; and integer classes ({count}, m), −1 for none"
    fits = boxes.ndim == 3 and classes.ndim == 2 and len(classes) == count and boxes.shape == (*classes.shape, 4)
    if not fits or classes.dtype.kind not in "iu" or boxes.dtype.kind not in "fiu":
        got = f"boxes are {boxes.dtype}{list(boxes.shape)}, classes {classes.dtype}{list(classes.shape)}"
        raise DataError(f"{got}: {wanted}")
    objects = Objects(boxes.astype(np.float64), classes.astype(np.int64))
    there = objects.classes >= 0
    if not there.any():
        raise DataError(f"no picture has an object (every class is negative): {wanted}")
    low, high = objects.boxes[..., :2], objects.boxes[..., 2:]
    wrong = there & ~(np.isfinite(objects.boxes).all(axis=2) & (high > low).all(axis=2))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise DataError(
            f"box {column} of picture {row} is {objects.boxes[row, column].tolist()}: expected finite pixels with "
            "left < right and top < bottom"
        )
    return objects


def check_objects(objects: Objects | None, outputs: tuple[TensorSpec, ...]) -> None:
    """Check that the model is a detector, and that objects are of classes that its output has.

    Raises:
        DataError: there are objects, and the outputs do not fit them.
    """
    if objects is None:
        return
    classes = detector_classes(outputs)
    if classes is None:
        raise DataError(
            f"the data has boxes, but the model is no detector: outputs are {'; '.join(map(str, outputs))}, and mAP "
            "needs one float output of shape (N, 4 + classes, anchors)"
        )
    highest = int(objects.classes.max())
    if highest >= classes:
        raise DataError(f"objects have classes up to {highest}: the model's output has {classes} (0…{classes - 1})")
