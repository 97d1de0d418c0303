"""Successive halving: look at all, time the better half more, and again, until the order is clear.

Source: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification", AISTATS 2016.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sanderling.core.errors import SanderlingError
from sanderling.core.progress import Progress
from sanderling.measure.tune.candidates import Candidate

_WARMUP = 1
_FIRST_LOOK = 2
_HOPELESS = 3.0
_FIRST_REPEATS = 4
_MOST_REPEATS = 64
_PASSES = 3
_ENOUGH_SAMPLES = 1000
_CLEAR_PASSES = 9
_STAYS_WITHIN = 1.05
Timer = Callable[[Candidate, int, int], list[float]]


@dataclass
class Runner:
    """A candidate in the race.

    Attributes:
        samples_ms: of every timed call.
        pass_medians_ms: of each pass, in order; all runners that are in took part in the same passes.
        out: why it left the race; empty while it is in.
        memory_bytes: what it adds to a process, where that was measured.
    """

    candidate: Candidate
    samples_ms: list[float] = field(default_factory=list)
    pass_medians_ms: list[float] = field(default_factory=list)
    out: str = ""
    memory_bytes: int | None = None

    @property
    def p50_ms(self) -> float:
        """Median of one call."""
        return float(np.median(self.samples_ms)) if self.samples_ms else math.inf

    @property
    def cost(self) -> float:
        """Milliseconds a row, which is what the race is about."""
        return self.p50_ms / self.candidate.batch

    def bounds(self) -> tuple[float, float]:
        """95 % confidence interval of the cost, from order statistics of the samples."""
        ordered = np.sort(self.samples_ms)
        reach = 1.96 * math.sqrt(len(ordered)) / 2
        low = ordered[max(0, math.floor(len(ordered) / 2 - reach))]
        high = ordered[min(len(ordered) - 1, math.ceil(len(ordered) / 2 + reach))]
        return float(low) / self.candidate.batch, float(high) / self.candidate.batch


def race(
    candidates: Sequence[Candidate],
    timer: Timer,
    *,
    seconds: float,
    progress: Progress,
    least_seconds: float = 0.0,
) -> list[Runner]:
    """Time candidates against each other; the first of the result is the winner.

    Args:
        candidates: at least one.
        timer: times a candidate's calls (candidate, warm-up, repeats) and returns milliseconds.
        seconds: no further pass begins after this time; every candidate is timed at least once.
        least_seconds: the race does not end sooner while two are left: a machine's moods last for seconds.
        progress: told about rounds.

    Returns:
        Every candidate: those still in by cost, then those that left, the last to leave first.
    """
    runners = [Runner(candidate) for candidate in candidates]
    end, soonest = time.monotonic() + seconds, time.monotonic() + least_seconds
    progress.stage(f"first look at {len(runners)} candidates", len(runners))
    _one_pass(runners, timer, _FIRST_LOOK, progress)
    left, running = _sorted_out(runners, _hopeful)
    repeats = _FIRST_REPEATS
    while len(running) > 1 and time.monotonic() < end:
        if time.monotonic() > soonest and _is_clear(running):
            break
        progress.stage(f"race: {len(running)} candidates", len(running) * _PASSES)
        for _ in range(_PASSES):
            _one_pass(running, timer, repeats, progress)
            if time.monotonic() > end:
                break
        lost, running = _sorted_out(running, _kept)
        left = lost + left
        repeats = min(repeats * 2, _MOST_REPEATS)
    return running + left


def _one_pass(running: Sequence[Runner], timer: Timer, repeats: int, progress: Progress) -> None:
    for runner in running:
        if not runner.out:
            try:
                samples = timer(runner.candidate, _WARMUP, repeats)
                runner.samples_ms += samples
                runner.pass_medians_ms.append(float(np.median(samples)))
            except SanderlingError as error:
                runner.out = str(error)
        progress.advance()


def _sorted_out(
    runners: Sequence[Runner], kept: Callable[[Sequence[Runner]], int]
) -> tuple[list[Runner], list[Runner]]:
    """Those that leave, and those that go on, each best first; who failed leaves last."""
    failed = [runner for runner in runners if runner.out]
    ranked = sorted((runner for runner in runners if not runner.out), key=lambda runner: runner.cost)
    count = kept(ranked) if ranked else 0
    return ranked[count:] + failed, ranked[:count]


def _hopeful(ranked: Sequence[Runner]) -> int:
    """How many are not hopeless: even their quickest call is three times the best one's median or more."""
    return max(
        1, sum(min(runner.samples_ms) / runner.candidate.batch < _HOPELESS * ranked[0].cost for runner in ranked)
    )


def _kept(ranked: Sequence[Runner]) -> int:
    """How many go on: the better half, but the last two together, and whoever is within 5 % of the best."""
    close = sum(runner.cost <= _STAYS_WITHIN * ranked[0].cost for runner in ranked)
    return min(len(ranked), max(2, math.ceil(len(ranked) / 2), close))


def _is_clear(ranked: Sequence[Runner]) -> bool:
    """Whether the best beats the second in nearly all passes, or both have been timed enough.

    A busy machine slows calls for a while, so calls of one pass are not independent: passes are what is counted. Nine
    passes of nine, or all but one of fourteen, have a chance below 1 in 500 between equals.
    """
    if len(ranked[0].samples_ms) >= _ENOUGH_SAMPLES:
        return True
    best, second = ranked[:2]
    pairs = list(zip(best.pass_medians_ms, second.pass_medians_ms, strict=True))
    won = sum(ours / best.candidate.batch < theirs / second.candidate.batch for ours, theirs in pairs)
    return len(pairs) >= _CLEAR_PASSES and len(pairs) - won <= len(pairs) // 14
