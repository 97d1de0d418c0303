from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanderling.run.policy import NEVER
from sanderling.run.policy.placement import (
    LaneRule,
    LaneState,
    PlacementState,
    RecoveryRule,
    after_call,
    after_failure,
    after_pardon,
    after_presence,
    after_temperature,
    blocked,
    choose,
    pin,
    start,
)

NPU, GPU, CPU = RULES = (
    LaneRule("npu", "npu:0", slow_ms=15, leave_c=75, return_c=65),
    LaneRule("gpu", "gpu:0", slow_ms=30, leave_c=85, return_c=75),
    LaneRule("cpu", "cpu"),
)
RECOVERY = RecoveryRule(slow_calls=3, hold_off_ms=100, longest_hold_off_ms=1000)


def call(state, lane, latency_ms, now_ms):
    return after_call(RULES, RECOVERY, state, lane=lane, latency_ms=latency_ms, now_ms=now_ms)


def slow(state, lane, now_ms, times=3):
    switches = []
    for _ in range(times):
        state, switch = call(state, lane, 1000.0, now_ms)
        switches += [switch] if switch else []
    return state, switches


def warm(state, temperature_c, now_ms, device="npu:0"):
    return after_temperature(RULES, state, device=device, temperature_c=temperature_c, now_ms=now_ms)


def fail(state, lane, now_ms):
    return after_failure(RECOVERY, state, lane=lane, reason="it broke", now_ms=now_ms)


def test_slow_lane_is_not_left_for_one_that_is_known_to_be_slower():
    state = start(RULES)
    for _ in range(10):
        state, switch = after_call(
            RULES, RECOVERY, state, lane=0, latency_ms=RULES[0].slow_ms + 1, now_ms=1.0, other_ms=RULES[0].slow_ms + 2
        )
        assert switch is None
    assert state.lanes[0].slow == 0


def test_first_lane_is_used_at_first():
    assert start(RULES).active == 0


def test_lane_is_left_after_several_slow_calls_in_a_row_and_says_so():
    state, switches = slow(start(RULES), 0, 5.0)
    assert [(switch.source, switch.target) for switch in switches] == [(0, 1)]
    assert switches[0].reason == "3 calls in a row took more than 15 ms, the last 1000.0 ms"
    assert (state.active, state.wake_ms) == (1, 105.0)


def test_quick_call_between_slow_ones_keeps_the_lane():
    state = start(RULES)
    for _ in range(5):
        state, _ = slow(state, 0, 5.0, times=2)
        state, switch = call(state, 0, 15.0, 5.0)
        assert switch is None
    assert state.active == 0


def test_lane_returns_when_its_hold_off_is_over_and_not_before():
    state, _ = slow(start(RULES), 0, 0.0)
    assert choose(state, now_ms=99.9) == (state, None)
    state, switch = choose(state, now_ms=100.0)
    assert (switch.source, switch.target, state.wake_ms) == (1, 0, NEVER)
    assert switch.reason.startswith("hold-off is over (3 calls in a row")


def test_hold_off_doubles_with_each_failure_up_to_its_limit_and_starts_anew_after_a_good_call():
    state, now_ms, held = start(RULES), 0.0, []
    for _ in range(6):
        state, _ = fail(state, 0, now_ms)
        held.append(state.lanes[0].held_until_ms - now_ms)
        now_ms = state.lanes[0].held_until_ms
        state, _ = choose(state, now_ms=now_ms)
    assert held == [100, 200, 400, 800, 1000, 1000]
    state, _ = call(state, 0, 1.0, now_ms)
    state, _ = fail(state, 0, now_ms)
    assert state.lanes[0].held_until_ms - now_ms == 100


def test_calls_that_were_in_flight_when_the_lane_was_left_count_once():
    state, _ = fail(start(RULES), 0, 0.0)
    for _ in range(4):
        state, _ = fail(state, 0, 10.0)
        state, _ = slow(state, 0, 10.0)
        state, _ = call(state, 0, 1.0, 10.0)
    assert (state.lanes[0].strikes, state.lanes[0].held_until_ms) == (1, 100.0)


