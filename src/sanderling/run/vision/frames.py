"""One picture in memory, in the format in which its source has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from sanderling.core.errors import DataError
from sanderling.core.tensor import Array
from sanderling.model.colors import DEFAULT_STANDARD, VIDEO_STANDARDS

PixelFormat = Literal["rgb", "bgr", "rgba", "gray", "nv12", "nv21", "i420"]
PIXEL_FORMATS: tuple[PixelFormat, ...] = get_args(PixelFormat)
PLANAR_FORMATS: tuple[PixelFormat, ...] = ("nv12", "nv21", "i420")
"""Formats of a luma plane and chroma at half the resolution (4:2:0)."""

_CHANNELS = {"rgb": 3, "bgr": 3, "rgba": 4}


@dataclass(frozen=True, eq=False)
class Frame:
    """A picture; make it with ``frame_of``, which checks it.

    Attributes:
        pixels: uint8; (H, W, 3) for ``rgb`` and ``bgr``, (H, W, 4) for ``rgba``, (H, W) for ``gray``,
            (H * 3 / 2, W) for ``nv12``, ``nv21`` and ``i420``. Rows may be further apart than they are long.
        format: order of the bytes.
        width: pixels, > 0.
        height: pixels, > 0.
        timestamp_s: when it was captured, by ``time.monotonic`` for a live source, otherwise its place in the video.
        index: its number in the source, from 0; frames that were dropped are counted.
        name: the file that it is from, or empty.
        standard: of the colours of a 4:2:0 format, one of ``model.colors.VIDEO_STANDARDS``.
        reduction: how many pixels of its file are one of its own, along each side; above 1 for enormous pictures.
    """

    pixels: npt.NDArray[np.uint8]
    format: PixelFormat
    width: int
    height: int
    timestamp_s: float = 0.0
    index: int = 0
    name: str = ""
    standard: str = DEFAULT_STANDARD
    reduction: int = 1


def frame_of(
    pixels: Array | bytes | bytearray | memoryview,
    pixel_format: PixelFormat = "rgb",
    *,
    width: int | None = None,
    height: int | None = None,
    timestamp_s: float = 0.0,
    index: int = 0,
    name: str = "",
    standard: str = DEFAULT_STANDARD,
) -> Frame:
    """Check pixels and name what they are; nothing is copied.

    Args:
        pixels: uint8 in the shape that ``Frame`` states, or all bytes in a row, which need ``width`` and ``height``.
        pixel_format: one of ``PIXEL_FORMATS``.
        width: pixels; only for bytes in a row.
        height: pixels; only for bytes in a row.
        timestamp_s: see ``Frame``.
        index: see ``Frame``.
        name: see ``Frame``.
        standard: see ``Frame``.

    Raises:
        DataError: an unknown format or standard, another dtype or shape, no pixels, or an odd size of a 4:2:0 format.
    """
    if pixel_format not in PIXEL_FORMATS:
        raise DataError(f"pixel format is '{pixel_format}': expected one of {', '.join(PIXEL_FORMATS)}")
    if standard not in VIDEO_STANDARDS:
        raise DataError(f"video standard is '{standard}': expected one of {', '.join(VIDEO_STANDARDS)}")
    array = np.frombuffer(pixels, np.uint8) if isinstance(pixels, bytes | bytearray | memoryview) else pixels
    if array.dtype != np.uint8:
        raise DataError(f"{pixel_format} picture is {array.dtype}{list(array.shape)}: expected uint8")
    if array.ndim == 1:
        array = _in_rows(array, pixel_format, width, height)
    height, width = _size(array, pixel_format)
    return Frame(array, pixel_format, width, height, timestamp_s, index, name, standard)


def _in_rows(array: Array, pixel_format: PixelFormat, width: int | None, height: int | None) -> Array:
    if width is None or height is None or width <= 0 or height <= 0:
        raise DataError(f"{array.size} bytes of {pixel_format}: width and height in pixels are needed")
    _check_even(pixel_format, width, height)
    if pixel_format in PLANAR_FORMATS:
        shape: tuple[int, ...] = (height * 3 // 2, width)
    elif pixel_format == "gray":
        shape = (height, width)
    else:
        shape = (height, width, _CHANNELS[pixel_format])
    if array.size != np.prod(shape):
        raise DataError(
            f"{pixel_format} picture of {width}×{height} pixels has {array.size} bytes: expected {np.prod(shape)}"
        )
    return array.reshape(shape)


def _size(array: Array, pixel_format: PixelFormat) -> tuple[int, int]:
    """Height and width that an array's shape says."""
    if pixel_format in _CHANNELS:
        wanted = f"(H, W, {_CHANNELS[pixel_format]})"
        fits = array.ndim == 3 and array.shape[2] == _CHANNELS[pixel_format]
    else:
        wanted = "(H, W)" if pixel_format == "gray" else "(H * 3 / 2, W)"
        fits = array.ndim == 2
    if not fits or 0 in array.shape:
        raise DataError(f"{pixel_format} picture is {array.dtype}{list(array.shape)}: expected uint8 {wanted}")
    if pixel_format not in PLANAR_FORMATS:
        return array.shape[0], array.shape[1]
    rows, width = array.shape
    if rows % 3:
        raise DataError(
            f"{pixel_format} picture has {rows} rows of {width} bytes: expected height * 3 / 2 rows with an even height"
        )
    _check_even(pixel_format, width, rows * 2 // 3)
    return rows * 2 // 3, width


def _check_even(pixel_format: PixelFormat, width: int, height: int) -> None:
    if pixel_format in PLANAR_FORMATS and (width % 2 or height % 2):
        raise DataError(
            f"{pixel_format} picture has {width}×{height} pixels: 4:2:0 formats need an even width and height; "
            "crop a row or a column, or convert it to rgb"
        )
