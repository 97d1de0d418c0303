from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanderling.run.policy import NEVER
from sanderling.run.policy.scheduling import (
    SchedulingRules,
    call_limit_ms,
    capped_for_ms,
    is_late,
    may_leave,
    spills,
    urgency,
    utilization_after,
)

RULES = SchedulingRules()


def key(priority=0, arrival_ms=0.0, deadline_ms=NEVER):
    return urgency(RULES, priority=priority, arrival_ms=arrival_ms, deadline_ms=deadline_ms)


def test_priority_comes_before_the_deadline_and_the_deadline_before_arrival():
    order = [
        key(priority=2, arrival_ms=9.0),
        key(priority=1, arrival_ms=5.0, deadline_ms=20.0),
        key(priority=1, arrival_ms=0.0, deadline_ms=30.0),
        key(priority=0, arrival_ms=0.0, deadline_ms=1.0),
    ]
    assert order == sorted(order)


def test_request_without_a_deadline_is_not_overtaken_for_ever():
    old = key(arrival_ms=0.0)
    assert key(arrival_ms=900.0, deadline_ms=990.0) < old
    assert all(key(arrival_ms=later, deadline_ms=later + 30.0) > old for later in (980.0, 2000.0, 1e6))


@given(st.floats(0, 1e6), st.floats(0, 1e4), st.floats(0, 1e4))
def test_request_is_late_exactly_when_it_would_end_after_its_deadline(now_ms, left_ms, shortest_ms):
    deadline_ms = now_ms + left_ms
    assert is_late(now_ms=now_ms, deadline_ms=deadline_ms, shortest_ms=shortest_ms) == (
        now_ms + shortest_ms > deadline_ms
    )
    assert not is_late(now_ms=now_ms, deadline_ms=NEVER, shortest_ms=shortest_ms)


def test_request_that_ends_at_its_deadline_is_in_time():
    assert not is_late(now_ms=10.0, deadline_ms=30.0, shortest_ms=20.0)
    assert is_late(now_ms=10.1, deadline_ms=30.0, shortest_ms=20.0)


@pytest.mark.parametrize(
    ("deadline_ms", "others_wait", "limit_ms"),
    [(NEVER, False, NEVER), (NEVER, True, 100.0), (50.0, True, 40.0), (500.0, False, 490.0), (5.0, True, -5.0)],
)
def test_call_may_last_until_the_deadline_and_a_slice_while_others_wait(deadline_ms, others_wait, limit_ms):
    assert call_limit_ms(RULES, now_ms=10.0, deadline_ms=deadline_ms, others_wait=others_wait) == limit_ms


@pytest.mark.parametrize(
    ("spill", "deadline_ms", "utilization", "expected"),
    [
        ("never", 50.0, 1.0, False),
        ("deadline", 50.0, 0.0, True),
        ("deadline", 100.0, 1.0, False),
        ("deadline", NEVER, 1.0, False),
        ("balanced", 50.0, 0.0, True),
        ("balanced", 100.0, 0.8, False),
        ("balanced", 100.0, 0.81, True),
        ("balanced", NEVER, 0.81, True),
        ("earliest", NEVER, 0.0, True),
    ],
)
def test_request_may_leave_a_device_that_is_too_slow_for_it_or_too_busy(spill, deadline_ms, utilization, expected):
    rules = SchedulingRules(spill=spill)
    found = may_leave(rules, own_finish_ms=100.0, deadline_ms=deadline_ms, utilization=utilization)
    assert found is expected


@pytest.mark.parametrize(
    ("other_ms", "deadline_ms", "expected"),
    [(10.0, 50.0, True), (50.0, 50.0, True), (60.0, 50.0, False), (60.0, NEVER, True), (100.0, NEVER, False)],
)
def test_request_spills_only_where_the_other_device_helps(other_ms, deadline_ms, expected):
    assert spills(own_finish_ms=100.0, other_finish_ms=other_ms, deadline_ms=deadline_ms) is expected


def test_utilization_tends_to_the_share_of_busy_time():
    utilization = 0.0
    for _ in range(2000):
        utilization = utilization_after(utilization, idle_ms=3.0, busy_ms=7.0)
    assert utilization == pytest.approx(0.7, abs=0.005)


@given(st.floats(0, 1), st.floats(0, 1e5), st.floats(0, 1e5))
def test_utilization_stays_a_share_and_idling_lowers_it(utilization, idle_ms, busy_ms):
    assert 0.0 <= utilization_after(utilization, idle_ms=idle_ms, busy_ms=busy_ms) <= 1.0 + 1e-12
    assert utilization_after(utilization, idle_ms=idle_ms, busy_ms=0.0) <= utilization + 1e-12


@given(st.floats(0.81, 1.0), st.floats(0, 1e9))
def test_background_waits_until_the_utilization_is_at_the_cap_and_then_runs(utilization, now_ms):
    wait_ms = capped_for_ms(RULES, utilization=utilization, idle_ms=0.0, priority=-1)
    assert utilization * math.exp(-wait_ms / 1000.0) == pytest.approx(0.8)
    idle_ms = (now_ms + wait_ms) - now_ms  # as a clock would have it, rounded
    assert capped_for_ms(RULES, utilization=utilization, idle_ms=idle_ms, priority=-1) == 0.0


def test_cap_concerns_background_only_unless_the_policy_says_all():
    full = {"utilization": 1.0, "idle_ms": 0.0}
    assert capped_for_ms(RULES, **full, priority=0) == 0.0
    assert capped_for_ms(RULES, **full, priority=-1) == pytest.approx(1000 * math.log(1 / 0.8))
    assert capped_for_ms(SchedulingRules(cap_applies_to="all"), **full, priority=5) > 0.0
    assert capped_for_ms(RULES, utilization=0.8, idle_ms=0.0, priority=-1) == 0.0


def test_cap_leaves_headroom_under_endless_background_work():
    utilization, busy_ms, now_ms, since_ms = 0.0, 0.0, 0.0, 0.0
    while now_ms < 60_000.0:
        now_ms += capped_for_ms(RULES, utilization=utilization, idle_ms=now_ms - since_ms, priority=-1)
        utilization = utilization_after(utilization, idle_ms=now_ms - since_ms, busy_ms=20.0)
        now_ms += 20.0
        since_ms = now_ms
        busy_ms += 20.0
    assert busy_ms / now_ms == pytest.approx(0.8, abs=0.02)
