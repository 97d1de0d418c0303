"""What `tune` measured, as the package keeps it in `tuning.json`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from sanderling.core.progress import Event
from sanderling.model.plan import OptimizationName, Plan

TUNING = "tuning.json"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class CandidateResult(_Record):
    """What became of a candidate.

    Attributes:
        status: ``won``, ``lost`` (slower), or ``excluded`` (never raced, or fell out).
        engine: and the fields after it, down to ``optimization``: None where it never raced.
        p50_ms: median of one call; None without a measurement.
        low_ms: lower end of the median's 95 % confidence interval.
        high_ms: upper end.
        repeats: timed calls.
        memory_bytes: what loading and running adds to a process; None where it was not measured.
    """

    name: str
    status: Literal["won", "lost", "excluded"]
    reason: str
    engine: str | None = None
    device: str | None = None
    variant: str | None = None
    compute: str | None = None
    threads: int | None = None
    batch: int | None = None
    optimization: OptimizationName | None = None
    p50_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    repeats: int = 0
    memory_bytes: int | None = None


class TuneResult(_Record):
    """The plan for a kind of device and the candidates behind it.

    Attributes:
        events: what was left out or changed on the way, with the reason.
    """

    package: str
    fingerprint: str
    plan: Plan
    candidates: tuple[CandidateResult, ...]
    events: tuple[Event, ...] = ()
    seconds: float

    def summary(self) -> dict[str, Any]:
        """What ``sanderling tune --json`` prints: ``plan`` is the winner's entry with its fallbacks."""
        value = self.model_dump(mode="json")
        plan = value["plan"]
        return {**value, "plan": {**plan["winner"], **{key: plan[key] for key in plan if key != "winner"}}}


class Tuning(_Record):
    """The file: the last result by fingerprint of a kind of device."""

    schema_version: Literal[1] = 1
    results: dict[str, TuneResult] = {}

    def to_text(self) -> str:
        """The file's content."""
        return self.model_dump_json(indent=1) + "\n"