def test_hot_device_is_left_and_returns_only_when_it_has_cooled():
    state, switch = warm(start(RULES), 75.0, 0.0)
    assert (switch.target, switch.reason) == (1, "npu:0 is at 75.0 °C, it is left at 75 °C")
    state, switch = warm(state, 65.1, 1.0)
    assert (state.active, switch) == (1, None)
    state, switch = warm(state, 65.0, 2.0)
    assert (switch.target, switch.reason) == (0, "npu:0 has cooled to 65.0 °C, it returns at 65 °C")


def test_heat_concerns_every_lane_of_the_device():
    rules = (NPU, NPU._replace(name="npu int8"), CPU)
    state, switch = after_temperature(rules, start(rules), device="npu:0", temperature_c=80, now_ms=0.0)
    assert switch.target == 2
    assert [lane.hot for lane in state.lanes] == [True, True, False]


def test_reading_that_is_no_number_changes_nothing():
    state, _ = warm(start(RULES), 80.0, 0.0)
    assert warm(state, float("nan"), 1.0) == (state, None)


def test_device_that_vanishes_is_left_and_used_again_when_it_is_back():
    state, switch = after_presence(RULES, start(RULES), device="npu:0", present=False, now_ms=0.0)
    assert (switch.target, switch.reason) == (1, "npu:0 is gone")
    state, switch = after_presence(RULES, state, device="npu:0", present=True, now_ms=1.0)
    assert (switch.target, switch.reason) == (0, "npu:0 is there again")


def test_pinned_lane_is_used_unless_it_is_blocked():
    state, switch = pin(start(RULES), lane=1, reason="the user asked", now_ms=0.0)
    assert (state.active, switch.reason) == (1, "the user asked")
    state, switch = warm(state, 90.0, 1.0, device="gpu:0")
    assert (state.active, switch.target) == (0, 0)
    state, switch = warm(state, 70.0, 2.0, device="gpu:0")
    assert state.active == 1
    state, switch = pin(state, lane=-1, reason="the user let go", now_ms=3.0)
    assert (state.active, switch.target) == (0, 0)


def test_pin_ends_a_hold_off():
    state, _ = fail(start(RULES), 0, 0.0)
    state, switch = pin(state, lane=0, reason="the user asked", now_ms=1.0)
    assert (state.active, switch.target) == (0, 0)


def test_pinned_lane_that_is_held_off_wakes_the_host():
    state, _ = pin(start(RULES), lane=2, reason="asked", now_ms=0.0)
    state, switch = fail(state, 2, 0.0)
    assert (switch.target, state.wake_ms) == (0, 100.0)
    assert choose(state, now_ms=100.0)[0].active == 2


def test_pardon_takes_the_last_strike_back():
    failed, _ = fail(start(RULES), 0, 5.0)
    state, switch = after_pardon(failed, lanes=(0,), now_ms=6.0)
    assert (state.active, switch.target) == (0, 0)
    assert (state.lanes[0].strikes, state.lanes[0].failed) == (0, False)


SLOW, FAILED = LaneState(held_until_ms=50), LaneState(held_until_ms=50, failed=True)
HOT, GONE = LaneState(hot=True), LaneState(missing=True)


@pytest.mark.parametrize(
    ("lanes", "chosen"),
    [
        ((GONE, FAILED, HOT, SLOW), 3),
        ((GONE, FAILED, HOT), 2),
        ((GONE, FAILED), 1),
        ((GONE, GONE), 0),
        ((SLOW, SLOW), 0),
        ((FAILED._replace(hot=True, held_until_ms=0), HOT), 0),
    ],
)
def test_when_all_are_blocked_the_mildest_reason_wins(lanes, chosen):
    state, _ = choose(PlacementState(0, lanes), now_ms=10.0)
    assert state.active == chosen


def test_when_all_are_blocked_the_first_hold_off_that_ends_wakes_the_host():
    lanes = (LaneState(held_until_ms=500), LaneState(held_until_ms=100, failed=True))
    state, _ = choose(PlacementState(0, lanes), now_ms=10.0)
    assert (state.active, state.wake_ms) == (0, 100.0)
    state, switch = choose(state, now_ms=100.0)
    assert (state.active, switch.target, state.wake_ms) == (1, 1, 500.0)


