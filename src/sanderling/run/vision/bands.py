"""Resampling of planes by small dense matrices along the diagonal, which a BLAS multiplies fast.

A target pixel is made of few source pixels. A block of target pixels next to each other is made of a short window of
source pixels, so that a block's weights are a small dense matrix. Blocks whose windows lie at equal steps are a run,
which one call multiplies. Matrices are small enough for a BLAS to leave them on the thread that asks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sanderling.core.tensor import Array
from sanderling.model.resampling import Taps

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]
_RUN_BYTES = 2_500_000  # of the rows that a run is made of and makes: they stay in a core's own cache
_LEAST_ROWS = 8  # whose columns are made at once, however long they are
_SHORT, _MIDDLE, _LONG = 4, 8, 16  # targets of a block: fewer are more products, more are more of them with 0
_WIDENING = 8  # part of a window by which it may grow so that more blocks make a run


@dataclass(frozen=True, eq=False)
class Run:
    """Targets ``start`` to ``stop`` (not included), in blocks whose windows lie at equal steps.

    Attributes:
        first: source at which the first window starts; below 0 where it hangs over the edge.
        step: sources from one window to the next.
        weights: float32 or float64, shape (blocks, C or 1, targets of a block, sources of a window).
    """

    start: int
    stop: int
    first: int
    step: int
    weights: Array

    @property
    def sources(self) -> int:
        """From the start of the first window to the end of the last."""
        return (len(self.weights) - 1) * self.step + int(self.weights.shape[3])

    def inside(self, size: int) -> tuple[int, int]:
        """First and last (not included) of its sources of a row of ``size``."""
        return max(self.first, 0), min(self.first + self.sources, size)


@dataclass(frozen=True, eq=False)
class Axis:
    """How one axis is resampled.

    Attributes:
        runs: in the order of the targets.
        size: target pixels.
        sources: source pixels.
    """

    runs: tuple[Run, ...]
    size: int
    sources: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the weights, and of what is computed with them."""
        return self.runs[0].weights.dtype

    @property
    def before(self) -> int:
        """Sources by which windows hang over the first edge."""
        return max(0, *(-run.first for run in self.runs))


def axis_of_rows(
    taps: Taps, height: int, row_bytes: int, factors: Floats | None = None, dtype: npt.DTypeLike = np.float32
) -> Axis:
    """How rows of planes become fewer or more.

    Args:
        taps: of the rows.
        height: rows that there are.
        row_bytes: of one row of all planes in float, where it is longest; it bounds the runs.
        factors: float32, (C,), multiply what each plane becomes.
        dtype: of the weights.
    """
    size = len(taps.indices)
    targets = _SHORT if size < height else _MIDDLE
    most = _RUN_BYTES / (row_bytes * targets * (1 + height / size))
    each = np.ones((1, 1, 1)) if factors is None else factors[:, None, None]
    return Axis(tuple(_runs(taps, targets, max(int(most), 1), each, dtype)), size, height)


def axis_of_columns(taps: Taps, width: int, dtype: npt.DTypeLike = np.float32) -> Axis:
    """How columns of planes become fewer or more; see ``axis_of_rows``."""
    size = len(taps.indices)
    runs = _runs(taps, _LONG, size, np.ones((1, 1, 1)), dtype)
    return Axis(tuple(replace(run, weights=_in_columns(run.weights)) for run in runs), size, width)


def _in_columns(weights: Array) -> Array:
    """The same, in the order in memory in which ``columns_products`` multiplies them: strips share it."""
    return np.ascontiguousarray(weights.swapaxes(2, 3)).swapaxes(2, 3)


@dataclass(frozen=True, eq=False)
class Product:
    """A stack of matrix products that is computed again and again, with where its factors and its results lie."""

    left: Array
    right: Array
    out: Array

    def compute(self) -> None:
        """Multiply what lies there now."""
        np.matmul(self.left, self.right, out=self.out)


def rows_memory(axis: Axis, channels: int, width: int) -> Array:
    """Room for the sources of a run, (channels, H, width); 0, since windows hang over the edges."""
    return np.zeros((channels, max(run.sources for run in axis.runs), width), axis.dtype)


def columns_memory(axis: Axis, rows: int) -> Array:
    """Room for rows and what windows hang over their edges, (rows, W); see ``rows_memory``."""
    return np.zeros(
        (rows, axis.before + max(axis.sources, *(run.first + run.sources for run in axis.runs))), axis.dtype
    )


def inner(memory: Array, axis: Axis) -> Array:
    """Where in ``columns_memory`` the columns belong."""
    return memory[:, axis.before : axis.before + axis.sources]


def rows_product(run: Run, memory: Array, out: Array) -> Product:
    """What makes the rows of a run.

    Args:
        run: of the rows.
        memory: of ``rows_memory``; the source ``run.first`` lies in its first row.
        out: as the weights are, shape (C, ``run.stop - run.start``, width).
    """
    blocks, _, targets, sources = run.weights.shape
    channels, _, width = memory.shape
    plane, row, item = memory.strides
    shape, strides = (blocks, channels, sources, width), (run.step * row, plane, row, item)
    windows: Array = np.ndarray(shape, memory.dtype, memory, 0, strides)
    return Product(run.weights, windows, out.reshape(len(out), blocks, targets, width).swapaxes(0, 1))


