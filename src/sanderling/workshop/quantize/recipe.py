"""The best INT8 of a graph: repairs tried in the order of their cost, each kept only if it helps.

Every form is judged by the signal-to-noise ratio of the model's outputs on calibration samples, never on the data that
accuracy is measured with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from sanderling.core.errors import ModelError, first_line
from sanderling.core.progress import Progress
from sanderling.core.statistics import sqnr_db
from sanderling.measure.samples import Samples
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions
from sanderling.workshop.evidence import Candidate
from sanderling.workshop.quantize.bias import Means, correct_biases
from sanderling.workshop.quantize.equalization import equalize, scale_groups
from sanderling.workshop.quantize.histogram import Histogram, Observation, observe
from sanderling.workshop.quantize.qdq import Scheme, quantized_blocks, to_int8
from sanderling.workshop.quantize.rounding import round_weights
from sanderling.workshop.quantize.sensitive import sensitive_nodes
from sanderling.workshop.quantize.sensitivity import Sensitivity, has_subgraphs, measure_sensitivity
from sanderling.workshop.quantize.thresholds import METHODS, SPANS, Range

_SELECTION_SAMPLES = 128
_CLEARLY_DB = 0.1


@dataclass(frozen=True)
class Quantized:
    """A graph in INT8, and everything to make it again with other blocks in float.

    Attributes:
        model: float graph that the scheme is for, equalised where that helped; it computes what FP32 does.
        scheme: how it is quantised.
        graph: the INT8 graph.
        histograms: of the float graph's tensors on the calibration data.
        sqnr_db: of the outputs on the selection samples.
        candidates: all forms that were tried.
        means: by which the biases of INT8 blocks are corrected; empty where that did not help.
        sensitivity: noise of each tensor and weight by itself; None for a graph with subgraphs.
    """

    model: onnx.ModelProto
    scheme: Scheme
    graph: onnx.ModelProto
    histograms: Mapping[str, Histogram]
    sqnr_db: float
    candidates: tuple[Candidate, ...]
    means: Means = field(default_factory=dict)
    sensitivity: Sensitivity | None = None

    def with_float(self, blocks: frozenset[str]) -> onnx.ModelProto:
        """The INT8 graph with these blocks in float too."""
        return _form(self.model, replace(self.scheme, float_blocks=self.scheme.float_blocks | blocks), self.means)


def quantize(
    model: onnx.ModelProto, seen: Observation, calibration: Samples, *, threads: int, seed: int, progress: Progress
) -> Quantized:
    """Try range methods, bias correction, equalisation, second-order rounding and a range method for each tensor.

    Args:
        model: simplified FP32 graph, each node with a name of its own.
        seen: what it did on the calibration data.
        calibration: the data.
        threads: of one call.
        seed: of what is drawn at random.
        progress: told about each form that is tried.

    Raises:
        ModelError: the graph cannot be quantised.
    """
    selection = selected(calibration)
    trials = Trials(model, selection, threads)
    left = frozenset(sensitive_nodes(model))
    progress.stage("quantise to INT8", len(METHODS) + 1)
    for method in METHODS:
        scheme = Scheme(_spans(seen, method), left)
        trials.take(f"{method}, bias correction", model, scheme, seen.histograms, seen.means)
        progress.advance()
    trials.take("minmax", model, Scheme(_spans(seen, "minmax"), left), seen.histograms)
    progress.advance()
    method = trials.best_name.partition(",")[0]
    base, observed = model, seen
    if scale_groups(model):
        base = equalize(model, seen.extremes)
        observed = observe(base, selection, threads=threads, progress=progress)
        even = Scheme(_spans(observed, method), left)
        if not trials.take("equalisation", base, even, observed.histograms, observed.means, clearly_db=_CLEARLY_DB):
            base, observed = model, seen
    weights = round_weights(base, selection, threads=threads, seed=seed, progress=progress)
    rounded = Scheme(_spans(observed, method), left, weights)
    trials.take("second-order rounding", base, rounded, observed.histograms, observed.means, clearly_db=_CLEARLY_DB)
    if has_subgraphs(model):
        return trials.best()
    best = trials.best()
    spans = {name: _all_spans(histogram, best.scheme.ranges[name]) for name, histogram in best.histograms.items()}
    found = measure_sensitivity(best.model, spans, best.scheme, selection, threads=threads, progress=progress)
    scheme = replace(best.scheme, ranges={**best.scheme.ranges, **found.ranges})
    trials.take(
        "a range method for each tensor", best.model, scheme, best.histograms, best.means, clearly_db=_CLEARLY_DB
    )
    return replace(trials.best(), sensitivity=found)


def selected(calibration: Samples) -> Samples:
    """The samples that forms are judged on, evenly spread: neighbours may be of one class."""
    count = min(len(calibration), _SELECTION_SAMPLES)
    return calibration.pick(np.linspace(0, len(calibration) - 1, count).round().astype(np.int64))


class Trials:
    """Forms of a graph in INT8 that were tried, and the best of them."""

    def __init__(self, model: onnx.ModelProto, selection: Samples, threads: int) -> None:
        self._selection, self._threads = selection, threads
        self._reference = _outputs(model, selection, threads)
        self._tried: list[Candidate] = []
        self._best: Quantized | None = None
        self.best_name = ""

    def take(
        self,
        name: str,
        model: onnx.ModelProto,
        scheme: Scheme,
        histograms: Mapping[str, Histogram],
        means: Means | None = None,
        *,
        clearly_db: float = 0.0,
    ) -> bool:
        """Try one form, with corrected biases where there are means; whether it is the best so far.

        Args:
            name: of the form.
            model: float graph.
            scheme: how to quantise it.
            histograms: of its tensors.
            means: by which biases are corrected.
            clearly_db: by how much it must be better: a gain that small says nothing about other data.

        Raises:
            ModelError: the graph cannot be quantised.
        """
        try:
            graph = _form(model, scheme, means or {})
        except Exception as error:
            raise ModelError(f"INT8 conversion failed: {type(error).__name__}: {first_line(error)}") from error
        score = self._score_db(_outputs(graph, self._selection, self._threads))
        self._tried.append(Candidate(name=name, sqnr_db=score, kept=False))
        if self._best is not None and score <= self._best.sqnr_db + clearly_db:
            return False
        self._best = Quantized(model, scheme, graph, histograms, score, (), means or {})
        self.best_name = name
        return True

    def best(self) -> Quantized:
        """The best form, with all that were tried."""
        assert self._best is not None
        tried = [tried.model_copy(update={"kept": tried.name == self.best_name}) for tried in self._tried]
        return replace(self._best, candidates=tuple(tried))

    def _score_db(self, outputs: list[np.ndarray]) -> float:
        signal = sum(float(np.square(row).sum()) for row in self._reference)
        noise = sum(float(np.square(row - other).sum()) for row, other in zip(self._reference, outputs, strict=True))
        return sqnr_db(signal, noise)


def _form(model: onnx.ModelProto, scheme: Scheme, means: Means) -> onnx.ModelProto:
    """The INT8 graph; blocks that stay float keep their biases."""
    rounded = {block.name for block in quantized_blocks(model, scheme)}
    return to_int8(correct_biases(model, means, scheme.weights, nodes=rounded), scheme)


def _all_spans(histogram: Histogram, before: Range) -> dict[str, Range]:
    return {"as before": before, **{name: method(histogram) for name, method in SPANS.items()}}


def _spans(seen: Observation, method: str) -> dict[str, Range]:
    return {name: METHODS[method](histogram) for name, histogram in seen.histograms.items()}


def _outputs(model: onnx.ModelProto, samples: Samples, threads: int) -> list[np.ndarray]:
    """Every output of every sample, flattened: one float array a sample."""
    executable = engine().load(model.SerializeToString(), EngineOptions(threads=threads))
    rows = []
    for feeds in samples.batches(1):
        arrays = executable.run(feeds).values()
        rows.append(np.concatenate([array.astype(np.float64).ravel() for array in arrays]))
    executable.close()
    return rows
