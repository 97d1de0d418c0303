"""How long a call takes: candidates timed in turn, so that a machine's moods hit them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pydantic import BaseModel, ConfigDict

from sanderling.core.progress import Progress, Silent
from sanderling.core.statistics import percentiles
from sanderling.model.manifest import Latency

SETTLE_S = 0.04  # ONNX Runtime's threads wait busily for 34 ms after a call, and take the cores of what runs next
WAKE_S = 0.02  # of calls until all cores are awake again: a virtual machine's may need some milliseconds
_BLOCK = 5  # calls of one candidate in a row, when several take turns


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
    """Time every call ``repeats`` times, five of each in turn (AAAAA BBBBB AAAAA …).

    Before each turn the others' threads come to rest, and this one's are woken by untimed calls: engines' threads wait
    busily for a while, so that two of them with two threads each took twice as long on two cores.

    Args:
        calls: by name.
        warmup: untimed rounds first.
        repeats: timed calls of each, at least 1.
        seconds: no new turn begins after this time; at least 10 calls of each are made if ``repeats`` allows.
        progress: advanced by one a timed call of each.
    """
    progress = progress or Silent()
    for _ in range(warmup):
        for call in calls.values():
            call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    for done in range(0, repeats, _BLOCK):
        if done >= 10 and time.perf_counter() > end:
            break
        block = min(_BLOCK, repeats - done)
        for name, call in calls.items():
            if len(calls) > 1:
                _come_to_rest(call)
            for _ in range(block):
                start = time.perf_counter()
                call()
                samples[name].append((time.perf_counter() - start) * 1e3)
        progress.advance(block)
    return {
        name: Timing(
            **percentiles(values),
            warmup=warmup,
            repeats=len(values),
            samples_ms=tuple(round(v, 4) for v in values),
        )
        for name, values in samples.items()
    }


def _come_to_rest(call: Callable[[], object]) -> None:
    """Wait for the threads of others, then wake this call's."""
    time.sleep(SETTLE_S)
    end = time.perf_counter() + WAKE_S
    while time.perf_counter() < end:
        call()
