"""Which pixels of a row make a pixel of a shorter or longer row, and how much of each.

This is the one definition of resizing; host, graph and the device's module are held against it.

Source: Pillow, ``Resample.c``, for the filters that widen with the reduction; OpenCV's ``INTER_LINEAR``,
``INTER_CUBIC`` and ``INTER_AREA`` for the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sanderling.model.preprocessing import Interpolation

PRECISION_BITS = 22
"""Of fractions in Pillow's weights."""
_SUPPORT = {"bilinear": 1.0, "bicubic": 2.0}
_CUBIC = {True: -0.5, False: -0.75}  # Pillow's, and that of OpenCV and PyTorch


@dataclass(frozen=True, eq=False)
class Taps:
    """For each target pixel the source pixels that it is made of.

    Attributes:
        indices: int64, shape (targets, taps), in [0, source size).
        weights: float64, shape (targets, taps); each row sums to 1, or nearly in fixed point.
    """

    indices: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]

    @property
    def picked(self) -> npt.NDArray[np.int64] | None:
        """The source pixel of each target, shape (targets,), where all are pixels as they are; None elsewhere."""
        used = self.weights != 0
        if (used.sum(axis=1) != 1).any():
            return None
        picked: npt.NDArray[np.int64] = self.indices[used]
        return picked

    def in_fixed_point(self) -> Taps:
        """The same with weights in whole multiples of 2^-22, as Pillow rounds them: products with levels are exact."""
        one = 1 << PRECISION_BITS
        return Taps(self.indices, np.trunc(self.weights * one + np.copysign(0.5, self.weights)) / one)

    def matrix(self, source_size: int) -> npt.NDArray[np.float64]:
        """All weights as a matrix, shape (targets, source_size)."""
        matrix = np.zeros((len(self.indices), source_size))
        rows = np.arange(len(self.indices))[:, None]
        np.add.at(matrix, (np.broadcast_to(rows, self.indices.shape), self.indices), self.weights)
        return matrix


def taps_of(
    interpolation: Interpolation,
    source_size: int,
    start: float,
    end: float,
    target_size: int,
    *,
    antialias: bool = True,
) -> Taps:
    """Weights that resample the pixels from ``start`` to ``end`` of a row.

    Args:
        interpolation: see ``Preprocessing``.
        source_size: of the row, pixels.
        start: of the part that is kept, in [0, source_size).
        end: of that part, in (start, source_size].
        target_size: pixels.
        antialias: whether bilinear and bicubic widen with the reduction.
    """
    start = float(np.float32(start))  # as Pillow rounds a box
    scale = float(np.float32(float(np.float32(end)) - start)) / target_size
    if interpolation == "nearest":
        return _nearest(start, scale, source_size, target_size)
    centres = np.asarray(start + (np.arange(target_size) + 0.5) * scale, np.float64)
    if interpolation == "area":
        return _covered(centres, scale, source_size)
    if not antialias:
        return _interpolated(interpolation, centres, source_size)
    return _filtered(interpolation, centres, scale, source_size)


def _nearest(start: float, scale: float, source_size: int, target_size: int) -> Taps:
    """Steps are added up one by one, as Pillow does, so that ties fall on the same side."""
    steps = np.full(target_size, scale)
    steps[0] = start + scale * 0.5
    indices = np.minimum(np.floor(np.cumsum(steps)), source_size - 1).astype(np.int64)[:, None]
    return Taps(indices, np.ones(indices.shape))


def _filtered(interpolation: str, centres: npt.NDArray[np.float64], scale: float, source_size: int) -> Taps:
    """A filter as wide as what a target pixel covers; what lies outside is left out."""
    widening = max(scale, 1.0)
    support = _SUPPORT[interpolation] * widening
    first = np.maximum(np.trunc(centres - support + 0.5), 0).astype(np.int64)
    last = np.minimum(np.trunc(centres + support + 0.5), source_size).astype(np.int64)
    indices = first[:, None] + np.arange(int((last - first).max()))
    distances = (indices - centres[:, None] + 0.5) * (1.0 / widening)
    weights = np.where(indices < last[:, None], _kernel(interpolation, distances, _CUBIC[True]), 0.0)
    return Taps(np.minimum(indices, source_size - 1), weights / weights.cumsum(axis=1)[:, -1:])  # added up one by one


def _interpolated(interpolation: str, centres: npt.NDArray[np.float64], source_size: int) -> Taps:
    """A curve through the nearest pixels; beyond the edge its last pixel goes on."""
    reach = int(_SUPPORT[interpolation])
    indices = np.floor(centres - 0.5).astype(np.int64)[:, None] + np.arange(1 - reach, reach + 1)
    weights = _kernel(interpolation, indices - centres[:, None] + 0.5, _CUBIC[False])
    return Taps(indices.clip(0, source_size - 1), weights / weights.sum(axis=1, keepdims=True))


def _covered(centres: npt.NDArray[np.float64], scale: float, source_size: int) -> Taps:
    """Each source pixel counts as far as the target pixel covers it."""
    first = np.floor(centres - scale / 2 + 1e-9).astype(np.int64)
    indices = first[:, None] + np.arange(math.ceil(scale) + 1)
    low = np.maximum(indices, (centres - scale / 2)[:, None])
    high = np.minimum(indices + 1, (centres + scale / 2)[:, None])
    weights = np.maximum(high - low, 0.0)
    weights[(indices < 0) | (indices >= source_size) | (weights < 1e-9 * scale)] = 0.0
    return Taps(indices.clip(0, source_size - 1), weights / weights.sum(axis=1, keepdims=True))


def _kernel(interpolation: str, distances: npt.NDArray[np.float64], a: float) -> npt.NDArray[np.float64]:
    x = np.abs(distances)
    if interpolation == "bilinear":
        return np.maximum(1.0 - x, 0.0)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))