def test_switch_to_a_blocked_lane_says_that_there_is_no_other():
    rules = (NPU, GPU)
    state, _ = after_presence(rules, start(rules), device="gpu:0", present=False, now_ms=0.0)
    state, _ = after_failure(RECOVERY, state, lane=0, reason="it broke", now_ms=0.0)
    state, switch = after_presence(rules, state, device="npu:0", present=False, now_ms=0.0)
    assert (state.active, switch) == (0, None)
    state, switch = after_presence(rules, state._replace(active=1), device="gpu:0", present=False, now_ms=0.0)
    assert switch.reason == "gpu:0 is gone; every other way is blocked as well"


lanes = st.integers(0, 2)
observations = st.one_of(
    st.tuples(st.just("call"), lanes, st.sampled_from([1.0, 14.0, 20.0, 500.0])),
    st.tuples(st.just("fail"), lanes),
    st.tuples(st.just("heat"), lanes, st.floats(50, 95)),
    st.tuples(st.just("presence"), lanes, st.booleans()),
    st.tuples(st.just("pin"), st.integers(-1, 2)),
    st.tuples(st.just("wait")),
)
walks = st.lists(st.tuples(observations, st.floats(0, 200)), max_size=40)


def step(state, observation, now_ms):
    match observation:
        case "call", lane, latency_ms:
            return call(state, lane, latency_ms, now_ms)
        case "fail", lane:
            return fail(state, lane, now_ms)
        case "heat", lane, temperature_c:
            return warm(state, temperature_c, now_ms, device=RULES[lane].device)
        case "presence", lane, present:
            return after_presence(RULES, state, device=RULES[lane].device, present=present, now_ms=now_ms)
        case "pin", lane:
            return pin(state, lane=lane, reason="asked", now_ms=now_ms)
    return choose(state, now_ms=now_ms)


@given(walks)
def test_an_unblocked_lane_is_used_whenever_there_is_one(walk):
    state, now_ms = start(RULES), 0.0
    for observation, wait_ms in walk:
        now_ms += wait_ms
        before = state
        state, switch = step(state, observation, now_ms)
        assert (switch is None) == (state.active == before.active)
        state, _ = choose(state, now_ms=now_ms)
        free = [lane for lane in range(3) if not blocked(state.lanes[lane], now_ms)]
        if state.pinned in free:
            assert state.active == state.pinned
        elif free:
            assert state.active == free[0]


@given(walks, st.floats(0, 3000))
def test_nothing_changes_by_itself_before_the_host_is_woken(walk, later_ms):
    state, now_ms = start(RULES), 0.0
    for observation, wait_ms in walk:
        now_ms += wait_ms
        state, _ = step(state, observation, now_ms)
    state, _ = choose(state, now_ms=now_ms)
    assert state.wake_ms > now_ms
    if now_ms + later_ms < state.wake_ms:
        assert choose(state, now_ms=now_ms + later_ms) == (state, None)


@given(st.lists(st.floats(40, 100), max_size=60))
def test_device_never_returns_above_its_return_temperature_nor_leaves_below_the_other(readings):
    state = start(RULES)
    for now_ms, temperature_c in enumerate(readings):
        state, switch = warm(state, temperature_c, float(now_ms))
        if switch is not None and switch.target == 0:
            assert temperature_c <= NPU.return_c
        if switch is not None and switch.source == 0:
            assert temperature_c >= NPU.leave_c


@given(st.lists(st.tuples(st.floats(0, 60), st.booleans()), min_size=1, max_size=80))
def test_lane_that_is_slow_or_fails_is_not_entered_again_before_its_hold_off(calls):
    state, now_ms, left_ms = start(RULES), 0.0, -NEVER
    for wait_ms, fails in calls:
        now_ms += wait_ms
        state, back = choose(state, now_ms=now_ms)
        if back is not None and back.target == 0:
            assert now_ms - left_ms >= RECOVERY.hold_off_ms
        lane = state.active
        state, switch = fail(state, lane, now_ms) if fails and lane == 0 else call(state, lane, 20.0, now_ms)
        if switch is not None and switch.source == 0:
            left_ms = now_ms
