"""Choose engine, variant and threads of a language model for this machine by measuring."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sanderling.core.errors import NotMetError, OptionError
from sanderling.core.machine import describe_machine, fingerprint, usable_cores
from sanderling.core.progress import Event, Progress, Recorder, Silent
from sanderling.core.statistics import percentiles
from sanderling.measure.tune.candidates import Excluded
from sanderling.measure.tune.keeping import keep
from sanderling.measure.tune.text_worker import ANSWER_TOKENS, PROMPT_TOKENS, SEQUENCES, TextRequestTimes
from sanderling.model.manifest import Manifest, Variant
from sanderling.model.package import Package
from sanderling.model.plan import Objective, Plan, PlanEntry, short_name
from sanderling.model.tuning import CandidateResult, TuneResult
from sanderling.run.text.engines import text_engine_names, text_engine_version

_TIMEOUT_S = 900
_REPEATS = 3
_FINALISTS = 3
_FALLBACKS = 3
_UNITS: Mapping[Objective, str] = {
    "latency": f"ms for a prompt of {PROMPT_TOKENS} tokens and an answer of {ANSWER_TOKENS}",
    "throughput": f"ms a token of {SEQUENCES} answers at once",
    "memory": "MB at the peak",
}

Measure = Callable[["TextCandidate", int], TextRequestTimes]


@dataclass
class TextCandidate:
    """Engine × variant × threads, and what was measured of it.

    Attributes:
        out: why it is out; empty while it is in.
    """

    engine: str
    variant: Variant
    threads: int
    out: str = ""
    request_ms: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    shared_ms: list[float] = field(default_factory=list)
    memory_bytes: int = 0

    @property
    def name(self) -> str:
        """Short name, as the plan's entry has it."""
        return short_name(self.engine, "cpu", self.variant.id, "exact", self.threads, 1)

    def cost(self, objective: Objective) -> float:
        """What the objective compares; less is better."""
        if objective == "memory":
            return self.memory_bytes / 1e6
        return float(np.median(self.request_ms if objective == "latency" else self.shared_ms))

    def take(self, times: TextRequestTimes) -> None:
        """Add measurements."""
        self.out = times.failure
        self.request_ms += times.request_ms
        self.first_ms += times.first_ms
        self.shared_ms += times.shared_ms
        self.memory_bytes = max(self.memory_bytes, times.peak_rss_bytes)


def tune_text(
    path: str | Path,
    *,
    objective: Objective = "latency",
    seconds: float = 60.0,
    engines: Sequence[str] = (),
    progress: Progress | None = None,
    measure: Measure | None = None,
) -> TuneResult:
    """Measure what runs a language model best on this machine, and write the plan and the numbers into its package.

    Only variants inside the package's budget of perplexity take part, and every candidate's scores are compared with
    the golden vectors before it counts. Each is measured in a process of its own; the best three in turn, until the
    time is over or the first is clear.

    Args:
        path: the package, a folder or a zip.
        objective: ``latency`` of a request, ``throughput`` of four at once, or ``memory``.
        seconds: for the turns of the best; the first look at all comes on top.
        engines: only these; all that are installed without any.
        progress: told about each step.
        measure: measures a candidate; in a process of its own by default.

    Raises:
        OptionError: an unknown engine, or a time that is not positive.
        NotMetError: no candidate loads and computes what the package says.
    """
    if not seconds > 0:
        raise OptionError(f"seconds {seconds} must be greater than 0")
    recorder = Recorder(progress or Silent())
    start = time.monotonic()
    package = Package.open(path)
    candidates, excluded = list_text_candidates(package.manifest, engines)
    measure = measure or _in_process(package)
    recorder.stage(f"first look at {len(candidates)} candidates", len(candidates))
    for candidate in candidates:
        _look(candidate, measure, recorder)
    ranked = _ranked(candidates, objective)
    if not ranked or ranked[0].out:
        reasons = [f"{entry.name}: {entry.reason}" for entry in excluded] + [f"{one.name}: {one.out}" for one in ranked]
        raise NotMetError(f"nothing runs package {package.path.name} here as it says: {'; '.join(reasons)}")
    ranked = _race(ranked, objective, seconds, measure, recorder)
    result = TuneResult(
        package=package.path.name,
        fingerprint=fingerprint(),
        plan=_plan(ranked, objective),
        candidates=(
            *(_result(one, ranked[0], objective) for one in ranked),
            *(CandidateResult(name=entry.name, status="excluded", reason=entry.reason) for entry in excluded),
        ),
        events=tuple(recorder.events),
        seconds=round(time.monotonic() - start, 1),
    )
    keep(package, result, Path(path))
    return result


def list_text_candidates(manifest: Manifest, engines: Sequence[str]) -> tuple[list[TextCandidate], list[Excluded]]:
    """All candidates, and what is out with its reason.

    Raises:
        OptionError: an unknown engine.
    """
    unknown = sorted(set(engines) - set(text_engine_names()))
    if unknown:
        raise OptionError(f"unknown engine '{unknown[0]}': available are {', '.join(text_engine_names())}")
    candidates, excluded = [], []
    for variant in manifest.variants:
        if variant.within_budget is False:
            excluded.append(Excluded(variant.id, "the variant is outside the package's budget of perplexity"))
            continue
        for engine in variant.engines:
            if engines and engine not in engines:
                continue
            if not text_engine_version(engine):
                excluded.append(Excluded(f"{engine}/cpu/{variant.id}", "the engine is not installed"))
                continue
            candidates += [TextCandidate(engine, variant, threads) for threads in sorted({1, usable_cores()})]
    return candidates, excluded


