from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanderling.serve.canary import CanaryRules, VersionTally, judge_canary

RULES = CanaryRules(least_requests=100, promote_after_s=60.0)
FLAT = tuple([10.0] * 300)
rules = st.builds(
    CanaryRules,
    least_requests=st.integers(1, 200),
    promote_after_s=st.floats(0, 1000),
    trips=st.integers(1, 5),
    failures=st.integers(1, 5),
    latency_factor=st.floats(1, 4),
)
tallies = st.builds(
    lambda fine, trips, failures, latencies_ms: VersionTally(
        fine + trips + failures, trips, failures, tuple(latencies_ms)
    ),
    st.integers(0, 500),
    st.integers(0, 20),
    st.integers(0, 20),
    st.lists(st.floats(0.01, 1e4), max_size=250),
)
seconds = st.floats(0, 2000)


def tally(requests: int = 300, *, trips: int = 0, failures: int = 0, latencies_ms=FLAT) -> VersionTally:
    return VersionTally(requests, trips, failures, tuple(latencies_ms))


def test_canary_without_a_fault_is_promoted_after_its_time():
    assert judge_canary(RULES, tally(), tally(), running_s=59.0).action == "wait"
    decision = judge_canary(RULES, tally(), tally(), running_s=60.0)
    assert decision == ("promote", "300 requests in 60 s without a fault that counts")


def test_canary_with_too_few_requests_waits_however_long_it_takes():
    decision = judge_canary(RULES, tally(), tally(99, latencies_ms=[10.0] * 99), running_s=1e6)
    assert decision == ("wait", "99 requests, 100 are needed")


def test_canary_that_trips_the_guard_is_rolled_back_at_the_limit():
    assert judge_canary(RULES, tally(), tally(50, trips=1), running_s=1.0).action == "wait"
    decision = judge_canary(RULES, tally(), tally(50, trips=2), running_s=1.0)
    assert decision == ("roll-back", "2 of 50 results failed their check, of the old version 0 of 300")


def test_canary_that_trips_no_more_often_than_the_old_version_stays():
    assert judge_canary(RULES, tally(300, trips=30), tally(50, trips=5), running_s=1.0).action == "wait"


def test_canary_whose_engine_fails_is_rolled_back():
    decision = judge_canary(RULES, tally(0, latencies_ms=()), tally(3, failures=2), running_s=1.0)
    assert decision == ("roll-back", "2 of 3 requests failed, of the old version 0 of 0")


def test_slower_canary_is_rolled_back_with_both_numbers():
    decision = judge_canary(RULES, tally(), tally(latencies_ms=[16.0] * 200), running_s=1.0)
    assert decision == (
        "roll-back",
        "p95 is 16 ms, 15 ms are allowed (1.5 times the old version's 10 ms)",
    )


def test_canary_within_the_factor_stays():
    assert judge_canary(RULES, tally(), tally(latencies_ms=[14.9] * 200), running_s=1.0).action == "wait"


def test_latency_is_not_judged_before_both_versions_have_enough_requests():
    few = tally(latencies_ms=[10.0] * 99)
    slow = tally(latencies_ms=[100.0] * 200)
    assert judge_canary(RULES, few, slow, running_s=1.0).action == "wait"


def test_equal_versions_are_hardly_ever_told_apart_though_they_are_compared_again_and_again():
    generator = np.random.default_rng(0)
    strict = RULES._replace(latency_factor=1.0)
    rolled_back = 0
    for _ in range(100):
        old, new = generator.lognormal(2.0, 0.5, (2, 200))
        looks = [
            judge_canary(strict, tally(latencies_ms=old[:n]), tally(latencies_ms=new[:n]), running_s=1.0).action
            for n in range(100, 201, 20)
        ]
        rolled_back += "roll-back" in looks
    assert rolled_back <= 15  # with no margin at all; at the factor of 1.5 none
    assert all(
        judge_canary(RULES, tally(latencies_ms=old), tally(latencies_ms=new), running_s=1.0).action == "wait"
        for old, new in generator.lognormal(2.0, 0.5, (100, 2, 200))
    )


@given(rules=rules, old=tallies, new=tallies, running_s=seconds)
def test_promotion_needs_the_time_the_requests_and_no_fault(rules, old, new, running_s):
    if judge_canary(rules, old, new, running_s=running_s).action == "promote":
        assert running_s >= rules.promote_after_s
        assert new.requests >= rules.least_requests
        assert judge_canary(rules, old, new, running_s=running_s + 1).action == "promote"


@given(rules=rules, old=tallies, new=tallies, running_s=seconds)
def test_more_trips_never_save_a_canary(rules, old, new, running_s):
    worse = new._replace(requests=new.requests + 5, trips=new.trips + 5)
    if judge_canary(rules, old, new, running_s=running_s).action == "roll-back" and new.trips >= rules.trips:
        assert judge_canary(rules, old, worse, running_s=running_s).action == "roll-back"


@given(rules=rules, same=tallies, running_s=seconds)
def test_canary_that_does_just_what_the_old_version_does_is_not_rolled_back(rules, same, running_s):
    assert judge_canary(rules, same, same, running_s=running_s).action != "roll-back"


@pytest.mark.parametrize("running_s", [0.0, 1e9])
def test_canary_without_requests_waits(running_s):
    assert judge_canary(RULES, tally(), VersionTally(), running_s=running_s).action == "wait"
