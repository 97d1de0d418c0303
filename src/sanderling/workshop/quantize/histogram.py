"""Histograms, channel means and channel extremes of a graph's tensors over calibration data, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx

from sanderling.core.errors import DataError
from sanderling.core.progress import Progress
from sanderling.core.tensor import Array
from sanderling.measure.samples import Samples
from sanderling.model.graph import float_tensors, with_outputs
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions, Executable, Optimization
from sanderling.workshop.quantize.bias import channel_mean, observed_inputs
from sanderling.workshop.quantize.equalization import scaled_tensors

BINS = 2048
_COMMON_SHARE = 0.999


@dataclass(frozen=True)
class Histogram:
    """Counts of a tensor's values in equal bins from ``low`` to ``high``, its true lowest and highest."""

    low: float
    high: float
    counts: npt.NDArray[np.int64]

    @property
    def edges(self) -> npt.NDArray[np.float64]:
        """Bin edges, shape (bins + 1,)."""
        return np.linspace(self.low, self.high, len(self.counts) + 1)

    @property
    def centers(self) -> npt.NDArray[np.float64]:
        """Bin centres, shape (bins,)."""
        edges = self.edges
        return (edges[:-1] + edges[1:]) / 2

    def share_outside(self, span: tuple[float, float]) -> float:
        """Share of the values that a range does not cover, to the width of a bin."""
        outside = (self.edges[1:] < span[0]) | (self.edges[:-1] > span[1])
        return float(self.counts[outside].sum() / max(self.counts.sum(), 1))

    def outlier_ratio(self) -> float:
        """Largest magnitude over the magnitude that 99.9 % of the values stay below, at least 1."""
        magnitudes = np.maximum(np.abs(self.edges[:-1]), np.abs(self.edges[1:]))
        order = np.argsort(magnitudes)
        inside = np.cumsum(self.counts[order]) >= _COMMON_SHARE * self.counts.sum()
        common = float(magnitudes[order][int(np.argmax(inside))])
        return max(float(magnitudes.max()) / common, 1.0) if common > 0 else 1.0


@dataclass(frozen=True)
class Observation:
    """What calibration saw.

    Attributes:
        histograms: per float tensor.
        means: per input of a convolution or Gemm, its channel means, shape (C,).
        extremes: per tensor that equalisation scales, lowest and highest value of each channel, shape (C,).
    """

    histograms: dict[str, Histogram]
    means: dict[str, npt.NDArray[np.float64]]
    extremes: dict[str, tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]] = field(default_factory=dict)

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Lowest and highest value of each tensor."""
        return {name: (histogram.low, histogram.high) for name, histogram in self.histograms.items()}


def observe(model: onnx.ModelProto, samples: Samples, *, threads: int, progress: Progress) -> Observation:
    """Run the calibration data twice, one sample at a time: once for ranges and means, once for the counts.

    Raises:
        DataError: a tensor becomes NaN or +inf on a sample.
    """
    tensors = float_tensors(model)
    executable = open_tensors(model, tensors, threads)
    ranges = dict.fromkeys(tensors, (np.inf, -np.inf))
    sums: dict[str, npt.NDArray[np.float64]] = {}
    averaged, scaled = set(observed_inputs(model)), set(scaled_tensors(model))
    extremes: dict[str, tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]] = {}
    progress.stage("calibrate: ranges", len(samples))
    for index, outputs in enumerate(observed(executable, tensors, samples)):
        for name, array in outputs.items():
            ranges[name] = _widened(ranges[name], array, name, samples.names[index])
        for name in averaged & outputs.keys():
            sums[name] = sums.get(name, np.float64(0)) + channel_mean(outputs[name])
        for name in scaled & outputs.keys():
            extremes[name] = _extended(extremes.get(name), outputs[name])
        progress.advance()
    counts = {name: np.zeros(BINS, np.int64) for name in tensors}
    progress.stage("calibrate: histograms", len(samples))
    for outputs in observed(executable, tensors, samples):
        for name, array in outputs.items():
            counts[name] += _binned(array, *ranges[name])
        progress.advance()
    executable.close()
    seen = [name for name in tensors if np.isfinite(ranges[name]).all()]
    return Observation(
        {name: Histogram(*ranges[name], counts[name]) for name in seen},
        {name: total / len(samples) for name, total in sums.items()},
        extremes,
    )


def open_tensors(model: onnx.ModelProto, tensors: Sequence[str], threads: int = 0) -> Executable:
    """Load the graph with ``tensors`` (float32) as outputs besides its own."""
    options = EngineOptions(threads=threads, optimization=Optimization.BASIC, lean=True)
    return engine().load(with_outputs(model, tensors).SerializeToString(), options)


def observed(executable: Executable, tensors: Sequence[str], samples: Samples) -> Iterator[dict[str, Array]]:
    """Yield the values of ``tensors`` for each sample; the executable is one of ``open_tensors``."""
    wanted = set(tensors)
    for feeds in samples.batches(1):
        outputs = executable.run(feeds)
        yield {name: array for name, array in {**feeds, **outputs}.items() if name in wanted}


def _extended(
    known: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None, array: Array
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Channel extremes with those of an array (N, C, …)."""
    axes = tuple(axis for axis in range(array.ndim) if axis != 1)
    low, high = array.min(axis=axes), array.max(axis=axes)
    return (low, high) if known is None else (np.minimum(known[0], low), np.maximum(known[1], high))


def _widened(span: tuple[float, float], array: Array, name: str, sample: str) -> tuple[float, float]:
    """Widen a range by the finite values of an array; a mask may hold -inf, but NaN and +inf are faults."""
    if array.size and not (np.isfinite(array.min()) and np.isfinite(array.max())):
        if not (array < np.inf).all():
            raise DataError(f"tensor '{name}' becomes NaN or infinite on calibration sample {sample}; check the model")
        array = array[np.isfinite(array)]
    if array.size == 0:
        return span
    return min(span[0], float(array.min())), max(span[1], float(array.max()))


def _binned(array: Array, low: float, high: float) -> npt.NDArray[np.int64]:
    """Counts of an array's values; -inf counts as the lowest."""
    if high <= low or array.size == 0:
        counts = np.zeros(BINS, np.int64)
        counts[0] = array.size
        return counts
    # float32 is twice as quick, and too narrow for spans near its own limits.
    values = array.ravel() if 1e-30 < high - low < 1e38 else array.ravel().astype(np.float64)
    number = values.dtype.type
    positions = (values - number(low)) * number(BINS / (high - low))
    np.clip(positions, 0, BINS - 1, out=positions)
    return np.bincount(positions.astype(np.int32), minlength=BINS)
