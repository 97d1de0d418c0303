from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sanderling.core.errors import EngineError
from sanderling.core.progress import Silent
from sanderling.measure.tune.candidates import Candidate
from sanderling.measure.tune.race import race
from sanderling.run.engines.base import Compute


def candidates(count: int) -> list[Candidate]:
    return [Candidate("engine", "cpu", f"v{index}", "fp32", Compute.EXACT, 1, 1) for index in range(count)]


class Laboratory:
    """Draws latencies around known medians, with the long tail of a busy machine."""

    def __init__(self, medians: dict[Candidate, float], *, seed: int = 0, noise: float = 0.05) -> None:
        self.medians = medians
        self.calls = dict.fromkeys(medians, 0)
        self._generator = np.random.default_rng(seed)
        self._noise = noise

    def time(self, candidate: Candidate, warmup: int, repeats: int) -> list[float]:
        self.calls[candidate] += warmup + repeats
        tail = self._generator.pareto(3, repeats) * self._noise
        spread = self._generator.normal(0, self._noise / 3, repeats)
        return list(self.medians[candidate] * (1 + np.abs(spread) + tail))


@given(st.lists(st.floats(0.5, 50), min_size=1, max_size=20), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_winner_is_within_three_percent_of_the_best(medians, seed):
    runners = candidates(len(medians))
    laboratory = Laboratory(dict(zip(runners, medians, strict=True)), seed=seed)
    winner = race(runners, laboratory.time, seconds=60, progress=Silent())[0].candidate
    assert laboratory.medians[winner] <= 1.03 * min(medians)


def test_slow_candidates_cost_a_fraction_of_measuring_all_alike():
    runners = candidates(32)
    laboratory = Laboratory({runner: 1.0 + index for index, runner in enumerate(runners)})
    race(runners, laboratory.time, seconds=60, progress=Silent())
    spent = sum(laboratory.calls[runner] * laboratory.medians[runner] for runner in runners)
    exhaustive = sum(max(laboratory.calls.values()) * median for median in laboratory.medians.values())
    assert spent < exhaustive / 5


def test_every_candidate_is_ranked_once_by_what_it_costs_a_row():
    runners = candidates(9)
    laboratory = Laboratory({runner: float(9 - index) for index, runner in enumerate(runners)}, noise=1e-4)
    ranked = [runner.candidate for runner in race(runners, laboratory.time, seconds=60, progress=Silent())]
    assert ranked == runners[::-1]


def test_rows_of_a_call_share_its_time():
    one = Candidate("engine", "cpu", "a", "fp32", Compute.EXACT, 1, 1)
    eight = Candidate("engine", "cpu", "a", "fp32", Compute.EXACT, 1, 8)
    laboratory = Laboratory({one: 1.0, eight: 4.0})
    ranked = race([one, eight], laboratory.time, seconds=60, progress=Silent())
    assert ranked[0].candidate == eight
    assert ranked[0].cost == pytest.approx(0.5, rel=0.1)


def test_candidate_that_fails_while_it_is_timed_leaves_with_its_reason():
    runners = candidates(3)
    laboratory = Laboratory(dict.fromkeys(runners, 1.0))

    def timer(candidate, warmup, repeats):
        if candidate == runners[0]:
            raise EngineError("the engine's process crashed with SIGSEGV")
        return laboratory.time(candidate, warmup, repeats)

    ranked = race(runners, timer, seconds=60, progress=Silent())
    assert ranked[-1].candidate == runners[0]
    assert "SIGSEGV" in ranked[-1].out
    assert not ranked[0].out


def test_time_that_is_up_still_times_everyone_once():
    runners = candidates(5)
    laboratory = Laboratory(dict.fromkeys(runners, 1.0))
    ranked = race(runners, laboratory.time, seconds=1e-9, progress=Silent())
    assert all(runner.samples_ms for runner in ranked)


def test_race_of_two_lasts_the_least_time_even_when_it_is_clear():
    runners = candidates(2)
    laboratory = Laboratory({runners[0]: 1.0, runners[1]: 2.0})
    start = time.monotonic()
    race(runners, laboratory.time, seconds=60, least_seconds=0.3, progress=Silent())
    assert 0.3 <= time.monotonic() - start < 10
