"""Choose engine, device, variant, threads and batch for this machine by measuring, and keep the plan in the package."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

from sanderling.core.errors import EngineError, NotMetError, OptionError, SanderlingError
from sanderling.core.machine import Machine, describe_machine, fingerprint
from sanderling.core.progress import Event, Progress, Recorder, Silent
from sanderling.core.statistics import percentiles
from sanderling.measure.golden import safe_level, wrong_outputs
from sanderling.measure.memory import session_memory_bytes
from sanderling.measure.tune.candidates import Candidate, Excluded, list_candidates
from sanderling.measure.tune.keeping import keep
from sanderling.measure.tune.race import Runner, race
from sanderling.measure.tune.stable import Stable
from sanderling.measure.tune.text import tune_text
from sanderling.model.package import Package
from sanderling.model.plan import Objective, Plan, PlanEntry
from sanderling.model.tuning import CandidateResult, TuneResult
from sanderling.run.devices import EngineState, list_engines
from sanderling.run.engines.base import Executable, Optimization
from sanderling.run.session import check_one_graph

_FALLBACKS = 3
_LEAST_SECONDS = 20.0


def parse_objective(text: str) -> Objective:
    """Read ``latency``, ``throughput`` or ``memory``.

    Raises:
        OptionError: another word.
    """
    known: tuple[Objective, ...] = get_args(Objective)
    for objective in known:
        if text == objective:
            return objective
    raise OptionError(f"unknown objective '{text}': available are {', '.join(known)}")


def tune(
    path: str | Path,
    *,
    objective: Objective = "latency",
    seconds: float = 60.0,
    engines: Sequence[str] = (),
    progress: Progress | None = None,
) -> TuneResult:
    """Measure what runs the package best on this machine, and write the plan and the numbers into the package.

    Every candidate's outputs are compared with the golden vectors before it may race. Candidates run in worker
    processes: one whose engine crashes or hangs is out with its reason, and the others go on.

    Args:
        path: the package, a folder or a zip.
        objective: ``latency`` of one row, ``throughput`` in rows a second over batch sizes, or ``memory``; of a
            language model as of ``tune_text``.
        seconds: for the race; loading and checking come on top.
        engines: only these; all that are installed without any.
        progress: told about each step.

    Raises:
        OptionError: an unknown engine, or a time that is not positive.
        NotMetError: no candidate loads and computes what the package says.
    """
    if not seconds > 0:
        raise OptionError(f"seconds {seconds} must be greater than 0")
    progress = Recorder(progress or Silent())
    start = time.monotonic()
    package = Package.open(path)
    if package.manifest.text is not None:
        return tune_text(path, objective=objective, seconds=seconds, engines=engines, progress=progress)
    check_one_graph(package)
    states = _states(engines)
    candidates, excluded = list_candidates(package.manifest, states, objective)
    with ExitStack() as stack:
        stable = Stable(package, stack)
        levelled = _at_safe_levels(package, candidates, _rewriting(states), stable, progress)
        checked, wrong = _check(package, levelled, stable, progress)
        if not checked:
            reasons = "; ".join(f"{entry.name}: {entry.reason}" for entry in [*excluded, *wrong])
            raise NotMetError(f"nothing runs package {package.path.name} here as it says: {reasons}")
        least = min(_LEAST_SECONDS, seconds / 3)
        ranked = race(checked, stable.time, seconds=seconds, least_seconds=least, progress=progress)
    if objective == "memory":
        ranked = _by_memory(package, ranked, progress)
    planned = _planned(ranked)
    _measure_memory(package, [runner for runner in planned if runner.memory_bytes is None], progress)
    result = TuneResult(
        package=package.path.name,
        fingerprint=fingerprint(),
        plan=_plan(planned, objective, describe_machine(), states),
        candidates=(*_results(ranked, objective), *(_out(entry) for entry in [*wrong, *excluded])),
        events=tuple(progress.events),
        seconds=round(time.monotonic() - start, 1),
    )
    keep(package, result, Path(path))
    return result


def _states(engines: Sequence[str]) -> list[EngineState]:
    states = list_engines()
    unknown = set(engines) - {state.name for state in states}
    if unknown:
        known = ", ".join(state.name for state in states)
        raise OptionError(f"unknown engine '{sorted(unknown)[0]}': available are {known}")
    return [state for state in states if not engines or state.name in engines]


def _rewriting(states: Sequence[EngineState]) -> set[tuple[str, str]]:
    """Engines and devices whose rewriting of the graph can be held at a level."""
    return {
        (state.name, device.device) for state in states for device in state.devices if len(device.optimizations) > 1
    }


def _at_safe_levels(
    package: Package,
    candidates: Sequence[Candidate],
    rewriting: set[tuple[str, str]],
    stable: Stable,
    progress: Progress,
) -> list[Candidate]:
    """The candidates, each at the highest level of optimisation that leaves the graph's outputs as they are."""
    golden, tolerance = package.golden(), package.manifest.golden.tolerance
    levels: dict[tuple[str, str, str, str], Optimization] = {}
    for candidate in candidates:
        kind = (candidate.engine, candidate.device, candidate.variant, candidate.compute)
        if kind in levels or kind[:2] not in rewriting:
            continue
        try:
            found = safe_level(
                partial(_at_level, stable, candidate),
                golden,
                candidate.variant,
                tolerance[candidate.variant],
            )
        except SanderlingError:  # the check of the candidate itself meets it too, and keeps its reason
            continue
        levels[kind] = found.level
        if found.reason:
            subject = "/".join(kind[:3])
            progress.event(Event(kind="optimization-lowered", subject=subject, reason=found.reason))
    return [
        replace(one, optimization=levels.get((one.engine, one.device, one.variant, one.compute), one.optimization))
        for one in candidates
    ]


