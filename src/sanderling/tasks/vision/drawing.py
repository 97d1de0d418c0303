"""Draw what was found onto frames: boxes with their labels, or a frame's classes."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sanderling.run.vision.color import to_bgr
from sanderling.run.vision.frames import Frame
from sanderling.run.vision.opencv import opencv

if TYPE_CHECKING:
    from PIL import ImageFont

    from sanderling.tasks.vision.classification import Label
    from sanderling.tasks.vision.detection import Found

Pixels = npt.NDArray[np.uint8]
_Rectangle = tuple[int, int, int, int]
Color = tuple[int, int, int]
_GOLDEN = 0.618033988749895
_BRIGHT = 140
_SCORE_LETTERS = 6
_LEAST_NAME = 8  # letters, and at most as many as would fill half of the picture
_SMALLEST_LETTERS_PX, _LARGEST_LETTERS_PX = 11, 36


def draw_found(frame: Frame, found: Sequence[Found]) -> Frame:
    """The frame in BGR with a box and a label for each object; a pipeline's drawer. The given one stays as it is.

    Each class has its colour, each followed object where objects are followed. A label stands above its box, or where
    it covers no other label.
    """
    pixels = to_bgr(frame)
    width = max(1, round(min(frame.width, frame.height) / 240))
    letters = letter_height(frame)
    for each in reversed(found):  # the surest are drawn last, over the others
        _draw_box(pixels, each, _color_of(each), width)
    taken: list[_Rectangle] = []
    for each in found:
        number = "" if each.track is None else f"#{each.track} "
        tile = label_tile(number + _words(each.label, each.score, frame), _color_of(each), letters)
        taken.append(_place(pixels, tile, each.box, each.corners[0] if each.corners else each.box[:2], taken))
    return replace(frame, pixels=pixels, format="bgr")


def draw_labels(frame: Frame, labels: Sequence[Label]) -> Frame:
    """The frame in BGR with its likeliest classes in the upper left corner; a pipeline's drawer."""
    pixels = to_bgr(frame)
    top = 0
    for label in labels:
        tile = label_tile(_words(label.label, label.probability, frame), (40, 40, 40), letter_height(frame))
        _paste(pixels, tile, 0, top)
        top += len(tile)
    return replace(frame, pixels=pixels, format="bgr")


def draw_text(frame: Frame, text: str) -> Frame:
    """The frame in BGR with a line in the lower left corner."""
    pixels = to_bgr(frame)
    tile = label_tile(text, (40, 40, 40), letter_height(frame))
    _paste(pixels, tile, 0, frame.height - len(tile))
    return replace(frame, pixels=pixels, format="bgr")


def letter_height(frame: Frame) -> int:
    """Of labels on a frame, pixels: they are to be read, and to cover little."""
    return max(_SMALLEST_LETTERS_PX, min(round(min(frame.width, frame.height) / 32), _LARGEST_LETTERS_PX))


def color_of(number: int) -> Color:
    """A colour in BGR order that differs from those of the numbers nearby."""
    red, green, blue = colorsys.hsv_to_rgb((number * _GOLDEN) % 1.0, 0.75, 0.95)
    return round(255 * blue), round(255 * green), round(255 * red)


def _color_of(found: Found) -> Color:
    return color_of(found.index if found.track is None else found.track)


def _words(name: str, share: float, frame: Frame) -> str:
    """A class with its score; a long name is cut, so that the score is to be seen and the picture behind it too."""
    most = max(round(frame.width / letter_height(frame)) - _SCORE_LETTERS, _LEAST_NAME)
    short = name if len(name) <= most else name[: most - 1].rstrip(" ,") + "…"
    return f"{short} {100 * share:.0f} %"


@lru_cache(maxsize=1024)
def label_tile(text: str, color: Color, letters_px: int) -> Pixels:
    """A text on a coloured ground, uint8 (h, w, 3) in BGR order: letters dark or bright, whichever is better read."""
    from PIL import Image, ImageDraw

    font = _font(letters_px)
    left, _, right, _ = font.getbbox(text)
    margin = max(2, letters_px // 5)
    size = (max(round(right - left), 1) + 2 * margin, round(letters_px * 1.25) + margin)
    blue, green, red = color
    ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > _BRIGHT else "white"
    image = Image.new("RGB", size, (red, green, blue))
    ImageDraw.Draw(image).text((margin - left, size[1] / 2), text, font=font, fill=ink, anchor="lm")
    return np.ascontiguousarray(np.asarray(image)[:, :, ::-1])


@lru_cache(maxsize=8)
def _font(letters_px: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    from PIL import ImageFont

    return ImageFont.load_default(letters_px)


def _draw_box(pixels: Pixels, found: Found, color: Color, width: int) -> None:
    cv2 = opencv()
    if found.corners is not None:
        corners = np.round(np.array(found.corners)).astype(np.int32)
        cv2.polylines(pixels, [corners], isClosed=True, color=color, thickness=width, lineType=cv2.LINE_AA)
        return
    left, top, right, bottom = (round(side) for side in found.box)
    cv2.rectangle(pixels, (left, top), (right - 1, bottom - 1), color, width)


def _place(
    pixels: Pixels,
    tile: Pixels,
    box: tuple[float, float, float, float],
    corner: tuple[float, float],
    taken: Sequence[_Rectangle],
) -> _Rectangle:
    """Paste a label above its box's corner, below that, or below the box: where it covers no other label."""
    height, width = tile.shape[:2]
    left = max(0, min(round(corner[0]), pixels.shape[1] - width))
    tops = (round(corner[1]) - height, round(corner[1]), round(box[3]), round(box[3]) - height)
    possible = [top for top in tops if 0 <= top <= pixels.shape[0] - height] or [max(0, pixels.shape[0] - height)]
    free = [top for top in possible if not any(_meet((left, top, width, height), other) for other in taken)]
    top = (free or possible)[0]
    _paste(pixels, tile, left, top)
    return left, top, width, height


def _meet(one: _Rectangle, other: _Rectangle) -> bool:
    return (
        one[0] < other[0] + other[2]
        and other[0] < one[0] + one[2]
        and one[1] < other[1] + other[3]
        and other[1] < one[1] + one[3]
    )


def _paste(pixels: Pixels, tile: Pixels, left: int, top: int) -> None:
    """Copy what of a tile lies inside the picture."""
    top = max(top, 0)
    inside = tile[: max(pixels.shape[0] - top, 0), : max(pixels.shape[1] - left, 0)]
    pixels[top : top + len(inside), left : left + inside.shape[1]] = inside