def _look(candidate: TextCandidate, measure: Measure, recorder: Recorder) -> None:
    candidate.take(measure(candidate, _REPEATS))
    if candidate.out:
        recorder.event(Event(kind="candidate-excluded", subject=candidate.name, reason=candidate.out))
    recorder.advance()


def _race(
    ranked: list[TextCandidate], objective: Objective, seconds: float, measure: Measure, recorder: Recorder
) -> list[TextCandidate]:
    """Let the best ones run in turn until the time is over, or even the best one's worst is ahead of the second."""
    end = time.monotonic() + seconds
    best = [one for one in ranked if not one.out][:_FINALISTS]
    recorder.stage(f"race: {len(best)} candidates", 0)
    while len(best) > 1 and time.monotonic() < end and not _is_clear(best, objective):
        for candidate in best:
            _look(candidate, measure, recorder)
        best = [one for one in _ranked(best, objective) if not one.out]
    return _ranked(ranked, objective)


def _is_clear(best: Sequence[TextCandidate], objective: Objective) -> bool:
    first, second = best[:2]
    if objective == "memory":
        return True
    own, other = (one.request_ms if objective == "latency" else one.shared_ms for one in (first, second))
    return max(own) < min(other)


def _ranked(candidates: Sequence[TextCandidate], objective: Objective) -> list[TextCandidate]:
    """Best first; those that are out last."""
    running = sorted((one for one in candidates if not one.out), key=lambda one: one.cost(objective))
    return running + [one for one in candidates if one.out]


def _in_process(package: Package) -> Measure:
    def measure(candidate: TextCandidate, repeats: int) -> TextRequestTimes:
        request = {
            "package": str(package.path),
            "variant": candidate.variant.id,
            "engine": candidate.engine,
            "threads": candidate.threads,
            "repeats": repeats,
        }
        command = [sys.executable, "-m", "sanderling.measure.tune.text_worker", json.dumps(request)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return TextRequestTimes(failure=f"it took more than {_TIMEOUT_S} s")
        try:
            return TextRequestTimes.model_validate_json(done.stdout)
        except ValueError:
            told = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            return TextRequestTimes(failure=f"its process ended with {done.returncode}: {told}")

    return measure


def _plan(ranked: Sequence[TextCandidate], objective: Objective) -> Plan:
    """The winner, and the best of every other engine and variant."""
    planned: dict[tuple[str, str], TextCandidate] = {}
    for candidate in ranked:
        if not candidate.out and len(planned) <= _FALLBACKS:
            planned.setdefault((candidate.engine, candidate.variant.id), candidate)
    winner, *fallbacks = map(_entry, planned.values())
    machine = describe_machine()
    return Plan(
        objective=objective,
        machine=f"{machine.processor}, {machine.cores} cores, {machine.architecture}",
        engine_versions={engine: text_engine_version(engine) for engine, _ in planned},
        winner=winner,
        fallbacks=tuple(fallbacks),
    )


def _entry(candidate: TextCandidate) -> PlanEntry:
    spread = percentiles(candidate.request_ms)
    return PlanEntry(
        engine=candidate.engine,
        device="cpu",
        variant=candidate.variant.id,
        precision=candidate.variant.precision,
        compute="exact",
        threads=candidate.threads,
        batch=1,
        p50_ms=spread["p50"],
        p95_ms=spread["p95"],
        throughput_per_s=1e3 / spread["p50"],
        memory_bytes=candidate.memory_bytes,
    )


def _result(candidate: TextCandidate, best: TextCandidate, objective: Objective) -> CandidateResult:
    if candidate.out:
        return CandidateResult(name=candidate.name, status="excluded", reason=candidate.out)
    ordered = sorted(candidate.request_ms)
    return CandidateResult(
        name=candidate.name,
        status="won" if candidate is best else "lost",
        reason=_reason(candidate, best, objective),
        engine=candidate.engine,
        device="cpu",
        variant=candidate.variant.id,
        compute="exact",
        threads=candidate.threads,
        batch=1,
        optimization="all",
        p50_ms=float(np.median(ordered)),
        low_ms=ordered[0],
        high_ms=ordered[-1],
        repeats=len(ordered),
        memory_bytes=candidate.memory_bytes,
    )


def _reason(candidate: TextCandidate, best: TextCandidate, objective: Objective) -> str:
    """Why it won or lost, and its other numbers."""
    own, least = candidate.cost(objective), best.cost(objective)
    first = float(np.median(candidate.first_ms))
    writing = (ANSWER_TOKENS - 1) * 1e3 / max(float(np.median(candidate.request_ms)) - first, 1e-9)
    accuracy = candidate.variant.accuracy
    quality = f", perplexity {accuracy.drop:+.2f} %" if accuracy is not None and accuracy.drop is not None else ""
    at_once = 1e3 / float(np.median(candidate.shared_ms))
    numbers = f"first token {first:.0f} ms, {writing:.0f} tokens/s, {SEQUENCES} at once {at_once:.0f}"
    if candidate is best:
        return f"{own:.3g} {_UNITS[objective]}, the least; {numbers}{quality}"
    ratio = f"{own / least:.2f}× the winner's" if least > 0 else "more than the winner's"
    return f"{ratio} {least:.3g} {_UNITS[objective].split(' ')[0]}; {numbers}{quality}"
