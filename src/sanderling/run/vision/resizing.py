"""How frames of one size are resized, worked out once, with the memory that it takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sanderling.core.tensor import Array
from sanderling.model.preprocessing import Preprocessing
from sanderling.model.resampling import Taps, taps_of
from sanderling.run.vision.bands import Axis, axis_of_columns, axis_of_rows
from sanderling.run.vision.color import Region, planes_memory, region_around, whole
from sanderling.run.vision.frames import PLANAR_FORMATS, Frame
from sanderling.run.vision.opencv import opencv
from sanderling.run.vision.placing import Fit, Placement, fit
from sanderling.run.vision.strips import Strip, plan_strips

Pixels = npt.NDArray[np.uint8]
_MOST_CUT = 4  # times the pixels that are kept


@dataclass(frozen=True, eq=False)
class Resizing:
    """What frames of one size have in common.

    Attributes:
        fit: which part of the frame goes where.
        placement: the same as a mapping of coordinates.
        region: of the frame that is looked at at all.
        picked: rows and columns of the region, where every target pixel is a source pixel as it is.
        method: OpenCV's way that gives the same within a level; None where there is none.
        rows: weights of the rows of the region, with the factors of the channels in them where nothing is cut off.
        columns: weights of its columns.
        strips: of what weights make; none where something is cut off.
        overshoots: whether a filter leaves [0, 255], so that results are cut off.
        rounded: whether what is between two passes is rounded to 8 bits and cut off too, as Pillow does.
        columns_first: which pass is the first then.
        canvas: memory for a frame of which the region alone is converted; None where no part is enough.
        colored: memory for the region in the model's colours; strips have their own.
        planes: memory for its channels.
    """

    fit: Fit
    placement: Placement
    region: Region
    picked: tuple[slice | Array, slice | Array] | None
    method: int | None
    rows: Axis
    columns: Axis
    strips: tuple[Strip, ...]
    overshoots: bool
    rounded: bool
    columns_first: bool
    canvas: Pixels | None
    colored: Pixels
    planes: Pixels

    @property
    def is_exact_on_levels(self) -> bool:
        """Whether resizing yields whole levels by itself."""
        return self.picked is not None or self.method is not None

    def resized(self, pixels: Pixels) -> Pixels:
        """The region's pixels in their final size, uint8 (H, W, 3) or (H, W), where ``is_exact_on_levels``."""
        if self.picked is not None:
            return np.ascontiguousarray(pixels[self.picked[0]][:, self.picked[1]])
        if self.canvas is not None:
            if not np.may_share_memory(pixels, self.canvas):
                np.copyto(self.colored, pixels)
            pixels = self.canvas
        whole: Pixels = opencv().resize(pixels, self.fit.scaled, interpolation=self.method)
        left, top = self.fit.cut
        return whole[top : top + self.fit.height, left : left + self.fit.width]


def scaling(preprocessing: Preprocessing) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """What levels of each channel are multiplied by, and what is added then, float32 (C,)."""
    mean, std = np.asarray(preprocessing.mean, np.float64), np.asarray(preprocessing.std, np.float64)
    return (preprocessing.scale / std).astype(np.float32), (-mean / std).astype(np.float32)