def _at_level(stable: Stable, candidate: Candidate, level: Optimization) -> Executable:
    return stable.executable(replace(candidate, optimization=level))


def _check(
    package: Package, candidates: Sequence[Candidate], stable: Stable, progress: Progress
) -> tuple[list[Candidate], list[Excluded]]:
    """Load every candidate and compare its outputs with the golden vectors."""
    golden, tolerance = package.golden(), package.manifest.golden.tolerance
    passed: list[Candidate] = []
    failed: list[Excluded] = []
    progress.stage("load and check candidates", len(candidates))
    for candidate in candidates:
        try:
            wrong = wrong_outputs(stable.executable(candidate), golden, candidate.variant, tolerance[candidate.variant])
        except SanderlingError as error:
            wrong = str(error)
        if wrong is None:
            passed.append(candidate)
        else:
            failed.append(Excluded(candidate.name, wrong))
            progress.event(Event(kind="candidate-excluded", subject=candidate.name, reason=wrong))
        progress.advance()
    return passed, failed


def _by_memory(package: Package, ranked: list[Runner], progress: Progress) -> list[Runner]:
    """Order the runners that are in by the memory that each adds to a fresh process."""
    running = [runner for runner in ranked if not runner.out]
    for runner, failure in _measure_memory(package, running, progress):
        runner.out = failure
    kept = sorted((runner for runner in running if not runner.out), key=lambda runner: runner.memory_bytes or 0)
    return kept + [runner for runner in ranked if runner.out]


def _measure_memory(package: Package, runners: Sequence[Runner], progress: Progress) -> list[tuple[Runner, str]]:
    """Measure what each adds to a fresh process; those that could not be measured come back with the reason."""
    failed = []
    progress.stage("measure memory", len(runners))
    for runner in runners:
        candidate = runner.candidate
        model = package.file(package.variant(candidate.variant).file)
        try:
            runner.memory_bytes = session_memory_bytes(
                model, engine_name=candidate.engine, options=candidate.options, batch=candidate.batch
            )
        except EngineError as error:
            failed.append((runner, str(error)))
            progress.event(Event(kind="memory-not-measured", subject=candidate.name, reason=str(error)))
        progress.advance()
    return failed


def _planned(ranked: Sequence[Runner]) -> list[Runner]:
    """The winner and its fallbacks.

    A fallback is for when the winner's engine or variant fails, so one a (engine, device, variant) is enough.
    """
    planned: dict[tuple[str, str, str], Runner] = {}
    for runner in ranked:
        candidate = runner.candidate
        if not runner.out and len(planned) <= _FALLBACKS:
            planned.setdefault((candidate.engine, candidate.device, candidate.variant), runner)
    if not planned:
        raise NotMetError("every candidate failed while it was timed: " + "; ".join(runner.out for runner in ranked))
    return list(planned.values())


def _plan(planned: Sequence[Runner], objective: Objective, machine: Machine, states: Sequence[EngineState]) -> Plan:
    winner, *fallbacks = map(_entry, planned)
    used = {entry.engine for entry in (winner, *fallbacks)}
    versions = {state.name: state.availability.version for state in states if state.name in used}
    return Plan(
        objective=objective,
        machine=f"{machine.processor}, {machine.cores} cores, {machine.architecture}",
        engine_versions=versions,
        winner=winner,
        fallbacks=tuple(fallbacks),
    )


def _entry(runner: Runner) -> PlanEntry:
    candidate, spread = runner.candidate, percentiles(runner.samples_ms)
    return PlanEntry(
        engine=candidate.engine,
        device=candidate.device,
        variant=candidate.variant,
        precision=candidate.precision,
        compute=candidate.compute,
        threads=candidate.threads,
        batch=candidate.batch,
        p50_ms=spread["p50"],
        p95_ms=spread["p95"],
        throughput_per_s=candidate.batch * 1e3 / spread["p50"],
        memory_bytes=runner.memory_bytes,
        optimization=candidate.optimization.value,
    )


def _results(ranked: Sequence[Runner], objective: Objective) -> list[CandidateResult]:
    results = []
    for place, runner in enumerate(ranked):
        if runner.out:
            results.append(_out(Excluded(runner.candidate.name, runner.out)))
            continue
        low, high = (bound * runner.candidate.batch for bound in runner.bounds())
        results.append(
            CandidateResult(
                name=runner.candidate.name,
                status="won" if place == 0 else "lost",
                reason=_reason(runner, ranked[0], objective),
                engine=runner.candidate.engine,
                device=runner.candidate.device,
                variant=runner.candidate.variant,
                compute=runner.candidate.compute,
                threads=runner.candidate.threads,
                batch=runner.candidate.batch,
                optimization=runner.candidate.optimization.value,
                p50_ms=runner.p50_ms,
                low_ms=low,
                high_ms=high,
                repeats=len(runner.samples_ms),
                memory_bytes=runner.memory_bytes,
            )
        )
    return results


def _reason(runner: Runner, best: Runner, objective: Objective) -> str:
    """Why it won or lost, in what the objective compares."""
    own, least, unit = runner.cost, best.cost, "ms a row"
    if objective == "memory":
        own, least, unit = (runner.memory_bytes or 0) / 1e6, (best.memory_bytes or 0) / 1e6, "MB"
    if runner is best:
        return f"{own:.3g} {unit}, the least"
    ratio = f"{own / least:.2f}× the winner's" if least > 0 else "more than the winner's"
    return f"{ratio} {least:.3g} {unit}"


def _out(entry: Excluded) -> CandidateResult:
    return CandidateResult(name=entry.name, status="excluded", reason=entry.reason)
