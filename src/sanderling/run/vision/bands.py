"""Resampling of planes by small dense matrices along the diagonal, which a BLAS multiplies fast.

A target pixel is made of few source pixels. A block of target pixels next to each other is made of a short run of
source pixels, so that a block's weights are a small dense matrix; a pass over an axis is one product a block. Products
are small enough for a BLAS to leave them on the thread that asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sanderling.core.tensor import Array
from sanderling.model.resampling import Taps

_CHUNK_ROWS = 64  # of pixels that become float at once, where columns come first
_STRIP_BYTES = 2_000_000
_SHORT, _MIDDLE, _LONG = 4, 8, 16  # targets of a block: fewer are more calls, more are more products with 0


@dataclass(frozen=True, eq=False)
class Block:
    """Targets ``start`` to ``stop`` from sources ``first`` to ``last`` (not included).

    Attributes:
        weights: float32 or float64, shape (stop - start, last - first) for rows; (last - first, stop - start), also
            one for each channel, for columns.
    """

    start: int
    stop: int
    first: int
    last: int
    weights: Array


@dataclass(frozen=True, eq=False)
class Axis:
    """How one axis is resampled.

    Attributes:
        blocks: in the order of the targets.
        longest: source pixels of the longest block.
        size: target pixels.
    """

    blocks: tuple[Block, ...]
    longest: int
    size: int


def strip_rows(channels: int, width: int, height: int) -> int:
    """Rows of a strip for ``resample_strips``: about two megabytes of them, and not more than ``height`` needs."""
    affordable = _STRIP_BYTES // (4 * channels * width)
    return max(min(affordable, height), _MIDDLE)


def axis_of_rows(taps: Taps, dtype: npt.DTypeLike = np.float32) -> Axis:
    """Blocks for ``resample_rows`` with weights of ``dtype``."""
    return _axis(taps, _SHORT if len(taps.indices) < taps.indices.max() else _MIDDLE, dtype)


def axis_of_columns(
    taps: Taps, factors: npt.NDArray[np.float32] | None = None, dtype: npt.DTypeLike = np.float32
) -> Axis:
    """Blocks for ``resample_columns``; ``factors``, float32 (C,), multiply what each channel becomes."""
    axis = _axis(taps, _LONG, np.float64)
    each = np.ones((1, 1)) if factors is None else factors[:, None, None]
    turned = (replace(block, weights=np.ascontiguousarray(block.weights.T * each, dtype)) for block in axis.blocks)
    return replace(axis, blocks=tuple(turned))


def _axis(taps: Taps, targets: int, dtype: npt.DTypeLike) -> Axis:
    """Cut the weights of an axis into blocks of ``targets``."""
    size = len(taps.indices)
    used = taps.weights != 0
    lows = np.where(used, taps.indices, np.iinfo(np.int64).max).min(axis=1)
    highs = np.where(used, taps.indices, -1).max(axis=1) + 1
    blocks = []
    for start in range(0, size, targets):
        stop = min(start + targets, size)
        first, last = int(lows[start:stop].min()), int(highs[start:stop].max())
        inside = used[start:stop]
        rows = np.nonzero(inside)[0]
        weights = np.zeros((stop - start, last - first))
        np.add.at(weights, (rows, taps.indices[start:stop][inside] - first), taps.weights[start:stop][inside])
        blocks.append(Block(start, stop, first, last, weights.astype(dtype)))
    return Axis(tuple(blocks), max(block.last - block.first for block in blocks), size)


def resample_rows(planes: Array, axis: Axis, scratch: Array, out: Array) -> None:
    """Resample planes along their columns: rows become fewer or more.

    Args:
        planes: uint8 or float32, shape (C, H, W).
        axis: from H to h.
        scratch: as the weights are, shape (C, ``axis.longest``, W).
        out: as the weights are, shape (C, h, W), written.
    """
    _write_rows(planes, axis.blocks, scratch, out, 0)


def resample_columns(planes: Array, axis: Axis, out: Array) -> None:
    """Resample planes along their rows.

    Args:
        planes: as the weights are, shape (C, H, W).
        axis: from W to w.
        out: as the weights are, shape (C, H, w), written.
    """
    for block in axis.blocks:
        np.matmul(planes[:, :, block.first : block.last], block.weights, out=out[:, :, block.start : block.stop])


def resample_strips(planes: Array, rows: Axis, columns: Axis, scratch: Array, strip: Array, out: Array) -> None:
    """Resample planes along both axes, some rows at a time, so that what is between the passes stays near.

    Args:
        planes: uint8 or float32, shape (C, H, W).
        rows: from H to h.
        columns: from W to w.
        scratch: as of ``resample_rows``.
        strip: float32, shape (C, rows, W), at least as many rows as a block has.
        out: float32, shape (C, h, w), written.
    """
    start, blocks = 0, list(rows.blocks)
    while blocks:
        count = sum(block.stop - start <= strip.shape[1] for block in blocks)
        stop = blocks[count - 1].stop
        between = strip[:, : stop - start]
        _write_rows(planes, blocks[:count], scratch, between, start)
        resample_columns(between, columns, out[:, start:stop])
        start, blocks = stop, blocks[count:]


def _write_rows(planes: Array, blocks: Sequence[Block], scratch: Array, out: Array, start: int) -> None:
    """Blocks of rows to where they belong in ``out``, whose first row is number ``start``."""
    for block in blocks:
        rows = scratch[:, : block.last - block.first]
        np.copyto(rows, planes[:, block.first : block.last])
        np.matmul(block.weights, rows, out=out[:, block.start - start : block.stop - start])


def resample(planes: Array, rows: Axis, columns: Axis, *, columns_first: bool, rounded: bool) -> Array:
    """Resample planes along both axes.

    Args:
        planes: uint8, shape (C, H, W).
        rows: from H to h.
        columns: from W to w.
        columns_first: whether rows are shortened before there are fewer of them.
        rounded: whether what is between the passes is rounded to 8 bits, as Pillow does.

    Returns:
        As the weights are, shape (C, h, w), not clipped.
    """
    channels, height, width = planes.shape
    dtype = rows.blocks[0].weights.dtype
    result = np.empty((channels, rows.size, columns.size), dtype)
    if columns_first:
        between = np.empty((channels, height, columns.size), np.uint8 if rounded else dtype)
        for start in range(0, height, _CHUNK_ROWS):
            chunk = planes[:, start : start + _CHUNK_ROWS].astype(dtype)
            shortened = np.empty((channels, chunk.shape[1], columns.size), dtype)
            resample_columns(chunk, columns, shortened)
            np.copyto(between[:, start : start + _CHUNK_ROWS], to_levels(shortened) if rounded else shortened, "unsafe")
        resample_rows(between, rows, np.empty((channels, rows.longest, columns.size), dtype), result)
        return result
    fewer = np.empty((channels, rows.size, width), dtype)
    resample_rows(planes, rows, np.empty((channels, rows.longest, width), dtype), fewer)
    resample_columns(to_levels(fewer) if rounded else fewer, columns, result)
    return result


def to_levels(values: Array) -> Array:
    """Round to whole levels in [0, 255], halves up as Pillow does, in place."""
    values += 0.5
    np.floor(values, out=values)
    return np.clip(values, 0, 255, out=values)
