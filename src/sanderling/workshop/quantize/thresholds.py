"""From a histogram to the range that eight bits should cover; one function a method.

Every method gets a histogram and returns (low, high) with low ≤ 0 ≤ high, inside the observed range but for 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from sanderling.workshop.quantize.histogram import Histogram

Range = tuple[float, float]
_LEVELS = 256
_PERCENTILE = 99.99
_ENTROPY_STEP = 16
_ENTROPY_CANDIDATES = 128


def min_max(histogram: Histogram) -> Range:
    """The whole observed range."""
    return min(histogram.low, 0.0), max(histogram.high, 0.0)


def percentile(histogram: Histogram, *, percent: float = _PERCENTILE) -> Range:
    """The range that holds ``percent`` of the values, the rest cut evenly from both ends."""
    tail = (100.0 - percent) / 200.0
    share = np.concatenate([[0.0], np.cumsum(histogram.counts) / max(1, histogram.counts.sum())])
    low = float(np.interp(tail, share, histogram.edges))
    high = float(np.interp(1.0 - tail, share, histogram.edges))
    return min(low, 0.0), max(high, 0.0)


def mean_squared_error(histogram: Histogram) -> Range:
    """The range with the least squared error of rounding and clipping, by a search over both ends."""
    low, high = min_max(histogram)
    if high <= low:
        return low, high
    shrinks = np.linspace(1.0, 0.1, 46)
    best = (low, high)
    for _ in range(2):  # the two ends depend on each other only weakly: two rounds settle them
        best = min(((best[0], high * shrink) for shrink in shrinks), key=lambda span: _error(histogram, span))
        if low < 0:
            best = min(((low * shrink, best[1]) for shrink in shrinks), key=lambda span: _error(histogram, span))
    return best


def entropy(histogram: Histogram) -> Range:
    """The range whose quantised distribution diverges least from the observed one.

    Both ends shrink together towards 0.

    Source: S. Migacz, "8-bit Inference with TensorRT", GTC 2017 (Kullback–Leibler calibration).
    """
    low, high = min_max(histogram)
    counts, edges = _without_zero_spike(histogram), histogram.edges
    if counts.sum() == 0 or histogram.high <= histogram.low:
        return low, high
    limit = max(-low, high)
    width = (histogram.high - histogram.low) / len(counts)
    best, least = (low, high), np.inf
    widest = int(limit / width)  # a narrow range far from zero is many widths away from it
    step = max(_ENTROPY_STEP, widest // _ENTROPY_CANDIDATES)
    for kept in range(_LEVELS // 2, widest + 1, step):
        bound = kept * width
        span = (max(low, -bound), min(high, bound))
        first = int(np.searchsorted(edges, span[0], side="right")) - 1
        last = int(np.searchsorted(edges, span[1], side="left"))
        divergence = _divergence(counts, max(first, 0), min(last, len(counts)))
        if divergence < least:
            best, least = span, divergence
    return best


METHODS: dict[str, Callable[[Histogram], Range]] = {
    "minmax": min_max,
    "percentile": percentile,
    "entropy": entropy,
    "mse": mean_squared_error,
}

# What is tried for a single tensor, by what it does to the model's outputs. Narrower ranges raise the SQNR on the data
# that they were made from, and clip what other photos hold: one photo's crops lost two answers in three by that.
SPANS: dict[str, Callable[[Histogram], Range]] = {
    "minmax": min_max,
    "percentile 99.997": partial(percentile, percent=99.997),
    "percentile 99.99": percentile,
    "mse": mean_squared_error,
}


def _error(histogram: Histogram, span: Range) -> float:
    low, high = span
    scale = (high - low) / (_LEVELS - 1)
    if scale <= 0:
        return float("inf")
    centers, width = histogram.centers, (histogram.high - histogram.low) / len(histogram.counts)
    centers[np.abs(centers) <= width / 2] = 0.0  # most of what lies in zero's bin is zero itself, which is exact
    rounded = np.clip(np.round((centers - low) / scale), 0, _LEVELS - 1) * scale + low
    squared = np.square(centers - rounded)
    if width > scale:  # such a bin hides the rounding error inside it
        squared = np.maximum(squared, scale * scale / 12)
    return float(np.dot(squared, histogram.counts))


def _without_zero_spike(histogram: Histogram) -> npt.NDArray[np.float64]:
    """Counts with zero's bin like its neighbours: zero is always exact, and ReLU's spike there would rule."""
    counts = histogram.counts.astype(np.float64)
    zero = int(np.clip(np.searchsorted(histogram.edges, 0.0, side="right") - 1, 0, len(counts) - 1))
    neighbours = [counts[index] for index in (zero - 1, zero + 1) if 0 <= index < len(counts)]
    counts[zero] = min(counts[zero], max(neighbours))
    return counts


def _divergence(counts: npt.NDArray[np.float64], first: int, last: int) -> float:
    """KL divergence of counts[first:last], outliers added to the ends, from its 256-level version."""
    reference = counts[first:last].copy()
    if reference.size < _LEVELS // 2 or reference.sum() == 0:
        return float("inf")
    inside = reference.copy()
    reference[0] += counts[:first].sum()
    reference[-1] += counts[last:].sum()
    level = (np.arange(inside.size) * _LEVELS) // inside.size
    filled = inside > 0
    totals = np.bincount(level, weights=inside, minlength=_LEVELS)
    members = np.bincount(level, weights=filled.astype(np.float64), minlength=_LEVELS)
    spread = np.divide(totals, members, out=np.zeros_like(totals), where=members > 0)
    candidate = np.where(filled, spread[level], 0.0)
    p, q = reference / reference.sum(), candidate / max(candidate.sum(), 1e-12)
    # A bin that only outliers fill gets the smallest share, so that cutting them off costs something.
    q = np.maximum(q, 1e-9)
    present = p > 0
    return float(np.sum(p[present] * np.log(p[present] / q[present])))
