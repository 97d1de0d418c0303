"""Choose engine, device, variant, threads and batch for this machine by measuring, and keep the plan in the package."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict

from sanderling.core.errors import EngineError, NotMetError, OptionError, SanderlingError
from sanderling.core.machine import Machine, describe_machine, fingerprint
from sanderling.core.progress import Event, Progress, Silent
from sanderling.core.statistics import percentiles
from sanderling.measure.golden import wrong_outputs
from sanderling.measure.memory import session_memory_bytes
from sanderling.measure.tune.candidates import Candidate, Excluded, list_candidates
from sanderling.measure.tune.race import Runner, race
from sanderling.measure.tune.stable import Stable
from sanderling.model.package import Package, rewrite_manifest
from sanderling.model.plan import Objective, Plan, PlanEntry
from sanderling.run.devices import EngineState, list_engines

_FALLBACKS = 3
_LEAST_SECONDS = 20.0


class CandidateResult(BaseModel):
    """What became of a candidate.

    Attributes:
        status: ``won``, ``lost`` (slower), or ``excluded`` (never raced, or fell out).
        p50_ms: median of one call; None without a measurement.
        low_ms: lower end of the median's 95 % confidence interval.
        high_ms: upper end.
        repeats: timed calls.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    status: Literal["won", "lost", "excluded"]
    reason: str
    p50_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    repeats: int = 0


class TuneResult(BaseModel):
    """The plan for this machine and the candidates behind it."""

    model_config = ConfigDict(frozen=True)

    package: str
    fingerprint: str
    plan: Plan
    candidates: tuple[CandidateResult, ...]
    seconds: float

    def summary(self) -> dict[str, Any]:
        """What ``sanderling tune --json`` prints: ``plan`` is the winner's entry with its fallbacks."""
        value = self.model_dump(mode="json")
        plan = value["plan"]
        return {**value, "plan": {**plan["winner"], **{key: plan[key] for key in plan if key != "winner"}}}


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
    """Measure what runs the package best on this machine, and write the plan into the package.

    Every candidate's outputs are compared with the golden vectors before it may race. Candidates run in worker
    processes: one whose engine crashes or hangs is out with its reason, and the others go on.

    Args:
        path: the package, a folder or a zip.
        objective: ``latency`` of one row, ``throughput`` in rows a second over batch sizes, or ``memory``.
        seconds: for the race; loading and checking come on top.
        engines: only these; all that are installed without any.
        progress: told about each step.

    Raises:
        OptionError: an unknown engine, or a time that is not positive.
        NotMetError: no candidate loads and computes what the package says.
    """
    if not seconds > 0:
        raise OptionError(f"seconds {seconds} must be greater than 0")
    progress = progress or Silent()
    start = time.monotonic()
    package = Package.open(path)
    states = _states(engines)
    candidates, excluded = list_candidates(package.manifest, states, objective)
    with ExitStack() as stack:
        stable = Stable(package, stack)
        checked, wrong = _check(package, candidates, stable, progress)
        if not checked:
            reasons = "; ".join(f"{entry.name}: {entry.reason}" for entry in [*excluded, *wrong])
            raise NotMetError(f"nothing runs package {package.path.name} here as it says: {reasons}")
        least = min(_LEAST_SECONDS, seconds / 3)
        ranked = race(checked, stable.time, seconds=seconds, least_seconds=least, progress=progress)
    if objective == "memory":
        ranked = _by_memory(package, ranked, progress)
    machine, own = describe_machine(), fingerprint()
    plan = _plan(ranked, objective, machine, states)
    manifest = package.manifest.model_copy(update={"plans": {**package.manifest.plans, own: plan}})
    rewrite_manifest(package, manifest, Path(path))
    return TuneResult(
        package=package.path.name,
        fingerprint=own,
        plan=plan,
        candidates=(*_results(ranked), *(_out(entry) for entry in [*wrong, *excluded])),
        seconds=round(time.monotonic() - start, 1),
    )


def _states(engines: Sequence[str]) -> list[EngineState]:
    states = list_engines()
    unknown = set(engines) - {state.name for state in states}
    if unknown:
        known = ", ".join(state.name for state in states)
        raise OptionError(f"unknown engine '{sorted(unknown)[0]}': available are {known}")
    return [state for state in states if not engines or state.name in engines]


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
    progress.stage("measure memory", len(running))
    used = {}
    for runner in running:
        candidate = runner.candidate
        model = package.file(package.variant(candidate.variant).file)
        try:
            used[candidate] = session_memory_bytes(model, engine_name=candidate.engine, threads=candidate.threads)
        except EngineError as error:
            runner.out = str(error)
        progress.advance()
    kept = sorted((runner for runner in running if not runner.out), key=lambda runner: used[runner.candidate])
    for runner in kept:
        runner.memory_bytes = used[runner.candidate]
    return kept + [runner for runner in ranked if runner.out]


def _plan(ranked: Sequence[Runner], objective: Objective, machine: Machine, states: Sequence[EngineState]) -> Plan:
    entries = [_entry(runner) for runner in ranked if not runner.out]
    if not entries:
        raise NotMetError("every candidate failed while it was timed: " + "; ".join(runner.out for runner in ranked))
    winner = entries[0]
    # A fallback is for when the winner's engine or variant fails, so one a (engine, device, variant) is enough.
    places = {(winner.engine, winner.device, winner.variant)}
    fallbacks: list[PlanEntry] = []
    for entry in entries[1:]:
        place = (entry.engine, entry.device, entry.variant)
        if place not in places and len(fallbacks) < _FALLBACKS:
            places.add(place)
            fallbacks.append(entry)
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
    )


def _results(ranked: Sequence[Runner]) -> list[CandidateResult]:
    best = ranked[0]
    results = []
    for place, runner in enumerate(ranked):
        if runner.out:
            results.append(_out(Excluded(runner.candidate.name, runner.out)))
            continue
        low, high = (bound * runner.candidate.batch for bound in runner.bounds())
        ratio = runner.cost / best.cost
        reason = (
            f"{runner.cost:.3g} ms a row, the least"
            if place == 0
            else f"{ratio:.2f}× the winner's {best.cost:.3g} ms a row"
        )
        results.append(
            CandidateResult(
                name=runner.candidate.name,
                status="won" if place == 0 else "lost",
                reason=reason,
                p50_ms=runner.p50_ms,
                low_ms=low,
                high_ms=high,
                repeats=len(runner.samples_ms),
            )
        )
    return results


def _out(entry: Excluded) -> CandidateResult:
    return CandidateResult(name=entry.name, status="excluded", reason=entry.reason)
