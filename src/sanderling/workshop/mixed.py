"""Mixed precision: when INT8 misses the budget, put the fewest blocks back to float that keep it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx

from sanderling.core.progress import Event, Progress
from sanderling.core.statistics import binomial_upper, sqnr_db
from sanderling.measure.accuracy import classifier_classes, compare_outputs, evaluation_batch, judge
from sanderling.measure.latency import time_interleaved
from sanderling.measure.samples import Samples
from sanderling.model.cost import graph_cost
from sanderling.model.manifest import Accuracy, Budget, Metric
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions, Executable
from sanderling.run.vision.reading import DetectionReader
from sanderling.workshop.evidence import BlockPrecision, Search, SearchPoint
from sanderling.workshop.material import Material
from sanderling.workshop.options import BuildOptions
from sanderling.workshop.quantize.path import Step, find_path
from sanderling.workshop.quantize.qdq import quantized_blocks
from sanderling.workshop.quantize.recipe import Quantized, selected
from sanderling.workshop.quantize.sensitivity import Sensitivity
from sanderling.workshop.search import CONFIDENCE, MOST_TESTS, last_that_holds, order_of_tests, rough_boundary

_ENOUGH_DB = 30.0
_LATENCY_SECONDS = 10.0
_LATENCY_REPEATS = 30


@dataclass(frozen=True)
class Mixed:
    """What the search found: the graph, or None when nothing that was tested keeps the budget."""

    graph: onnx.ModelProto | None
    search: Search


def mix(
    reference: onnx.ModelProto,
    quantized: Quantized,
    material: Material,
    budget: Budget,
    options: BuildOptions,
    progress: Progress,
) -> Mixed | None:
    """Search for the fewest blocks in float that keep the budget.

    Args:
        reference: FP32.
        quantized: all INT8, which misses the budget.
        material: calibration data says where to look, evaluation data decides.
        budget: to keep.
        options: threads and seed.
        progress: told about each step.

    Returns:
        None when the graph cannot be searched.
    """
    assert material.calibration is not None
    sensitivity = quantized.sensitivity
    if sensitivity is None:
        reason = "the graph has If, Loop or Scan nodes: which of its tensors to keep in float cannot be measured"
        progress.event(Event(kind="search-skipped", subject="mixed", reason=reason))
        return None
    selection = selected(material.calibration)
    blocks = quantized_blocks(quantized.model, quantized.scheme)
    steps = find_path(blocks, sensitivity, graph_cost(quantized.model))
    judge_form = _Judge(reference, quantized, steps, material.reader, options, progress)
    with judge_form:
        chosen = _search(judge_form, steps, selection, material, budget, progress)
        points = judge_form.points(material)
    described = _describe(quantized, steps[chosen] if chosen is not None else steps[0], sensitivity)
    search = Search(
        evaluations=judge_form.evaluations,
        confidence=CONFIDENCE,
        chosen=chosen,
        points=points,
        blocks=described,
        samples=sensitivity.samples,
    )
    return Mixed(None if chosen is None else judge_form.graph(chosen), search)


def _search(
    judge_form: _Judge,
    steps: Sequence[Step],
    selection: Samples,
    material: Material,
    budget: Budget,
    progress: Progress,
) -> int | None:
    progress.stage("search mixed precision")
    rough_metric = _rough_metric(material.metric)

    def looks_good(index: int) -> bool:
        if rough_metric is None:
            return sqnr_db(1.0, steps[index].noise) >= _ENOUGH_DB
        drop = judge_form(index, selection, rough_metric, None).drop
        return likely_upper(drop, rough_metric, len(material.evaluation)) <= budget.limit

    boundary = rough_boundary(len(steps), looks_good)
    order = order_of_tests(boundary, len(steps), most=MOST_TESTS)

    def holds(index: int) -> bool:
        labels = material.evaluation.labels
        accuracy = judge_form(index, material.evaluation, material.metric, labels, decides=True)
        return accuracy.drop_upper <= budget.limit

    return last_that_holds(order, holds)


def likely_upper(drop: float, metric: Metric, samples: int) -> float:
    """The bound that so many evaluation samples would give if they lost the same share."""
    if metric == "cosine":
        return 1.5 * drop
    lost = math.ceil(drop / 100 * samples)
    return 100.0 * binomial_upper(min(lost, samples), samples, confidence=CONFIDENCE)


def _rough_metric(metric: Metric) -> Metric | None:
    """What can be told from calibration data, which has no labels and no boxes."""
    if metric == "map":
        return None
    return "agreement" if metric in ("top1", "agreement") else "cosine"


class _Judge:
    """Judges forms by their index on the path, and keeps what it measured."""

    def __init__(
        self,
        reference: onnx.ModelProto,
        quantized: Quantized,
        steps: Sequence[Step],
        reader: DetectionReader | None,
        options: BuildOptions,
        progress: Progress,
    ) -> None:
        self.evaluations = 0
        self._quantized, self._steps, self._options, self._progress = quantized, steps, options, progress
        self._reader = reader
        self._reference = self._open(reference)
        self._decided: dict[int, Accuracy] = {}

    def __call__(
        self,
        index: int,
        samples: Samples,
        metric: Metric,
        labels: np.ndarray | None,
        *,
        decides: bool = False,
    ) -> Accuracy:
        """Accuracy of one form; the bound of one that decides is the search's."""
        self.evaluations += 1
        form = self._open(self.graph(index))
        records = compare_outputs(
            self._reference.run,
            {"fp32": self._reference.run, "form": form.run},
            samples,
            batch=evaluation_batch(self._reference.inputs),
            classify=classifier_classes(self._reference.outputs) is not None,
            progress=self._progress,
            reader=self._reader,
        )
        form.close()
        accuracy = judge(
            records["form"],
            records["fp32"],
            labels,
            metric=metric,
            seed=self._options.seed,
            confidence=CONFIDENCE,
        )
        if decides:
            self._decided[index] = accuracy
        return accuracy

    def graph(self, index: int) -> onnx.ModelProto:
        """The form at that step."""
        return self._quantized.with_float(self._steps[index].float_blocks)

    def points(self, material: Material) -> tuple[SearchPoint, ...]:
        """Every step, with what was measured of it; those that were judged are timed in turn."""
        latencies = self._latencies(material)
        return tuple(
            SearchPoint(
                float_blocks=tuple(sorted(step.float_blocks)),
                predicted_sqnr_db=sqnr_db(1.0, step.noise),
                macs_int8_share=step.macs_int8_share,
                accuracy=self._decided.get(index),
                latency_p50_ms=latencies.get(index),
            )
            for index, step in enumerate(self._steps)
        )

    def _latencies(self, material: Material) -> dict[int, float]:
        feeds = material.evaluation.one(0)
        forms = {index: self._open(self.graph(index)) for index in self._decided}
        if not forms:
            return {}
        timings = time_interleaved(
            {str(index): partial(form.run, feeds) for index, form in forms.items()},
            warmup=3,
            repeats=_LATENCY_REPEATS,
            seconds=_LATENCY_SECONDS,
            progress=self._progress,
        )
        for form in forms.values():
            form.close()
        return {index: timings[str(index)].latency().p50 for index in forms}

    def _open(self, model: onnx.ModelProto) -> Executable:
        return engine().load(model.SerializeToString(), EngineOptions(threads=self._options.threads))

    def __enter__(self) -> _Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self._reference.close()