def plan_resizing(preprocessing: Preprocessing, frame: Frame) -> Resizing:
    """Work out how frames of this size and format become the model's input.

    Raises:
        DataError: ``resize`` is ``none`` and the frame has another size.
    """
    found = fit(preprocessing, frame.width, frame.height)
    left, top, right, bottom = found.box
    how, antialias = preprocessing.interpolation, preprocessing.antialias
    rows = taps_of(how, frame.height, top, bottom, found.height, antialias=antialias)
    columns = taps_of(how, frame.width, left, right, found.width, antialias=antialias)
    picks = rows.picked is not None and columns.picked is not None
    method = None if picks else _method(preprocessing, found, frame)
    partly = method is not None and frame.format in PLANAR_FORMATS  # others are quickly converted, or not at all
    region = region_around(frame, *_ends(rows), *_ends(columns)) if partly or method is None else whole(frame)
    rows, columns = Taps(rows.indices - region.top, rows.weights), Taps(columns.indices - region.left, columns.weights)
    picked = None
    if rows.picked is not None and columns.picked is not None:
        picked = (_as_slice(rows.picked), _as_slice(columns.picked))
    weighed, channels, overshoots = picked is None and method is None, preprocessing.channels, how == "bicubic"
    rounded = overshoots and antialias
    down, across = _axes(preprocessing, region, rows, columns)
    strips = plan_strips(frame, region, channels, down, across) if weighed and not overshoots else ()
    size = (0, 0) if strips else (region.height, region.width)
    depth = () if channels == 1 else (3,)
    canvas = np.zeros((frame.height, frame.width, *depth), np.uint8) if partly else None
    inside = np.empty((*size, *depth), np.uint8) if canvas is None else _part(canvas, region)
    return Resizing(
        fit=found,
        placement=found.placement(frame.width, frame.height),
        region=region,
        picked=picked,
        method=method,
        rows=down,
        columns=across,
        strips=strips,
        overshoots=overshoots,
        rounded=rounded,
        columns_first=passes_columns_first(frame.height, frame.width, found),
        canvas=canvas,
        colored=inside,
        planes=planes_memory(*(size if weighed else (found.height, found.width))),
    )


def _axes(preprocessing: Preprocessing, region: Region, rows: Taps, columns: Taps) -> tuple[Axis, Axis]:
    """Weights of rows and columns; in fixed point where a rounding error between the passes would show as a level."""
    overshoots = preprocessing.interpolation == "bicubic"
    rounded = overshoots and preprocessing.antialias
    if rounded:
        rows, columns = rows.in_fixed_point(), columns.in_fixed_point()
    factors, dtype = None if overshoots else scaling(preprocessing)[0], np.dtype(np.float64 if rounded else np.float32)
    row_bytes = preprocessing.channels * max(region.width, len(columns.indices)) * dtype.itemsize
    down = axis_of_rows(rows, region.height, row_bytes, factors, dtype)
    return down, axis_of_columns(columns, region.width, dtype)


def _part(canvas: Pixels, region: Region) -> Pixels:
    return canvas[region.top : region.bottom, region.left : region.right]


def passes_columns_first(height: int, width: int, found: Fit) -> bool:
    """Whether Pillow, from version 13 on, resamples along the rows of a picture of this size first."""
    fewer = height - found.height
    return not (fewer > 0 and fewer > 2 * (width - found.width))


def _ends(taps: Taps) -> tuple[int, int]:
    """First and last (not included) source pixel that counts."""
    used = taps.indices[taps.weights != 0]
    return int(used.min()), int(used.max()) + 1


def _as_slice(indices: Array) -> slice | Array:
    """The same as a slice, which copies nothing, where they lie side by side."""
    if (np.diff(indices) == 1).all():
        return slice(int(indices[0]), int(indices[-1]) + 1)
    return indices


def _method(preprocessing: Preprocessing, found: Fit, frame: Frame) -> int | None:
    """OpenCV resizes whole frames only, and without antialiasing unless it takes means.

    Where much is cut away of what would be resized, weights are quicker, and need no memory for it.
    """
    width, height = found.scaled
    if width * height > _MOST_CUT * found.width * found.height:
        return None
    cv2 = opencv()
    shrinks = width <= frame.width and height <= frame.height
    if preprocessing.interpolation == "area":
        whole_pixels = frame.width % width == 0 and frame.height % height == 0
        return int(cv2.INTER_AREA) if shrinks and whole_pixels else None
    if preprocessing.interpolation == "bilinear" and not preprocessing.antialias:
        return int(cv2.INTER_LINEAR)
    if preprocessing.interpolation == "bicubic" and not preprocessing.antialias:
        return int(cv2.INTER_CUBIC)
    return None
