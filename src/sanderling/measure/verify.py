"""Check that what a package says still holds here: hashes, golden vectors, and accuracy when data is given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from sanderling.core.errors import DataError, EngineError, ModelError, PackageError, SanderlingError, UnavailableError
from sanderling.core.machine import fingerprint
from sanderling.core.progress import Event, Progress, Silent
from sanderling.core.statistics import CONFIDENCE
from sanderling.measure.accuracy import (
    classifier_classes,
    compare_outputs,
    evaluation_batch,
    judge,
    metric_for,
    within_budget,
)
from sanderling.measure.checks import Check
from sanderling.measure.detection import check_objects
from sanderling.measure.golden import safe_level, wrong_outputs
from sanderling.measure.golden_gradients import gradient_verification
from sanderling.measure.multimodal_golden import check_branches
from sanderling.measure.samples import SampleReader, check_labels
from sanderling.measure.text_golden import check_text
from sanderling.measure.tune.stable import Stable, candidate_of
from sanderling.model.manifest import Accuracy, Metric, Variant
from sanderling.model.package import GoldenVectors, Package
from sanderling.model.plan import Plan
from sanderling.run.engines import engine
from sanderling.run.engines.base import Optimization
from sanderling.run.isolated import Worker
from sanderling.run.placing import default_options
from sanderling.run.vision.reading import reader_of

_PLAN_PASSES, _PLAN_REPEATS = 3, 15
_UNFELT_MS = 0.02  # a row, that are no reason to tune again: a model of 10 µs takes 12 in the next minute
_PLAN_ROUNDS = 3  # of passes before a plan is said to be overtaken: a machine may be busy for a moment
_STILL_BEST = 1.1


class VerifyResult(BaseModel):
    """All checks of a package."""

    model_config = ConfigDict(frozen=True)

    package: str
    passed: bool
    checks: tuple[Check, ...]
    accuracy: dict[str, Accuracy]


def verify(
    path: str | Path,
    *,
    evaluation: str | Path | None = None,
    threads: int = 0,
    progress: Progress | None = None,
) -> VerifyResult:
    """Verify a package on this machine.

    Args:
        path: the package.
        evaluation: folder, CSV or ``.npz`` to measure the accuracy on again; of a language model, a text file.
        threads: of one call; 0 leaves it to the engine.
        progress: told about each step.

    Raises:
        PackageError: the manifest is unreadable; changed or missing files are a failed check instead.
        DataError: the evaluation data cannot be used.
    """
    progress = progress or Silent()
    package = Package.open(path, check_hashes=False, check_files=False)
    progress.stage("hashes")
    problems = package.problems()
    checks = [Check(name="hashes", passed=not problems, detail="; ".join(problems) or _hashes_hold(package))]
    accuracy: dict[str, Accuracy] = {}
    if not problems and package.manifest.text is not None:
        checks += check_text(package, evaluation, threads, progress)
    elif not problems and package.manifest.multimodal is not None:
        checks += check_branches(package, evaluation, threads, progress)
    elif not problems:
        checks += _golden_checks(package, threads, progress)
        if package.manifest.learning is not None:
            progress.stage("golden gradients")
            checks.append(gradient_verification(package, threads))
        if evaluation is not None and all(check.passed for check in checks):
            metric, told = _accuracy(package, Path(evaluation), threads, progress)
            accuracy = told[metric]
            checks += [_budget_check(package, name, value) for name, value in accuracy.items()]
            checks += [_told(name, value) for other in told if other != metric for name, value in told[other].items()]
        checks += [*_tuning_checks(package), *_plan_checks(package, progress)]
    passed = all(check.passed for check in checks)
    return VerifyResult(package=package.path.name, passed=passed, checks=tuple(checks), accuracy=accuracy)


def check_golden(package: Package, worker: Worker, *, threads: int = 0) -> list[Check]:
    """Run every variant's golden vectors in a worker process; a model that crashes it is a failed check.

    A variant whose engine is not here cannot run here, and passes with that as its detail.

    Raises:
        PackageError: the golden vectors are unreadable.
    """
    golden = package.golden()
    return [_worker_check(package, variant, golden, worker, threads) for variant in package.manifest.variants]


def _worker_check(package: Package, variant: Variant, golden: GoldenVectors, worker: Worker, threads: int) -> Check:
    tolerance = package.manifest.golden.tolerance[variant.id]
    try:
        options = default_options(variant, threads=threads)
        with closing(worker.load(variant.engines[0], package.file(variant.file), options)) as executable:
            wrong = wrong_outputs(executable, golden, variant.id, tolerance)
    except UnavailableError as error:
        return Check(name=f"golden vectors, {variant.id}", passed=True, detail=f"not run here: {error}")
    except (EngineError, ModelError) as error:
        wrong = str(error)
    return _golden_result(package, variant, wrong)


def _golden_result(package: Package, variant: Variant, wrong: str | None) -> Check:
    tolerance, samples = package.manifest.golden.tolerance[variant.id], package.manifest.golden.samples
    right = f"right on {samples} samples: within {tolerance:.0e} of the golden outputs, or as close to FP32's"
    return Check(name=f"golden vectors, {variant.id}", passed=wrong is None, detail=wrong or right)


def _hashes_hold(package: Package) -> str:
    return f"{len(package.manifest.files)} files have the hashes that the manifest says"


def _golden_checks(package: Package, threads: int, progress: Progress) -> list[Check]:
    golden = package.golden()
    progress.stage("golden vectors", len(package.manifest.variants))
    checks = []
    for variant in package.manifest.variants:
        checks.append(_golden_check(package, variant, golden, threads, progress))
        progress.advance()
    return checks


def _golden_check(package: Package, variant: Variant, golden: GoldenVectors, threads: int, progress: Progress) -> Check:
    tolerance = package.manifest.golden.tolerance[variant.id]
    try:
        executable = engine(variant.engines[0]).load(
            package.file(variant.file), default_options(variant, threads=threads)
        )
        wrong = wrong_outputs(executable, golden, variant.id, tolerance)
        executable.close()
        wrong = _optimizer_fault(package, variant, golden, threads, progress) or wrong
    except (EngineError, ModelError) as error:
        wrong = str(error)
    return _golden_result(package, variant, wrong)


def _optimizer_fault(
    package: Package, variant: Variant, golden: GoldenVectors, threads: int, progress: Progress
) -> str | None:
    """What the engine's optimiser does to the outputs at the level that the package says, or None."""
    found, levels = engine(variant.engines[0]), list(Optimization)
    if len(found.devices()[0].optimizations) == 1:
        return None
    options, file = default_options(variant, threads=threads), package.file(variant.file)
    safe = safe_level(
        lambda level: found.load(file, replace(options, optimization=level)),
        golden,
        variant.id,
        package.manifest.golden.tolerance[variant.id],
    )
    if levels.index(safe.level) >= levels.index(options.optimization):
        return None
    progress.event(Event(kind="optimization-lowered", subject=variant.id, reason=safe.reason))
    return f"{found.name}'s optimiser changes the outputs: {safe.reason}; build again, or follow sanderling tune"


