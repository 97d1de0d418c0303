from __future__ import annotations

import time
from functools import partial
from itertools import groupby

import pytest

from sanderling.core.progress import Recorder, Silent
from sanderling.measure.latency import SETTLE_S, time_interleaved


def noting(log: list[str], *names: str) -> dict:
    """Calls that write their name into ``log``."""
    return {name: (lambda name=name: log.append(name)) for name in names}


def turns(log: list[str]) -> list[str]:
    """Who was called, without how often in a row."""
    return [name for name, _ in groupby(log)]


class Counter(Recorder):
    """Counts the steps."""

    steps = 0

    def advance(self, steps: int = 1) -> None:
        self.steps += steps


def test_candidates_are_called_in_turn():
    log = []
    timings = time_interleaved(noting(log, "a", "b", "c"), warmup=0, repeats=12)
    assert turns(log) == ["a", "b", "c"] * 3
    assert {timing.repeats for timing in timings.values()} == {12}


def test_threads_of_one_candidate_are_at_rest_before_the_next_is_timed():
    ended = {}
    gaps = []

    def call(name):
        now = time.perf_counter()
        gaps.extend(now - end for other, end in ended.items() if other != name)
        ended[name] = time.perf_counter()

    time_interleaved({name: partial(call, name) for name in "ab"}, warmup=0, repeats=5)
    assert min(gaps) >= SETTLE_S


def test_lone_candidate_is_timed_without_waiting():
    log = []
    time_interleaved(noting(log, "a"), warmup=2, repeats=7)
    assert log == ["a"] * 9


def test_warm_up_is_called_in_turn_and_not_counted():
    log = []
    timings = time_interleaved(noting(log, "a", "b"), warmup=2, repeats=3)
    assert log[:4] == ["a", "b"] * 2
    assert turns(log) == ["a", "b"] * 3
    assert timings["a"].warmup == 2
    assert timings["a"].repeats == len(timings["a"].samples_ms) == 3


def test_slow_warm_up_does_not_show_in_the_numbers():
    waits = iter([0.05, 0.05, 0, 0, 0])
    timing = time_interleaved({"a": lambda: time.sleep(next(waits))}, warmup=2, repeats=3)["a"]
    assert timing.p50 < 40


def test_times_are_milliseconds_of_each_candidate():
    timings = time_interleaved({"slow": lambda: time.sleep(0.02), "fast": lambda: None}, warmup=0, repeats=3)
    assert 20 <= timings["slow"].min < 200
    assert timings["fast"].min < 5


def test_no_round_begins_after_the_time_but_ten_are_made():
    log = []
    timings = time_interleaved(noting(log, "a", "b"), warmup=0, repeats=1000, seconds=0)
    assert timings["a"].repeats == timings["b"].repeats == 10
    assert turns(log) == ["a", "b"] * 2


def test_time_limit_ends_a_long_measurement():
    timing = time_interleaved({"a": lambda: time.sleep(0.005)}, warmup=0, repeats=10_000, seconds=0.15)["a"]
    assert 10 <= timing.repeats <= 40


def test_fewer_repeats_than_ten_are_kept_to():
    assert time_interleaved({"a": lambda: None}, warmup=0, repeats=2, seconds=0)["a"].repeats == 2


def test_each_timed_round_is_one_step_of_progress():
    progress = Counter(Silent())
    time_interleaved({"a": lambda: None, "b": lambda: None}, warmup=4, repeats=5, progress=progress)
    assert progress.steps == 5


def test_latency_holds_the_percentiles_of_the_repeats():
    timing = time_interleaved({"a": lambda: None}, warmup=0, repeats=50)["a"]
    latency = timing.latency()
    assert (latency.p50, latency.p95, latency.p99) == (timing.p50, timing.p95, timing.p99)
    assert timing.min <= latency.p50 <= latency.p95 <= latency.p99
    assert latency.p50 == pytest.approx(sorted(timing.samples_ms)[25], abs=0.05)


def test_failing_call_is_not_swallowed():
    def fail() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        time_interleaved({"a": fail}, warmup=0, repeats=1)
