"""Pixels of any format as red, green and blue, or as grey."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from sanderling.core.tensor import Array
from sanderling.model.colors import DEFAULT_STANDARD, VIDEO_STANDARDS
from sanderling.model.preprocessing import ColorOrder
from sanderling.run.vision.frames import PLANAR_FORMATS, Frame
from sanderling.run.vision.opencv import opencv

Pixels = npt.NDArray[np.uint8]
_GRAY_SHARES = (19595 / 65536, 38470 / 65536, 7471 / 65536)  # Pillow's fixed point for those of BT.601


@dataclass(frozen=True)
class Region:
    """Rows and columns of a frame, ends not included; even numbers in a 4:2:0 format."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def height(self) -> int:
        """Pixels."""
        return self.bottom - self.top

    @property
    def width(self) -> int:
        """Pixels."""
        return self.right - self.left


def whole(frame: Frame) -> Region:
    """All of a frame."""
    return Region(0, frame.height, 0, frame.width)


def region_around(frame: Frame, top: int, bottom: int, left: int, right: int) -> Region:
    """The smallest region with these pixels that the format can be cut at."""
    if frame.format not in PLANAR_FORMATS:
        return Region(top, bottom, left, right)
    return Region(top // 2 * 2, (bottom + 1) // 2 * 2, left // 2 * 2, (right + 1) // 2 * 2)


def converted(frame: Frame, region: Region, color: ColorOrder, *, out: Pixels | None = None) -> Pixels:
    """Pixels of a region in the model's colours, before anything is resized.

    Args:
        frame: any format. Transparency is not looked at.
        region: of the frame.
        color: that is wanted; a grey frame stays grey.
        out: uint8, shape (H, W, 3), or (H, W) for grey: is written where a conversion is needed.

    Returns:
        uint8, shape (H, W, 3) or (H, W); a view of the frame where nothing has to be converted.
    """
    if frame.format in PLANAR_FORMATS:
        return _from_planes(frame, region, color, out)
    pixels = frame.pixels[region.top : region.bottom, region.left : region.right]
    if frame.format == color or frame.format == "gray":
        return pixels
    if color == "gray":
        return _gray(pixels, 2 if frame.format == "bgr" else 0, out)
    code = _code(f"{frame.format.upper()}2{color.upper()}")
    result: Pixels = opencv().cvtColor(pixels, code, dst=out)
    return result


def to_bgr(frame: Frame) -> Pixels:
    """The whole frame as uint8 (H, W, 3) in BGR order, for what draws and writes; a copy that may be changed."""
    pixels = converted(frame, whole(frame), "bgr")
    if pixels.ndim == 2:
        gray: Pixels = opencv().cvtColor(pixels, _code("GRAY2BGR"))
        return gray
    return pixels.copy() if np.shares_memory(pixels, frame.pixels) else pixels


def _from_planes(frame: Frame, region: Region, color: ColorOrder, out: Pixels | None) -> Pixels:
    cv2 = opencv()
    luma = frame.pixels[region.top : region.bottom, region.left : region.right]
    chroma = _chroma(frame, region)
    order = "rgb" if color == "gray" else color
    colored = out if out is not None and out.ndim == 3 else None
    if frame.standard == DEFAULT_STANDARD:
        kind = "NV21" if frame.format == "nv21" else "NV12"
        pixels = cv2.cvtColorTwoPlane(luma, chroma, _code(f"YUV2{order.upper()}_{kind}"), dst=colored)
    else:
        wide = cv2.resize(chroma, luma.shape[::-1], interpolation=cv2.INTER_NEAREST)
        first, second = (1, 0) if frame.format == "nv21" else (0, 1)
        merged = cv2.merge([luma, wide[:, :, first], wide[:, :, second]])
        rows = VIDEO_STANDARDS[frame.standard].rows
        pixels = cv2.transform(merged, np.array(rows if order == "rgb" else rows[::-1]), dst=colored)
    if color == "gray":
        return _gray(pixels, 0, out)
    result: Pixels = pixels
    return result


def _gray(pixels: Pixels, red: int, out: Pixels | None) -> Pixels:
    """Grey as Pillow rounds it: OpenCV's own conversion has other last bits."""
    shares = np.zeros((1, pixels.shape[2]))
    shares[0, red], shares[0, 1], shares[0, 2 - red] = _GRAY_SHARES
    result: Pixels = opencv().transform(pixels, shares, dst=out if out is not None and out.ndim == 2 else None)
    return result


def _chroma(frame: Frame, region: Region) -> Pixels:
    """U and V (NV21: V and U) side by side, uint8 (H / 2, W / 2, 2)."""
    rows = slice(region.top // 2, region.bottom // 2)
    columns = slice(region.left // 2, region.right // 2)
    below = frame.pixels[frame.height :]
    size = (frame.height // 2, frame.width // 2)
    if frame.format != "i420":
        pairs: Pixels = below.reshape(*size, 2)[rows, columns]
        return pairs
    planes = np.ascontiguousarray(below).reshape(2, *size)
    merged: Pixels = opencv().merge([planes[0, rows, columns], planes[1, rows, columns]])
    return merged


@cache
def _code(name: str) -> int:
    return int(getattr(opencv(), f"COLOR_{name}"))


def split(pixels: Array, planes: Array) -> Array:
    """Channels of pixels as planes.

    Args:
        pixels: uint8, shape (H, W, 3) or (H, W).
        planes: uint8, shape (3, H, W), written where there are channels.

    Returns:
        ``planes``, or grey pixels as (1, H, W).
    """
    if pixels.ndim == 2:
        return pixels[None]
    opencv().split(pixels, list(planes))
    return planes