def _accuracy(
    package: Package, source: Path, threads: int, progress: Progress
) -> tuple[Metric, dict[Metric, dict[str, Accuracy]]]:
    """The budget's metric, and every variant's accuracy in it; with labels in top-1 besides, with objects in mAP."""
    manifest = package.manifest
    progress.stage("read evaluation data")
    samples = SampleReader(manifest.inputs, manifest.preprocessing, manifest.labels, progress, manifest.sound).read(
        source
    )
    classes = classifier_classes(manifest.outputs)
    if samples.labels is not None and classes is None:
        raise DataError(f"{source} has labels, but the package's model is no classifier")
    check_labels(samples, classes or 0)
    reader = reader_of(manifest)
    check_objects(samples.objects, manifest.outputs, reader)
    executables = {
        variant.id: engine(variant.engines[0]).load(
            package.file(variant.file), default_options(variant, threads=threads)
        )
        for variant in manifest.variants
    }
    reference = manifest.variants[0].id
    progress.stage("measure accuracy", len(samples))
    runs = {name: executable.run for name, executable in executables.items()}
    batch = evaluation_batch(manifest.inputs)
    records = compare_outputs(
        runs[reference],
        runs,
        samples,
        batch=batch,
        classify=classes is not None,
        progress=progress,
        reader=reader,
    )
    for executable in executables.values():
        executable.close()
    metric = metric_for(manifest.budget, manifest.outputs, labelled=samples.labelled, reader=reader)
    confidence = {
        variant.id: variant.accuracy.confidence if variant.accuracy else CONFIDENCE for variant in manifest.variants
    }
    of_labels: Metric = "map" if samples.objects is not None else "top1"
    metrics: list[Metric] = [metric] if not samples.labelled or metric == of_labels else [metric, of_labels]
    return metric, {
        wanted: {
            name: judge(record, records[reference], samples.labels, metric=wanted, seed=0, confidence=confidence[name])
            for name, record in records.items()
        }
        for wanted in metrics
    }


