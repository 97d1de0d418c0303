"""Which request is next, which is dropped, and when background work must leave room."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from sanderling.run.policy import NEVER

UTILIZATION_WINDOW_MS = 1_000.0
BACKGROUND = 0  # priorities below this one are background work
_SHORTEST_WAIT_MS = 1e-3  # less would be lost in rounding, and a virtual clock would stand still


class SchedulingRules(NamedTuple):
    """The policy's numbers, in milliseconds and shares."""

    utilization_cap: float = 0.8
    cap_applies_to: Literal["background", "all"] = "background"
    time_slice_ms: float = 100.0
    queue_limit: int = 1024
    spill: Literal["never", "deadline", "balanced", "earliest"] = "balanced"
    drop_late: bool = True
    patience_ms: float = 1_000.0


def urgency(rules: SchedulingRules, *, priority: int, arrival_ms: float, deadline_ms: float) -> tuple[int, float]:
    """What requests are ordered by, the smallest first: priority, then earliest deadline.

    A request without a deadline is as urgent as one that is due ``patience_ms`` after it came, so that it is never
    overtaken for ever.

    Source: Liu and Layland, JACM 20 (1973) 46, for earliest deadline first.
    """
    return -priority, deadline_ms if deadline_ms != NEVER else arrival_ms + rules.patience_ms


def is_late(*, now_ms: float, deadline_ms: float, shortest_ms: float) -> bool:
    """Whether a request cannot be finished in time even if it is started now and alone."""
    return now_ms + shortest_ms > deadline_ms


def call_limit_ms(rules: SchedulingRules, *, now_ms: float, deadline_ms: float, others_wait: bool) -> float:
    """Milliseconds that a call may take: until its earliest deadline, and a time slice while other models wait."""
    slice_ms = rules.time_slice_ms if others_wait else NEVER
    return min(deadline_ms - now_ms, slice_ms)


def may_leave(rules: SchedulingRules, *, own_finish_ms: float, deadline_ms: float, utilization: float) -> bool:
    """Whether a request may run on another device that ends it sooner, instead of waiting for its own.

    Args:
        rules: of the policy. ``balanced`` keeps other devices free for what needs them until the own one is busy for
            more than the cap: then sharing early costs less than waiting until requests are nearly late.
        own_finish_ms: when its own device would have finished it.
        deadline_ms: infinite without one.
        utilization: share of its recent time that its own device was busy.
    """
    if rules.spill == "never":
        return False
    if rules.spill == "earliest" or own_finish_ms > deadline_ms:
        return True
    return rules.spill == "balanced" and utilization > rules.utilization_cap


def spills(*, own_finish_ms: float, other_finish_ms: float, deadline_ms: float) -> bool:
    """Whether a request that may leave its own device runs on this other one: it ends sooner there, and in time."""
    return other_finish_ms < own_finish_ms and other_finish_ms <= deadline_ms


def utilization_after(utilization: float, *, idle_ms: float, busy_ms: float) -> float:
    """Share of a device's recent time that it was busy, after it was idle and then busy for so long.

    A mean over the past with weights that fall to 1/e in one second.
    """
    faded = utilization * math.exp(-idle_ms / UTILIZATION_WINDOW_MS)
    kept = math.exp(-busy_ms / UTILIZATION_WINDOW_MS)
    return faded * kept + 1.0 - kept


def capped_for_ms(rules: SchedulingRules, *, utilization: float, idle_ms: float, priority: int) -> float:
    """Milliseconds that a request must leave a free device idle; 0 if it may run now."""
    if rules.cap_applies_to == "background" and priority >= BACKGROUND:
        return 0.0
    if utilization <= rules.utilization_cap:
        return 0.0
    wait_ms = UTILIZATION_WINDOW_MS * math.log(utilization / rules.utilization_cap) - idle_ms
    return wait_ms if wait_ms >= _SHORTEST_WAIT_MS else 0.0
