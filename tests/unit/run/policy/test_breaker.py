from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanderling.run.policy.breaker import BreakerRules, BreakerState, after_trip

RULES = BreakerRules(trips=3, window_ms=1000)
TIMES = st.lists(st.integers(0, 400), max_size=30).map(lambda steps: [sum(steps[: n + 1]) for n in range(len(steps))])


def trips(rules: BreakerRules, times: list[float], *, is_safe: bool = False) -> tuple[BreakerState, list[bool]]:
    """State after trips at these times, and at which of them the safe variant took over."""
    state, opened = BreakerState(), []
    for now_ms in times:
        state, _, opens = after_trip(rules, state, now_ms=now_ms, has_last_good=False, is_safe=is_safe)
        opened.append(opens)
    return state, opened


@pytest.mark.parametrize(
    ("on_trip", "has_last_good", "is_safe", "action"),
    [
        ("retry-fp32", False, False, "retry-fp32"),
        ("retry-fp32", True, False, "retry-fp32"),
        ("last-good", True, False, "last-good"),
        ("last-good", False, False, "retry-fp32"),
        ("raise", True, False, "raise"),
        ("raise", False, False, "raise"),
        ("retry-fp32", True, True, "raise"),
        ("retry-fp32", False, True, "raise"),
        ("last-good", True, True, "last-good"),
        ("last-good", False, True, "raise"),
        ("raise", True, True, "raise"),
    ],
)
def test_request_gets_what_the_policy_says_as_far_as_that_can_help(on_trip, has_last_good, is_safe, action):
    rules = RULES._replace(on_trip=on_trip)
    _, done, _ = after_trip(rules, BreakerState(), now_ms=5, has_last_good=has_last_good, is_safe=is_safe)
    assert done == action


@pytest.mark.parametrize("on_trip", ["retry-fp32", "last-good", "raise"])
def test_safe_variant_takes_over_at_the_trip_that_fills_the_window_whatever_requests_get(on_trip):
    state, opened = trips(RULES._replace(on_trip=on_trip), [0, 500, 999, 1000])
    assert opened == [False, False, True, False]
    assert state.is_open


def test_first_trip_is_enough_where_the_policy_says_so():
    assert trips(RULES._replace(trips=1), [7, 8])[1] == [True, False]


@pytest.mark.parametrize(("third_ms", "opens"), [(999, True), (1000, False)])
def test_trip_as_old_as_the_window_no_longer_counts(third_ms, opens):
    assert trips(RULES, [0, 500, third_ms])[1][-1] is opens


def test_rare_trips_never_open_it():
    assert not trips(RULES, list(range(0, 100_000, 600)))[0].is_open


def test_trips_of_the_safe_variant_do_not_count():
    state, opened = trips(RULES, [0, 1, 2, 3], is_safe=True)
    assert (state, any(opened)) == (BreakerState(), False)


def test_trips_of_the_safe_variant_leave_an_open_breaker_open():
    state, _ = trips(RULES, [0, 1, 2])
    after, _, opens = after_trip(RULES, state, now_ms=3, has_last_good=False, is_safe=True)
    assert (after, opens) == (state, False)


@given(TIMES, st.integers(1, 5), st.integers(1, 1000))
def test_it_opens_once_at_the_first_window_with_enough_trips_and_stays_open(times, count, window_ms):
    state, opened = trips(BreakerRules(trips=count, window_ms=window_ms), times)
    full = [sum(now_ms - window_ms < at <= now_ms for at in times[: n + 1]) >= count for n, now_ms in enumerate(times)]
    assert opened == [is_full and not any(full[:n]) for n, is_full in enumerate(full)]
    assert state.is_open == any(full)


@given(TIMES, st.integers(1, 5))
def test_state_never_grows_beyond_the_trips_that_matter(times, count):
    state, _ = trips(BreakerRules(trips=count, window_ms=1e9), times)
    assert len(state.tripped_ms) <= count
    assert list(state.tripped_ms) == sorted(state.tripped_ms)
