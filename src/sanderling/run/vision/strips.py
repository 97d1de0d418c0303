"""Strips of a tensor: rows that are converted, then resized, while a core's own cache holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sanderling.model.preprocessing import ColorOrder
from sanderling.run.vision.bands import (
    Axis,
    Floats,
    Product,
    Run,
    columns_memory,
    columns_products,
    inner,
    rows_memory,
    rows_product,
)
from sanderling.run.vision.color import Region, converted, planes_memory, region_around, split
from sanderling.run.vision.frames import Frame

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Strip:
    """Rows of a tensor, with the memory that they take on their way; strips of one plan share it.

    Attributes:
        start: first of the rows.
        stop: the last is before it.
        region: of the frame that they are made of.
        colored: uint8, shape (H, W, 3) or (H, W), the region in the model's colours.
        planes: uint8, shape (3, H, W), its channels.
        used: which rows of the planes count.
        floats: float32, shape (C or 1, rows that count, W).
        products: make ``made`` of ``floats``.
        made: float32, shape (C, stop - start, width).
    """

    start: int
    stop: int
    region: Region
    colored: Pixels
    planes: Pixels
    used: slice
    floats: Floats
    products: tuple[Product, ...]
    made: Floats


def plan_strips(frame: Frame, region: Region, channels: int, rows: Axis, columns: Axis) -> tuple[Strip, ...]:
    """Strips from top to bottom, one for each run of the rows.

    Args:
        frame: any of this size and format.
        region: that counts at all; rows and columns are counted from its edges.
        channels: of the tensor.
        rows: how they become fewer or more.
        columns: the same of columns.
    """
    regions = [_region_of(run, frame, region) for run in rows.runs]
    size = (max(each.height for each in regions), region.width)
    colored = np.empty(size if channels == 1 else (*size, 3), np.uint8)
    planes = planes_memory(*size)
    high = rows_memory(rows, 1 if frame.format == "gray" else channels, region.width)
    tallest = max(run.stop - run.start for run in rows.runs)
    wide = columns_memory(columns, tallest * channels)
    made = np.empty((tallest * channels, columns.size), np.float32)
    strips = []
    for run, own in zip(rows.runs, regions, strict=True):
        low, until = run.inside(region.height)
        top, count = own.top - region.top, (run.stop - run.start) * channels
        between = inner(wide, columns)[:count].reshape(-1, channels, region.width).swapaxes(0, 1)
        result = made[:count].reshape(-1, channels, columns.size).swapaxes(0, 1)
        strips.append(
            Strip(
                run.start,
                run.stop,
                own,
                colored[: own.height],
                planes[:, : own.height],
                slice(low - top, until - top),
                high[:, low - run.first : until - run.first],
                (rows_product(run, high, between), *columns_products(columns, wide, made[:count])),
                result,
            )
        )
    return tuple(strips)


def write_strips(strips: Sequence[Strip], frame: Frame, color: ColorOrder, biases: Floats, out: Floats) -> None:
    """Convert and resize a frame.

    Args:
        strips: of ``plan_strips`` for its size and format.
        frame: the picture.
        color: that the model expects.
        biases: float32, shape (C,), that is added to each channel.
        out: float32, shape (C, height, width), written.
    """
    added = biases[:, None, None]
    for strip in strips:
        pixels = converted(frame, strip.region, color, out=strip.colored)
        np.copyto(strip.floats, split(pixels, strip.planes)[:, strip.used])
        for product in strip.products:
            product.compute()
        np.add(strip.made, added, out=out[:, strip.start : strip.stop])


def _region_of(run: Run, frame: Frame, region: Region) -> Region:
    low, until = run.inside(region.height)
    return region_around(frame, region.top + low, region.top + until, region.left, region.right)