def columns_products(axis: Axis, memory: Array, out: Array) -> tuple[Product, ...]:
    """What makes columns.

    Args:
        axis: of the columns.
        memory: of ``columns_memory``, at least N rows.
        out: as the weights are, shape (N, w).
    """
    row, item = memory.strides
    products = []
    for run in axis.runs:
        blocks, _, targets, sources = run.weights.shape
        shape, strides = (blocks, len(out), sources), (run.step * item, row, item)
        windows: Array = np.ndarray(shape, memory.dtype, memory, (axis.before + run.first) * item, strides)
        made = out[:, run.start : run.stop].reshape(len(out), blocks, targets).swapaxes(0, 1)
        products.append(Product(windows, run.weights[:, 0].swapaxes(1, 2), made))
    return tuple(products)


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
    channels, height, _ = planes.shape
    if columns_first:
        between = np.empty((channels, height, columns.size), np.uint8 if rounded else columns.dtype)
        _resample_columns(planes, columns, between, rounded=rounded)
        return _resample_rows(between, rows)
    fewer = _resample_rows(planes, rows)
    result = np.empty((channels, rows.size, columns.size), columns.dtype)
    _resample_columns(to_levels(fewer) if rounded else fewer, columns, result, rounded=False)
    return result


def to_levels(values: Array) -> Array:
    """Round to whole levels in [0, 255], halves up as Pillow does, in place."""
    values += 0.5
    np.floor(values, out=values)
    return np.clip(values, 0, 255, out=values)


def _resample_rows(planes: Array, axis: Axis) -> Array:
    channels, _, width = planes.shape
    out = np.empty((channels, axis.size, width), axis.dtype)
    memory = rows_memory(axis, channels, width)
    for run in axis.runs:
        low, high = run.inside(axis.sources)
        np.copyto(memory[:, low - run.first : high - run.first], planes[:, low:high])
        rows_product(run, memory, out[:, run.start : run.stop]).compute()
    return out


def _resample_columns(planes: Array, axis: Axis, out: Array, *, rounded: bool) -> None:
    channels, height, _ = planes.shape
    affordable = _RUN_BYTES // (channels * axis.sources * axis.dtype.itemsize)
    most = min(max(affordable, _LEAST_ROWS), height)
    memory = columns_memory(axis, channels * most)
    for start in range(0, height, most):
        chunk = planes[:, start : start + most]
        rows = channels * chunk.shape[1]
        np.copyto(inner(memory, axis)[:rows].reshape(chunk.shape), chunk)
        made = np.empty((rows, axis.size), axis.dtype)
        for product in columns_products(axis, memory, made):
            product.compute()
        made = made.reshape(channels, -1, axis.size)
        np.copyto(out[:, start : start + most], to_levels(made) if rounded else made, "unsafe")


def _runs(taps: Taps, targets: int, most: int, factors: Array, dtype: npt.DTypeLike) -> Iterator[Run]:
    """Cut an axis into runs of at most ``most`` blocks of ``targets``; what is left over is a block of its own."""
    size, used = len(taps.indices), taps.weights != 0
    starts = np.arange(0, size, targets)
    firsts = np.minimum.reduceat(np.where(used, taps.indices, taps.indices.max()).min(axis=1), starts)
    lasts = np.maximum.reduceat(np.where(used, taps.indices, -1).max(axis=1), starts) + 1
    longest = int((lasts - firsts).max())
    longest += max(longest // _WIDENING, 2)
    whole, block = size // targets, 0
    while block < len(starts):
        here = slice(block, min(block + most, whole) if block < whole else len(starts))
        count, step, first = _longest_run(firsts[here], lasts[here], longest)
        start, stop = block * targets, min((block + count) * targets, size)
        origins = first + step * np.arange(count)
        weights = _weights(taps, start, stop, origins, int((lasts[block : block + count] - origins).max()))
        yield Run(start, stop, first, step, (weights * factors).astype(dtype))
        block += count


def _longest_run(firsts: Indices, lasts: Indices, longest: int) -> tuple[int, int, int]:
    """Of how many blocks windows at equal steps are at most ``longest``; also the step, and where the first starts."""
    mean = (firsts[-1] - firsts[0]) / max(len(firsts) - 1, 1)
    found = []
    for step in (math.floor(mean), math.ceil(mean)):
        origins = step * np.arange(len(firsts))
        starts = np.minimum.accumulate(firsts - origins)
        windows = np.maximum.accumulate(lasts - origins) - starts
        count = max(int((windows <= longest).sum()), 1)
        found.append((count, step, int(starts[count - 1])))
    return max(found)


def _weights(taps: Taps, start: int, stop: int, origins: Indices, length: int) -> Array:
    """Weights of some targets, float64 (blocks, 1, targets of a block, length): windows start at ``origins``."""
    targets = (stop - start) // len(origins)
    weights = np.zeros((stop - start, length))
    rows, places = np.nonzero(taps.weights[start:stop])
    sources = taps.indices[start + rows, places] - origins[rows // targets]
    np.add.at(weights, (rows, sources), taps.weights[start + rows, places])
    return weights.reshape(len(origins), 1, targets, length)
