"""Pictures composed from Fashion-MNIST items on textured backgrounds, with the boxes of the items known."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.zoo.fashion_data import Split, load_fashion_mnist
from sanderling.core.arrays import write_npz
from sanderling.core.tensor import Array

SIZE_PX = 160
MOST_ITEMS = 6
SMALLEST_ITEM_PX, LARGEST_ITEM_PX = 28, 76  # side of the square that an item was drawn in
MOST_OVERLAP = 0.25  # intersection over the smaller box
_TRIES = 12
_GRIDS = (3, 8, 20)  # cells along a side of the background's texture, coarse to fine
_SOLID = 48.0  # items are opaque from this grey value on
_VISIBLE = 0.3
_STREAMS = {"train": 0, "t10k": 1}

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Scenes:
    """Pictures and the boxes on them, padded to ``MOST_ITEMS`` a picture.

    Attributes:
        images: uint8, shape (N, SIZE_PX, SIZE_PX, 3), RGB.
        boxes: float32, shape (N, MOST_ITEMS, 4): left, top, right, bottom, pixels; zeros where there is none.
        classes: int64, shape (N, MOST_ITEMS), an index into ``fashion_data.LABELS``; −1 where there is none.
    """

    images: Pixels
    boxes: Floats
    classes: Numbers


@dataclass(frozen=True)
class SceneComposer:
    """Composes scenes from items.

    Attributes:
        images: of the items, uint8, shape (K, 28, 28), 0 is background.
        labels: of the items, int64, shape (K,).
        stream: sets that are to share no background and no place need different numbers.
    """

    images: Pixels
    labels: Numbers
    stream: int

    @classmethod
    def of(cls, split: Split) -> "SceneComposer":
        """A composer of the items of one split of Fashion-MNIST."""
        return cls(*load_fashion_mnist(split), stream=_STREAMS[split])

    def compose(self, count: int, *, seed: int) -> Scenes:
        """Compose ``count`` scenes; the same items, stream and seed give the same bytes."""
        generator = np.random.default_rng([self.stream, seed])
        images = np.empty((count, SIZE_PX, SIZE_PX, 3), np.uint8)
        boxes = np.zeros((count, MOST_ITEMS, 4), np.float32)
        classes = np.full((count, MOST_ITEMS), -1, np.int64)
        for row in range(count):
            canvas = draw_background(generator)
            placed = list(self._place_items(canvas, generator))
            images[row] = np.clip(np.rint(canvas), 0, 255).astype(np.uint8)
            for column, (box, label) in enumerate(placed):
                boxes[row, column], classes[row, column] = box, label
        return Scenes(images, boxes, classes)

    def _place_items(self, canvas: Floats, generator: np.random.Generator) -> Iterator[tuple[Floats, int]]:
        """Draw one to six items into ``canvas`` and yield the box and class of each."""
        taken = np.empty((0, 4), np.float32)
        for index in generator.integers(0, len(self.images), generator.integers(1, MOST_ITEMS + 1)):
            side = int(generator.integers(SMALLEST_ITEM_PX, LARGEST_ITEM_PX + 1))
            item = resize_bilinear(self.images[index].astype(np.float32), side)
            if generator.random() < 0.5:
                item = item[:, ::-1]
            cover = np.clip(item / np.float32(_SOLID), 0, 1)  # (side, side), 0 lets the background through
            outline = bounding_box(cover > _VISIBLE)
            corner = _find_place(outline, taken, generator)
            color = generator.uniform(40, 255, 3).astype(np.float32)
            if corner is None:
                continue
            _paint(canvas, item, cover, corner, color)
            box = outline + np.array([*corner, *corner], np.float32)
            taken = np.vstack([taken, box])
            yield box, int(self.labels[index])


def draw_background(generator: np.random.Generator) -> Floats:
    """Draw a coloured texture with noise, float32, shape (SIZE_PX, SIZE_PX, 3), about 0 to 255."""
    canvas = np.empty((SIZE_PX, SIZE_PX, 3), np.float32)
    canvas[:] = generator.uniform(30, 225, 3)
    for grid in _GRIDS:
        texture = generator.standard_normal((grid, grid, 3), np.float32) * np.float32(generator.uniform(0, 30))
        canvas += resize_bilinear(texture, SIZE_PX)
    strength = np.float32(generator.uniform(2, 14))
    canvas += generator.standard_normal(canvas.shape, np.float32) * strength
    return canvas


def resize_bilinear(image: Floats, side: int) -> Floats:
    """Resize a square picture (S, S) or (S, S, C) to (side, side[, C]): pixel centres aligned, edges repeated.

    There is no anti-aliasing: ``side`` should be at least S. Sums are made element by element, so that no BLAS decides
    about the last bit.
    """
    size = len(image)
    position = np.clip(
        (np.arange(side, dtype=np.float32) + np.float32(0.5)) * np.float32(size / side) - 0.5, 0, size - 1
    )
    low = np.minimum(position.astype(np.int64), size - 2)
    share = (position - low).astype(np.float32).reshape(-1, *[1] * (image.ndim - 1))
    rows = image[low] * (1 - share) + image[low + 1] * share  # (side, S[, C])
    share = share.reshape(1, -1, *[1] * (image.ndim - 2))
    resized: Floats = rows[:, low] * (1 - share) + rows[:, low + 1] * share
    return resized


def bounding_box(mask: NDArray[np.bool_]) -> Floats:
    """Edges of the true pixels of ``mask`` (H, W): float32 left, top, right, bottom."""
    columns, rows = np.flatnonzero(mask.any(axis=0)), np.flatnonzero(mask.any(axis=1))
    return np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1], np.float32)


def write_scenes(path: Path, split: Split, count: int, *, seed: int, labelled: bool = True) -> Path:
    """Write scenes as an ``.npz`` that ``sanderling build --calibration`` and ``--eval`` read.

    Args:
        path: of the file; arrays are ``images`` and, if ``labelled``, ``boxes`` and ``classes`` (see ``Scenes``).
        split: whose items are on the pictures.
        count: how many pictures.
        seed: of everything random.
        labelled: with the boxes and classes.
    """
    scenes = SceneComposer.of(split).compose(count, seed=seed)
    arrays: dict[str, Array] = {"images": scenes.images}
    if labelled:
        arrays |= {"boxes": scenes.boxes, "classes": scenes.classes}
    write_npz(path, arrays)
    return path


def _find_place(outline: Floats, taken: Floats, generator: np.random.Generator) -> tuple[int, int] | None:
    """A corner (x, y) of the item's square at which its box lies inside and off the others, or None."""
    left, top, right, bottom = outline
    for _ in range(_TRIES):
        x = int(generator.integers(-int(left), SIZE_PX - int(right) + 1))
        y = int(generator.integers(-int(top), SIZE_PX - int(bottom) + 1))
        if _largest_overlap(outline + np.array([x, y, x, y], np.float32), taken) <= MOST_OVERLAP:
            return x, y
    return None


def _largest_overlap(box: Floats, taken: Floats) -> float:
    if not len(taken):
        return 0.0
    sides = np.minimum(box[2:], taken[:, 2:]) - np.maximum(box[:2], taken[:, :2])
    areas = np.minimum(np.prod(box[2:] - box[:2]), np.prod(taken[:, 2:] - taken[:, :2], axis=1))
    return float((np.prod(np.maximum(sides, 0), axis=1) / areas).max())


def _paint(canvas: Floats, item: Floats, cover: Floats, corner: tuple[int, int], color: Floats) -> None:
    """Blend the tinted item into ``canvas``; parts of its square may lie outside, its visible parts do not."""
    x, y = corner
    side = len(item)
    inside = slice(max(y, 0), min(y + side, SIZE_PX)), slice(max(x, 0), min(x + side, SIZE_PX))
    own = slice(inside[0].start - y, inside[0].stop - y), slice(inside[1].start - x, inside[1].stop - x)
    alpha = cover[own][..., None]
    tinted = color * (np.float32(0.25) + np.float32(0.75 / 255) * item[own][..., None])
    canvas[inside] = canvas[inside] * (1 - alpha) + tinted * alpha
