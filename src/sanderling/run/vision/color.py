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
_AT_ONCE = 32  # pixels of a row that OpenCV converts at once; what is left over it converts one by one
_LOWEST_LUMA = 16  # of narrow standards: what lies below counts as black, as OpenCV has it
FACTOR_BITS = 20  # of fractions in ``factors_as_computed``
COARSE_BITS = 14  # of those that float32 adds up without rounding: 14, and 10 for 835 levels
_OPENCV = {  # luma's factor, V in red, U and V in green, and U in blue, in 2^-20
    "bt601-narrow": (1220542, 1673527, -409993, -852492, 2116026),
    "bt601-wide": (1 << 20, 22987 << 6, -5636 << 6, -11698 << 6, 29049 << 6),
}
GRAY_AS_COMPUTED = (19595 / 65536, 38470 / 65536, 7471 / 65536)  # Pillow's fixed point for those of BT.601


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


def factors_as_computed(standard: str) -> Array:
    """Red, green and blue as factors of Y, U and V above ``zeros_of``, in 2^-20, int64 (3, 3).

    Sums are rounded half up. Factors are OpenCV's where it has some, whole multiples of 2^-14 elsewhere: those of the
    standard to three decimals, so that a level's fifth at most lies between.
    """
    if standard in _OPENCV:
        luma, red_v, green_u, green_v, blue_u = _OPENCV[standard]
        return np.array([[luma, 0, red_v], [luma, green_u, green_v], [luma, blue_u, 0]], np.int64)
    exact = np.array(VIDEO_STANDARDS[standard].rows)[:, :3]
    coarse: Array = np.rint(exact * (1 << COARSE_BITS)).astype(np.int64)
    return coarse << (FACTOR_BITS - COARSE_BITS)


def zeros_of(standard: str) -> Array:
    """Y, U and V of black, int64 (3,); luma below is black too."""
    return np.array([_LOWEST_LUMA if VIDEO_STANDARDS[standard].narrow else 0, 128, 128], np.int64)


def whole(frame: Frame) -> Region:
    """All of a frame."""
    return Region(0, frame.height, 0, frame.width)


def region_around(frame: Frame, top: int, bottom: int, left: int, right: int) -> Region:
    """A small region with these pixels that the format can be cut at, and that is converted quickly."""
    if frame.format not in PLANAR_FORMATS:
        return Region(top, bottom, left, right)
    left, right = left // 2 * 2, (right + 1) // 2 * 2
    if (right - left) % _AT_ONCE > _AT_ONCE // 2:
        right = min(left + -(-(right - left) // _AT_ONCE) * _AT_ONCE, frame.width)
    return Region(top // 2 * 2, (bottom + 1) // 2 * 2, left, right)


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
        return _gray(pixels, frame.format, out)
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
        u, v = (wide[:, :, 1], wide[:, :, 0]) if frame.format == "nv21" else (wide[:, :, 0], wide[:, :, 1])
        pixels = _by_standard(frame.standard, luma, u, v, order, colored)
    if color == "gray":
        return _gray(pixels, "rgb", out)
    result: Pixels = pixels
    return result


def _by_standard(standard: str, luma: Pixels, u: Pixels, v: Pixels, order: str, out: Pixels | None) -> Pixels:
    """Planes of one size by the standard's equations; OpenCV has none but those of BT.601."""
    cv2 = opencv()
    if standard == "bt601-wide":
        jpeg: Pixels = cv2.cvtColor(cv2.merge([luma, v, u]), _code(f"YCrCb2{order.upper()}"), dst=out)
        return jpeg
    factors, zeros = factors_as_computed(standard), zeros_of(standard)
    factors = factors if order == "rgb" else factors[::-1]
    rows = np.column_stack([factors, (1 << (FACTOR_BITS - 1)) - factors @ zeros]) / (1 << FACTOR_BITS)
    floats = cv2.merge([cv2.max(luma, float(zeros[0])), u, v]).astype(np.float32)
    mixed = cv2.transform(floats, rows, dst=floats)
    levels: Pixels = np.clip(mixed, 0, 255, out=mixed).astype(np.uint8)
    return levels


def _gray(pixels: Pixels, order: str, out: Pixels | None) -> Pixels:
    """Grey as Pillow rounds it, half up; OpenCV's grey has other last bits, and its sums of bytes go half to even."""
    cv2 = opencv()
    if order == "rgba":
        pixels = cv2.cvtColor(pixels, _code("RGBA2RGB"))
    shares = GRAY_AS_COMPUTED[::-1] if order == "bgr" else GRAY_AS_COMPUTED
    gray = out if out is not None and out.ndim == 2 else np.empty(pixels.shape[:2], np.uint8)
    mixed = cv2.transform(pixels.astype(np.float32), np.array([[*shares, 0.5]]))
    np.copyto(gray, mixed, casting="unsafe")
    return gray


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


def planes_memory(height: int, width: int) -> Pixels:
    """Room for ``split``, uint8 (3, height, width).

    Planes begin at different places of a vector: where they do not, OpenCV writes them past the cache, which takes many
    times as long when they are read again.
    """
    flat = np.empty((3, height * width + 1), np.uint8)
    return flat[:, : height * width].reshape(3, height, width)


def split(pixels: Array, planes: Array) -> Array:
    """Channels of pixels as planes.

    Args:
        pixels: uint8, shape (H, W, 3) or (H, W).
        planes: of ``planes_memory``, written where there are channels.

    Returns:
        ``planes``, or grey pixels as (1, H, W).
    """
    if pixels.ndim == 2:
        return pixels[None]
    opencv().split(pixels, list(planes))
    return planes
