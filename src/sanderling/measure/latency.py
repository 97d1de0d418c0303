"""How long a call takes: candidates timed in turn, so that a machine's moods hit them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pydantic import BaseModel, ConfigDict

from sanderling.core.progress import Progress, Silent
from sanderling.core.statistics import percentiles
from sanderling.model.manifest import Latency


class Timing(BaseModel):
    """Milliseconds of one candidate's calls.

    Attributes:
        samples_ms: every repeat, in order, so that later readers can do their own statistics.
    """

    model_config = ConfigDict(frozen=True)

    p50: float
    p95: float
    p99: float
    min: float
    mean: float
    warmup: int
    repeats: int
    samples_ms: tuple[float, ...]

    def latency(self) -> Latency:
        """The percentiles alone."""
        return Latency(p50=self.p50, p95=self.p95, p99=self.p99)


def time_interleaved(
    calls: Mapping[str, Callable[[], object]],
    *,
    warmup: int,
    repeats: int,
    seconds: float = float("inf"),
    progress: Progress | None = None,
) -> dict[str, Timing]:
    """Time every call ``repeats`` times, one of each in turn (A B C A B C …).

    Args:
        calls: by name.
        warmup: untimed rounds first.
        repeats: timed rounds, at least 1.
        seconds: no new round begins after this time; at least 10 rounds are made if ``repeats`` allows.
        progress: advanced by one a timed round.
    """
    progress = progress or Silent()
    for _ in range(warmup):
        for call in calls.values():
            call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    for round_number in range(repeats):
        if round_number >= 10 and time.perf_counter() > end:
            break
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            samples[name].append((time.perf_counter() - start) * 1e3)
        progress.advance()
    return {
        name: Timing(
            **percentiles(values),
            warmup=warmup,
            repeats=len(values),
            samples_ms=tuple(round(v, 4) for v in values),
        )
        for name, values in samples.items()
    }
