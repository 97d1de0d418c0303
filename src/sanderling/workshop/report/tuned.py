"""What the report shows of a tuning: per kind of device the Pareto picture and every candidate."""

from __future__ import annotations

from dataclasses import dataclass

from sanderling.core.progress import Event
from sanderling.model.manifest import Manifest
from sanderling.model.plan import Plan
from sanderling.model.tuning import CandidateResult, TuneResult, Tuning
from sanderling.run.engines.base import Compute
from sanderling.workshop.report.pareto import SHAPES, Mark, legend, pareto


@dataclass(frozen=True)
class TunedDevice:
    """A kind of device.

    Attributes:
        legend: small pictures with what they mean.
        raced: candidates that were timed, best first.
        excluded: what never raced, or fell out.
        events: other than that a candidate is out.
    """

    plan: Plan
    chart: str
    legend: list[tuple[str, str]]
    raced: list[CandidateResult]
    excluded: list[CandidateResult]
    events: list[Event]
    seconds: float


def tuned_devices(manifest: Manifest, tuning: Tuning, *, y_title: str) -> list[TunedDevice]:
    """Every kind of device that the package was tuned on; an engine has one shape and colour on all of them."""
    drops = {item.id: max(item.accuracy.drop, 0.0) for item in manifest.variants if item.accuracy}
    results = [
        result for result in tuning.results.values() if any(_is_shown(entry, drops) for entry in result.candidates)
    ]
    engines = sorted({entry.engine for result in results for entry in result.candidates if entry.engine})
    limit = manifest.budget.limit if manifest.budget else None
    return [_device(result, engines, drops, y_title, limit) for result in results]


def _is_shown(entry: CandidateResult, drops: dict[str, float]) -> bool:
    return entry.engine is not None and bool(entry.p50_ms) and entry.variant in drops


def _device(
    result: TuneResult, engines: list[str], drops: dict[str, float], y_title: str, limit: float | None
) -> TunedDevice:
    marks = [_mark(entry, engines, drops) for entry in result.candidates if _is_shown(entry, drops)]
    return TunedDevice(
        plan=result.plan,
        chart=pareto(marks, x_title="latency p50, ms a row", y_title=y_title, limit=limit),
        legend=legend(marks, engines),
        raced=[entry for entry in result.candidates if entry.p50_ms is not None],
        excluded=[entry for entry in result.candidates if entry.p50_ms is None],
        events=[event for event in result.events if event.kind != "candidate-excluded"],
        seconds=result.seconds,
    )


def _mark(entry: CandidateResult, engines: list[str], drops: dict[str, float]) -> Mark:
    assert entry.engine is not None
    assert entry.variant is not None
    assert entry.p50_ms is not None
    return Mark(
        label=entry.name,
        shape=engines.index(entry.engine) % len(SHAPES),
        x=entry.p50_ms / (entry.batch or 1),
        y=drops[entry.variant],
        memory_bytes=entry.memory_bytes,
        hollow=entry.compute != Compute.EXACT,
        chosen=entry.status == "won",
    )
