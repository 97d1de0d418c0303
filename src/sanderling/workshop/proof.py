"""Prove the variants: accuracy, latency, memory, golden vectors; and choose by what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from sanderling.core.arrays import write_npz
from sanderling.core.errors import EngineError
from sanderling.core.precision import Precision
from sanderling.core.progress import Event, Progress
from sanderling.core.statistics import CONFIDENCE
from sanderling.measure.accuracy import classifier_classes, compare_outputs, evaluation_batch, judge
from sanderling.measure.confusion import Confusion
from sanderling.measure.latency import Timing, time_interleaved
from sanderling.measure.memory import session_memory_bytes
from sanderling.model.manifest import Accuracy, Budget, Golden, Variant
from sanderling.model.package import GoldenVectors
from sanderling.run.engines import DEFAULT_ENGINE, engine
from sanderling.run.engines.base import EngineOptions, Executable, Optimization
from sanderling.workshop.material import Material
from sanderling.workshop.options import BuildOptions
from sanderling.workshop.preparation import WrittenVariant
from sanderling.workshop.search import CONFIDENCE as SEARCH_CONFIDENCE

GOLDEN = "golden.npz"
GOLDEN_TOLERANCE = {
    Precision.FP32: 1e-4,
    Precision.FP16: 1e-2,
    Precision.INT8: 5e-2,
    Precision.INT8_WEIGHTS: 5e-2,
    Precision.INT4_WEIGHTS: 5e-2,
}
DEFAULT_BUDGETS = {"top1": 1.0, "map": 1.0, "agreement": 5.0, "cosine": 0.01}
_SEARCHED = ("int8", "mixed")
_GOLDEN_SAMPLES = 4
_WARMUP = 10
_TIMING_SECONDS = 20.0
_CLEARLY_FASTER = 0.95
_LEAST_MAP = 5.0


@dataclass(frozen=True)
class Judged:
    """How a variant does on the evaluation data, and on labelled data what it takes for what."""

    accuracy: Accuracy
    confusion: Confusion | None


def measure_accuracy(
    files: Mapping[str, Path],
    levels: Mapping[str, Optimization],
    material: Material,
    options: BuildOptions,
    progress: Progress,
) -> dict[str, Judged]:
    """Accuracy of every variant on the evaluation data; FP32, named ``fp32``, is the reference.

    The bounds on INT8 and on mixed precision hold with more confidence: there are two chances to be lucky.
    """
    with ExitStack() as stack:
        loaded = {name: _load(path, _settings(levels[name], options), stack) for name, path in files.items()}
        return _accuracy(loaded, material, options, progress)


def measure_performance(
    files: Mapping[str, Path],
    levels: Mapping[str, Optimization],
    material: Material,
    options: BuildOptions,
    progress: Progress,
) -> tuple[dict[str, Timing], dict[str, int | None]]:
    """Latency, in turn, and memory of every variant."""
    settings = {name: _settings(levels[name], options) for name in files}
    with ExitStack() as stack:
        loaded = {name: _load(path, settings[name], stack) for name, path in files.items()}
        progress.stage("measure latency", options.repeats)
        feeds = material.evaluation.one(0)
        timings = time_interleaved(
            {name: partial(executable.run, feeds) for name, executable in loaded.items()},
            warmup=_WARMUP,
            repeats=options.repeats,
            seconds=_TIMING_SECONDS,
            progress=progress,
        )
    progress.stage("measure memory", len(files))
    return timings, {name: _memory(name, path, settings[name], progress) for name, path in files.items()}


def golden_vectors(folder: Path, variants: Sequence[WrittenVariant], material: Material) -> Golden:
    """Write the first evaluation samples and each variant's outputs for them, computed as its graph is written."""
    count = min(_GOLDEN_SAMPLES, len(material.evaluation))
    calls = [material.evaluation.one(index) for index in range(count)]
    inputs = {name: np.stack([call[name] for call in calls]) for name in calls[0]}
    outputs = {}
    for variant in variants:
        with ExitStack() as stack:
            executable = _load(variant.path, EngineOptions(threads=1, optimization=Optimization.NONE), stack)
            results = [executable.run(call) for call in calls]
        outputs[variant.id] = {name: np.stack([result[name] for result in results]) for name in results[0]}
    write_npz(folder / GOLDEN, GoldenVectors(inputs, outputs).to_arrays())
    tolerance = {variant.id: GOLDEN_TOLERANCE[variant.precision] for variant in variants}
    return Golden(file=GOLDEN, samples=count, tolerance=tolerance)


