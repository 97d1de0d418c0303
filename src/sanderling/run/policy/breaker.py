"""The circuit breaker: when results failed their checks too often, the safe variant takes over."""

from __future__ import annotations

from typing import Literal, NamedTuple

Action = Literal["retry-fp32", "last-good", "raise"]


class BreakerRules(NamedTuple):
    """The policy's numbers."""

    on_trip: Action = "retry-fp32"
    trips: int = 3
    window_ms: float = 60_000.0


class BreakerState(NamedTuple):
    """When checks failed within the window, oldest first, and whether the safe variant has taken over."""

    tripped_ms: tuple[float, ...] = ()
    is_open: bool = False


def after_trip(
    rules: BreakerRules, state: BreakerState, *, now_ms: float, has_last_good: bool, is_safe: bool
) -> tuple[BreakerState, Action, bool]:
    """A result failed its check.

    Args:
        rules: of the policy.
        state: before.
        now_ms: time.
        has_last_good: an earlier result could be given again.
        is_safe: the result is the safe variant's own: running that again would give the same.

    Returns:
        The state, what to do with this request, and whether the safe variant takes over now. A safe variant that
        trips does not move the breaker, and a request that cannot be helped is an error.
    """
    if is_safe:
        action: Action = "last-good" if rules.on_trip == "last-good" and has_last_good else "raise"
        return state, action, False
    recent = (*(at for at in state.tripped_ms if now_ms - at < rules.window_ms), now_ms)
    opens = not state.is_open and len(recent) >= rules.trips
    action = rules.on_trip
    if action == "last-good" and not has_last_good:
        action = "retry-fp32"
    return BreakerState(recent[-rules.trips :], state.is_open or opens), action, opens
