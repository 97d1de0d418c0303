"""Play a trace with several policies and keep what they did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sanderling.core.errors import OptionError
from sanderling.core.files import replacing
from sanderling.core.progress import Progress, Silent
from sanderling.run.emulation.table import LatencyTable, read_table
from sanderling.twin.contenders import contender
from sanderling.twin.report import render_page
from sanderling.twin.simulate import Played, play
from sanderling.twin.summary import Summary, summarize
from sanderling.twin.traces import Trace, trace_of

_THERMAL = {
    "tau": "tau_s",
    "r": "r_c_per_w",
    "ambient": "ambient_c",
    "throttle": "throttle_c",
    "slowdown": "slowdown",
}


@dataclass(frozen=True)
class Example:
    """A replay that is built in, as the options of the command."""

    trace: str
    policy: str
    table: str
    thermal: tuple[str, ...]
    minutes: float


EXAMPLES = {
    "thermal": Example(
        trace="camera:yolov5s@30fps,deadline=50+camera:mobilenetv3@30fps,deadline=50",
        policy="article",
        table="article",
        thermal=("ambient=45",),
        minutes=12.0,
    )
}


@dataclass(frozen=True)
class Replay:
    """What all policies made of one trace, in the order in which they were named."""

    trace: Trace
    table: LatencyTable
    plays: tuple[tuple[Played, Summary], ...]

    @property
    def summaries(self) -> tuple[Summary, ...]:
        """The numbers alone."""
        return tuple(summary for _, summary in self.plays)

    def to_json(self) -> dict[str, Any]:
        """The numbers as one JSON object."""
        return {
            "requests": len(self.trace),
            "models": list(self.trace.models),
            "table": self.table.source,
            "policies": [summary.model_dump(mode="json") for summary in self.summaries],
        }


def example(name: str) -> Example:
    """A built-in replay.

    Raises:
        OptionError: an unknown name.
    """
    if name not in EXAMPLES:
        raise OptionError(f"unknown example '{name}': available are {', '.join(EXAMPLES)}")
    return EXAMPLES[name]


def table_of(source: str, thermal: Sequence[str] = ()) -> LatencyTable:
    """A latency table with other heat.

    Args:
        source: path, or ``article``.
        thermal: each ``[DEVICE:]tau=…,r=…,ambient=…,throttle=…,slowdown=…``, any of them.

    Raises:
        OptionError, DataError: one of them cannot be used.
    """
    table = read_table(source)
    for text in thermal:
        device, colon, rest = text.rpartition(":")
        changes: dict[str, float] = {}
        for part in rest.split(","):
            key, equals, value = part.strip().partition("=")
            try:
                changes[_THERMAL[key]] = float(value)
            except (KeyError, ValueError):
                known = ", ".join(f"{name}=NUMBER" for name in _THERMAL)
                wrong = f"'{part}'" if equals else f"'{part}', which is no key=value"
                raise OptionError(f"--thermal {text} has {wrong}: expected [DEVICE:]{known}") from None
        table = table.with_thermal(changes, device if colon else None)
    return table


def replay(
    trace_text: str,
    policies: Sequence[str],
    table: LatencyTable,
    *,
    minutes: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Replay:
    """Play one trace with each policy.

    Args:
        trace_text: a CSV file or a specification, see ``trace_of``.
        policies: at least one: files, ``default``, ``article``, ``baseline:NAME``.
        table: with all models of the trace.
        minutes: that the trace lasts.
        seed: of the trace and of the jitter.
        progress: told each policy.

    Raises:
        OptionError, DataError, UnavailableError: an argument cannot be used.
    """
    progress = progress or Silent()
    trace = trace_of(trace_text, minutes=minutes, seed=seed)
    contenders = [contender(text, trace.models, table, progress=progress) for text in policies]
    played = []
    for each in contenders:
        progress.stage(f"replay {each.name}", int(trace.time_ms[-1] // 60e3))
        played.append(play(each, trace, table, seed=seed, progress=progress))
    thresholds = _thresholds(played, table)
    return Replay(trace, table, tuple((each, summarize(each, thresholds)) for each in played))


def write_page(path: Path, result: Replay, *, trace_text: str, command: str) -> None:
    """Write the page with pictures and tables.

    Raises:
        OutputError: it cannot be written.
    """
    seconds = float(result.trace.time_ms[-1]) / 1e3
    length = f"{seconds / 60:.0f} minutes" if seconds > 150 else f"{seconds:.0f} seconds"
    words = f"{len(result.trace):,} requests in {length}: {trace_text}"
    with replacing(path) as scratch:
        scratch.write_text(render_page(result.plays, result.table, trace=words, command=command), encoding="utf-8")


def _thresholds(played: Sequence[Played], table: LatencyTable) -> dict[str, frozenset[float]]:
    """By device every temperature at which some policy leaves it, and at which it slows itself down."""
    limits: dict[str, set[float]] = {device: set() for device in table.device_kinds}
    for device, found in limits.items():
        throttle_c = table.device(device).thermal.throttle_c
        if throttle_c is not None:
            found.add(throttle_c)
        found |= {each.contender.thresholds_c[device][0] for each in played if device in each.contender.thresholds_c}
    return {device: frozenset(found) for device, found in limits.items()}