def default_budget(accuracy: Accuracy) -> Budget:
    """The budget of a user who gave none, in the metric that the data allows."""
    return Budget(metric=accuracy.metric, limit=DEFAULT_BUDGETS[accuracy.metric])


def choose(variants: tuple[Variant, ...], budget: Budget) -> tuple[str, str]:
    """The fastest variant inside the budget, and the reason in words.

    A less exact variant must be faster by a clear margin: a tie, or noise, never costs accuracy.
    """
    best = variants[0]
    reasons = []
    for variant in variants[1:]:
        accuracy = variant.accuracy
        if not variant.within_budget and accuracy is not None:
            reasons.append(
                f"{variant.id} misses it: {accuracy.metric} drop {accuracy.drop:.3g}, upper "
                f"{100 * accuracy.confidence:g} % bound {accuracy.drop_upper:.3g} on {accuracy.samples} samples"
            )
        elif _p50(variant) < _CLEARLY_FASTER * _p50(best):
            best = variant
        else:
            reasons.append(f"{variant.id} is inside it, but not clearly faster ({_p50(variant):.2f} ms)")
    chosen = f"{best.id} ({_p50(best):.2f} ms) is the fastest inside the budget {budget.metric}={budget.limit:g}"
    return best.id, "; ".join([chosen, *reasons])


def _settings(level: Optimization, options: BuildOptions) -> EngineOptions:
    return EngineOptions(threads=options.threads, optimization=level)


def _load(path: Path, options: EngineOptions, stack: ExitStack) -> Executable:
    executable = engine().load(path, options)
    stack.callback(executable.close)
    return executable


def _accuracy(
    loaded: Mapping[str, Executable], material: Material, options: BuildOptions, progress: Progress
) -> dict[str, Judged]:
    progress.stage("measure accuracy", len(material.evaluation))
    runs = {name: executable.run for name, executable in loaded.items()}
    reference = loaded["fp32"]
    records = compare_outputs(
        runs["fp32"],
        runs,
        material.evaluation,
        batch=evaluation_batch(reference.inputs),
        classify=classifier_classes(reference.outputs) is not None,
        progress=progress,
        reader=material.reader,
    )
    labels = material.evaluation.labels
    judged = {
        name: Judged(
            judge(
                record,
                records["fp32"],
                labels,
                metric=material.metric,
                seed=options.seed,
                confidence=SEARCH_CONFIDENCE if name in _SEARCHED else CONFIDENCE,
            ),
            record.confusion(labels),
        )
        for name, record in records.items()
    }
    warn_of_nothing_to_lose(judged["fp32"].accuracy, progress)
    return judged


def warn_of_nothing_to_lose(reference: Accuracy, progress: Progress) -> None:
    """Tell when FP32 finds next to nothing: a detector that finds nothing keeps every budget."""
    if reference.metric == "map" and reference.value < _LEAST_MAP:
        reason = (
            f"FP32's mAP50-95 is {reference.value:.2g} %, so that no variant can lose more: check that the boxes are "
            "left, top, right, bottom in pixels of the model's input, that classes start at 0, and the preprocessing"
        )
        progress.event(Event(kind="nothing-to-lose", subject="accuracy", reason=reason))


def _memory(name: str, path: Path, options: EngineOptions, progress: Progress) -> int | None:
    try:
        return session_memory_bytes(path, engine_name=DEFAULT_ENGINE, options=options)
    except EngineError as error:
        progress.event(Event(kind="memory-not-measured", subject=name, reason=str(error)))
        return None
    finally:
        progress.advance()


def _p50(variant: Variant) -> float:
    return variant.latency_ms.p50 if variant.latency_ms else float("inf")
