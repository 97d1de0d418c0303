"""What is to be found on pictures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sanderling.core.errors import DataError
from sanderling.core.tensor import Array, TensorSpec
from sanderling.run.vision.detections import Floats, Numbers
from sanderling.run.vision.reading import DetectionReader, no_detector


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


def check_objects(objects: Objects | None, outputs: tuple[TensorSpec, ...], reader: DetectionReader | None) -> None:
    """Check that the model is a detector, and that objects are of classes that its output has.

    Raises:
        DataError: there are objects, and the outputs do not fit them.
    """
    if objects is None:
        return
    if reader is None:
        raise DataError(f"the data has boxes, but the model is no detector: {no_detector(outputs)}")
    highest = int(objects.classes.max())
    if reader.classes is not None and highest >= reader.classes:
        raise DataError(
            f"objects have classes up to {highest}: the model's output has {reader.classes} (0…{reader.classes - 1})"
        )
