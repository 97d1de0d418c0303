"""Which way of running is used now, and why: fallback on errors, latency, heat and vanished devices, and the return."""

from __future__ import annotations

from typing import NamedTuple

from sanderling.run.policy import NEVER


class LaneRule(NamedTuple):
    """One way of running a model, and when it is left. Lanes are ranked: the first that is not blocked is used.

    Attributes:
        name: for events.
        device: that it occupies; heat and absence concern all lanes of a device.
        slow_ms: of one call; more than this counts against it.
        leave_c: temperature from which the device is left.
        return_c: temperature down to which it must cool.
    """

    name: str
    device: str
    slow_ms: float = NEVER
    leave_c: float = NEVER
    return_c: float = NEVER


class RecoveryRule(NamedTuple):
    """How many slow calls in a row are too many, and how long a lane is held off, doubled each time up to a limit."""

    slow_calls: int = 3
    hold_off_ms: float = 10_000.0
    longest_hold_off_ms: float = 300_000.0


class LaneState(NamedTuple):
    """What is known of a lane.

    Attributes:
        slow: calls in a row that were too slow.
        strikes: times that it was left for latency or errors since it last did well after a hold-off.
        held_until_ms: it is not tried before.
        hot: its device reached ``leave_c`` and has not cooled to ``return_c`` since.
        missing: its device is not there.
        failed: it was last held off for an error, and has not done well since.
        reason: why it was last left.
    """

    slow: int = 0
    strikes: int = 0
    held_until_ms: float = 0.0
    hot: bool = False
    missing: bool = False
    failed: bool = False
    reason: str = ""


class PlacementState(NamedTuple):
    """The lane in use, and what is known of each.

    Attributes:
        active: index of the lane in use.
        pinned: lane that the user chose, used unless it is blocked; -1 without one.
        wake_ms: when the next hold-off ends that may change the lane; infinite without one.
    """

    active: int
    lanes: tuple[LaneState, ...]
    pinned: int = -1
    wake_ms: float = NEVER


class Switch(NamedTuple):
    """The lane in use changes."""

    source: int
    target: int
    reason: str


def start(rules: tuple[LaneRule, ...]) -> PlacementState:
    """All lanes are good, the first is used."""
    return PlacementState(0, tuple(LaneState() for _ in rules))


def after_call(
    rules: tuple[LaneRule, ...],
    recovery: RecoveryRule,
    state: PlacementState,
    *,
    lane: int,
    latency_ms: float,
    now_ms: float,
    other_ms: float = 0.0,
) -> tuple[PlacementState, Switch | None]:
    """A call ended; a lane that was slow several times in a row is left, unless it would be for a slower one.

    Calls that end while their lane is held off say nothing new: most began before it was left.

    Args:
        rules: of all lanes.
        recovery: of the policy.
        state: before.
        lane: that ran the call.
        latency_ms: of the call.
        now_ms: when it ended.
        other_ms: what the quickest other lane that could be used takes for such a call; 0 where that is not known.
    """
    known = state.lanes[lane]
    if now_ms < known.held_until_ms:
        return state, None
    if latency_ms <= max(rules[lane].slow_ms, other_ms):
        if known.slow or known.strikes:
            state = _with(state, lane, known._replace(slow=0, strikes=0, failed=False))
        return state, None
    known = known._replace(slow=known.slow + 1)
    if known.slow < recovery.slow_calls:
        return _with(state, lane, known), None
    reason = f"{known.slow} calls in a row took more than {rules[lane].slow_ms:g} ms, the last {latency_ms:.1f} ms"
    held = _held(known, recovery, now_ms, reason, failed=False)
    return choose(_with(state, lane, held), now_ms=now_ms)


def after_failure(
    recovery: RecoveryRule,
    state: PlacementState,
    *,
    lane: int,
    reason: str,
    now_ms: float,
) -> tuple[PlacementState, Switch | None]:
    """A call or a load failed: the lane is held off; not longer for several that fail at once."""
    known = state.lanes[lane]
    if now_ms < known.held_until_ms:
        held = known._replace(failed=True, reason=reason)
    else:
        held = _held(known, recovery, now_ms, reason, failed=True)
    return choose(_with(state, lane, held), now_ms=now_ms)


def after_pardon(
    state: PlacementState, *, lanes: tuple[int, ...], now_ms: float
) -> tuple[PlacementState, Switch | None]:
    """A request failed on every lane: it was the request, so these lanes' last strike is taken back."""
    for lane in lanes:
        known = state.lanes[lane]
        pardoned = known._replace(strikes=max(known.strikes - 1, 0), held_until_ms=now_ms, failed=False)
        state = _with(state, lane, pardoned)
    return choose(state, now_ms=now_ms)


