"""Where the pixels of a picture lie in a model's input, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sanderling.core.errors import DataError
from sanderling.core.tensor import Array
from sanderling.model.preprocessing import Preprocessing


@dataclass(frozen=True)
class Placement:
    """How a source's pixels map to the model's: ``model = source * scale + offset``, on each axis.

    Coordinates are those of edges: 0 is the left edge of the first pixel, ``source_width`` the right one of the last.

    Attributes:
        scale_x: model pixels per source pixel, > 0.
        scale_y: model pixels per source pixel, > 0.
        offset_x: model pixels; above 0 where a letterbox pads, below 0 where a crop cuts.
        offset_y: model pixels.
        source_width: pixels.
        source_height: pixels.
    """

    scale_x: float
    scale_y: float
    offset_x: float
    offset_y: float
    source_width: int
    source_height: int

    def to_source(self, boxes: Array) -> npt.NDArray[np.float32]:
        """Boxes of the model's input as boxes of the picture, cut at its edges.

        Args:
            boxes: float, shape (N, 4): left, top, right and bottom in pixels of the model's input.

        Returns:
            float32, shape (N, 4), in pixels of the source.
        """
        return np.clip((boxes - self._offsets) / self._scales, 0, self._limits).astype(np.float32)

    def to_model(self, boxes: Array) -> npt.NDArray[np.float32]:
        """Boxes of the picture as boxes of the model's input; see ``to_source``."""
        return (boxes * self._scales + self._offsets).astype(np.float32)

    @property
    def _scales(self) -> Array:
        return np.array([self.scale_x, self.scale_y] * 2)

    @property
    def _offsets(self) -> Array:
        return np.array([self.offset_x, self.offset_y] * 2)

    @property
    def _limits(self) -> Array:
        return np.array([self.source_width, self.source_height] * 2)


@dataclass(frozen=True)
class Fit:
    """What resizing has to do: a region of the source that fills a rectangle of the model's input.

    Attributes:
        box: left, top, right and bottom of the region, source pixels.
        left: of the rectangle, model pixels.
        top: of the rectangle, model pixels.
        width: of the rectangle, model pixels.
        height: of the rectangle, model pixels.
        scaled: width and height that the whole picture would have, model pixels.
        cut: left and top of the region in it.
    """

    box: tuple[float, float, float, float]
    left: int
    top: int
    width: int
    height: int
    scaled: tuple[int, int]
    cut: tuple[int, int] = (0, 0)

    def placement(self, source_width: int, source_height: int) -> Placement:
        """The mapping of coordinates that this makes."""
        scale_x = self.width / (self.box[2] - self.box[0])
        scale_y = self.height / (self.box[3] - self.box[1])
        offset_x, offset_y = self.left - self.box[0] * scale_x, self.top - self.box[1] * scale_y
        return Placement(scale_x, scale_y, offset_x, offset_y, source_width, source_height)


def fit(preprocessing: Preprocessing, width: int, height: int) -> Fit:
    """How a picture of ``width`` × ``height`` pixels gets into the model's input.

    Raises:
        DataError: ``resize`` is ``none`` and the picture has another size.
    """
    wanted_width, wanted_height = preprocessing.width, preprocessing.height
    if preprocessing.resize == "none" and (width, height) != (wanted_width, wanted_height):
        raise DataError(
            f"picture has {width}×{height} pixels: expected {wanted_width}×{wanted_height} (resize is 'none')"
        )
    if preprocessing.resize == "shorter":
        return _cropped(preprocessing, width, height)
    if preprocessing.resize == "letterbox":
        return _letterboxed(preprocessing, width, height)
    size = (wanted_width, wanted_height)
    return Fit((0, 0, width, height), 0, 0, *size, scaled=size)


def place(preprocessing: Preprocessing, width: int, height: int) -> Placement:
    """Where the pixels of a picture of ``width`` × ``height`` pixels come to lie; see ``fit``."""
    return fit(preprocessing, width, height).placement(width, height)


def _cropped(preprocessing: Preprocessing, width: int, height: int) -> Fit:
    """Only the region that the crop keeps is resampled: a long thin picture must not cost its whole length."""
    size = (preprocessing.width, preprocessing.height)
    short = preprocessing.resize_to or max(size)
    scaled = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
    left, top = (round((have - want) / 2) for have, want in zip(scaled, size, strict=True))
    ratio_x, ratio_y = width / scaled[0], height / scaled[1]
    box = (left * ratio_x, top * ratio_y, (left + size[0]) * ratio_x, (top + size[1]) * ratio_y)
    return Fit(box, 0, 0, *size, scaled=scaled, cut=(left, top))


def _letterboxed(preprocessing: Preprocessing, width: int, height: int) -> Fit:
    """The whole picture with its proportions, as Ultralytics' ``LetterBox`` rounds them."""
    ratio = min(preprocessing.width / width, preprocessing.height / height)
    inner_width, inner_height = max(round(width * ratio), 1), max(round(height * ratio), 1)
    centred = preprocessing.anchor == "center"
    left = (preprocessing.width - inner_width) // 2 if centred else 0
    top = (preprocessing.height - inner_height) // 2 if centred else 0
    size = (inner_width, inner_height)
    return Fit((0, 0, width, height), left, top, *size, scaled=size)