def _describe(quantized: Quantized, step: Step, sensitivity: Sensitivity) -> tuple[BlockPrecision, ...]:
    """The precision of each block, and what rounding it by itself does to the outputs."""
    floats = quantized.scheme.float_blocks | step.float_blocks
    left = {block.name for block in quantized_blocks(quantized.model, replace(quantized.scheme, float_blocks=floats))}
    described = []
    for block in quantized_blocks(quantized.model, quantized.scheme):
        noise = sensitivity.weights.get(block.name, 0.0)
        noise += sum(sensitivity.tensors[name].whole for name in block.outputs if name in sensitivity.tensors)
        is_float = block.name not in left
        described.append(
            BlockPrecision(
                block=block.name,
                operator=block.op_type,
                precision="fp32" if is_float else "int8",
                output_sqnr_db=sqnr_db(1.0, noise),
                reason=_reason(block.name, is_float, noise, step),
            )
        )
    return tuple(described)


def _reason(name: str, is_float: bool, noise: float, step: Step) -> str:
    share = noise / max(step.noise, 1e-30)
    if is_float and name not in step.float_blocks:
        return "what it reads is float"
    if is_float:
        return "most noise taken away for what it computes, alone or with its neighbours"
    return f"as INT8 it makes {min(share, 1.0):.1%} of the noise that is left"