def after_temperature(
    rules: tuple[LaneRule, ...], state: PlacementState, *, device: str, temperature_c: float, now_ms: float
) -> tuple[PlacementState, Switch | None]:
    """A device's temperature was read: hot from ``leave_c`` on, until it is at ``return_c`` or below."""
    for index, (rule, known) in enumerate(zip(rules, state.lanes, strict=True)):
        if rule.device != device:
            continue
        if not known.hot and temperature_c >= rule.leave_c:
            reason = f"{device} is at {temperature_c:.1f} °C, it is left at {rule.leave_c:g} °C"
            state = _with(state, index, known._replace(hot=True, reason=reason))
        elif known.hot and temperature_c <= rule.return_c:
            reason = f"{device} has cooled to {temperature_c:.1f} °C, it returns at {rule.return_c:g} °C"
            state = _with(state, index, known._replace(hot=False, reason=reason))
    return choose(state, now_ms=now_ms)


def after_presence(
    rules: tuple[LaneRule, ...], state: PlacementState, *, device: str, present: bool, now_ms: float
) -> tuple[PlacementState, Switch | None]:
    """A device vanished, or is there again."""
    reason = f"{device} is {'there again' if present else 'gone'}"
    for index, (rule, known) in enumerate(zip(rules, state.lanes, strict=True)):
        if rule.device == device and known.missing == present:
            state = _with(state, index, known._replace(missing=not present, reason=reason))
    return choose(state, now_ms=now_ms)


def pin(state: PlacementState, *, lane: int, reason: str, now_ms: float) -> tuple[PlacementState, Switch | None]:
    """The user chose a lane; -1 lets the policy choose again."""
    state = state._replace(pinned=lane)
    if lane >= 0:
        state = _with(state, lane, state.lanes[lane]._replace(held_until_ms=now_ms, slow=0))
    new, switch = choose(state, now_ms=now_ms)
    return new, switch._replace(reason=reason) if switch and switch.target == lane else switch


def choose(state: PlacementState, *, now_ms: float) -> tuple[PlacementState, Switch | None]:
    """The pinned lane, else the first that is not blocked; if all are, the one that is blocked for the mildest reason.

    Slow is milder than hot, hot milder than failed, failed milder than gone.
    """
    lanes = state.lanes
    order = tuple(range(len(lanes))) if state.pinned < 0 else (state.pinned, *range(len(lanes)))
    target = next((lane for lane in order if not blocked(lanes[lane], now_ms)), None)
    better = order if target is None else order[: order.index(target)]
    if target is None:
        target = min(range(len(lanes)), key=lambda lane: (_severity(lanes[lane], now_ms), lane))
    waiting = (lanes[lane].held_until_ms for lane in better)
    wake_ms = min((until_ms for until_ms in waiting if until_ms > now_ms), default=NEVER)
    if target == state.active:
        return state if wake_ms == state.wake_ms else state._replace(wake_ms=wake_ms), None
    left, taken = lanes[state.active], lanes[target]
    if blocked(left, now_ms):
        reason = left.reason if not blocked(taken, now_ms) else f"{left.reason}; every other way is blocked as well"
    else:
        reason = taken.reason if not taken.strikes else f"hold-off is over ({taken.reason})"
    return state._replace(active=target, wake_ms=wake_ms), Switch(state.active, target, reason or "preferred")


def blocked(lane: LaneState, now_ms: float) -> bool:
    """Whether a lane should not be used now."""
    return lane.hot or lane.missing or now_ms < lane.held_until_ms


def _held(lane: LaneState, recovery: RecoveryRule, now_ms: float, reason: str, *, failed: bool) -> LaneState:
    hold_off_ms = min(recovery.hold_off_ms * 2.0 ** min(lane.strikes, 60), recovery.longest_hold_off_ms)
    until_ms = now_ms + hold_off_ms
    return lane._replace(slow=0, strikes=lane.strikes + 1, held_until_ms=until_ms, failed=failed, reason=reason)


def _severity(lane: LaneState, now_ms: float) -> int:
    return 3 if lane.missing else 2 if lane.failed and now_ms < lane.held_until_ms else 1 if lane.hot else 0


def _with(state: PlacementState, index: int, lane: LaneState) -> PlacementState:
    return state._replace(lanes=(*state.lanes[:index], lane, *state.lanes[index + 1 :]))