def _tuning_checks(package: Package) -> list[Check]:
    """Whether what the package keeps of its tuning can be read; it is not needed to run."""
    try:
        package.tuning()
    except PackageError as error:
        return [Check(name="tuning", passed=False, detail=str(error))]
    return []


def _plan_checks(package: Package, progress: Progress) -> list[Check]:
    """Measure the stored plan of this kind of device again, its winner against its fallbacks in turn."""
    plan = package.manifest.plans.get(fingerprint())
    if plan is None:
        return []
    progress.stage("measure the plan again")
    costs: dict[str, float] = {}
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        stable = Stable(package, stack)
        for _ in range(_PLAN_ROUNDS):
            _time_plan(stable, plan, costs, failed)
            if plan.winner.name in failed or plan.objective == "memory" or _is_still_best(plan, costs):
                break
    name = f"plan, {plan.winner.name}"
    if plan.winner.name in failed:
        return [Check(name=name, passed=False, detail=failed[plan.winner.name])]
    told = ", ".join(f"{entry} {cost:.3g} ms a row" for entry, cost in costs.items())
    if plan.objective == "memory":
        return [Check(name=name, passed=True, detail=f"{told}; chosen for its memory")]
    best = min(costs, key=lambda entry: costs[entry])
    return [Check(name=name, passed=_is_still_best(plan, costs), detail=f"{told}; best: {best}")]


def _time_plan(stable: Stable, plan: Plan, costs: dict[str, float], failed: dict[str, str]) -> None:
    """Lower each entry's cost, in milliseconds a row, to what it takes now; or say why it fails."""
    for entry in [plan.winner, *plan.fallbacks] * _PLAN_PASSES:
        try:
            timed = stable.time(candidate_of(entry), 2, _PLAN_REPEATS)
            costs[entry.name] = min(costs.get(entry.name, math.inf), float(np.median(timed)) / entry.batch)
        except SanderlingError as error:
            failed[entry.name] = str(error)


def _is_still_best(plan: Plan, costs: Mapping[str, float]) -> bool:
    best = min(costs.values())
    return costs[plan.winner.name] <= max(_STILL_BEST * best, best + _UNFELT_MS)


def _told(name: str, accuracy: Accuracy) -> Check:
    """A measurement without a limit."""
    return Check(name=f"accuracy, {name}", passed=True, detail=_numbers(accuracy))


def _numbers(accuracy: Accuracy) -> str:
    return (
        f"{accuracy.metric} {accuracy.value:.4g}, drop {accuracy.drop:.3g}, upper {100 * accuracy.confidence:g} % "
        f"bound {accuracy.drop_upper:.3g} on {accuracy.samples} samples"
    )


def _budget_check(package: Package, name: str, accuracy: Accuracy) -> Check:
    """The chosen variant must stay inside the budget; for the others the numbers are only told."""
    budget = package.manifest.budget
    if budget is None or name != package.manifest.chosen or name == package.manifest.variants[0].id:
        return _told(name, accuracy)
    return Check(
        name=f"accuracy, {name} (chosen)",
        passed=within_budget(accuracy, budget),
        detail=f"{_numbers(accuracy)}; budget {budget.metric}={budget.limit:g}",
    )
