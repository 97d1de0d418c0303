"""Whether a version that gets a share of the requests is promoted or rolled back: a pure function of two tallies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from sanderling.core.statistics import binomial_upper

_TAIL = 0.05  # of requests that are slower than the 95th percentile
_CONFIDENCE = 0.999  # the tallies are looked at again and again


class CanaryRules(NamedTuple):
    """When a canary has passed, and when it has failed.

    Attributes:
        share: of requests without a version that it gets, in (0, 1).
        least_requests: of each version, before latencies are compared or the canary is promoted.
        promote_after_s: without a fault.
        trips: of the guard with which it has failed, where the old version trips less often.
        failures: of its engine with which it has failed, where the old version fails less often.
        latency_factor: of the old version's 95th percentile, which the canary's must not pass.
    """

    share: float = 0.1
    least_requests: int = 100
    promote_after_s: float = 300.0
    trips: int = 2
    failures: int = 2
    latency_factor: float = 1.5


class VersionTally(NamedTuple):
    """What became of a version's requests since the canary began.

    Attributes:
        requests: that the engine ran, or failed to run.
        trips: results that failed their check.
        failures: requests that the engine or the guard failed; not those that were wrong, late or too many.
        latencies_ms: from arrival to result, of the last ones that were completed.
    """

    requests: int = 0
    trips: int = 0
    failures: int = 0
    latencies_ms: tuple[float, ...] = ()


class CanaryDecision(NamedTuple):
    """What to do with a canary now, and why."""

    action: Literal["wait", "promote", "roll-back"]
    reason: str


def judge_canary(rules: CanaryRules, old: VersionTally, new: VersionTally, *, running_s: float) -> CanaryDecision:
    """Decide about a canary.

    Faults count as soon as there are enough of them. Latency counts when both versions have enough requests, and only
    if it is no accident: with 99.9 % confidence more than one request in twenty is slower than ``latency_factor`` times
    the old version's 95th percentile.

    Args:
        rules: limits.
        old: the version that gets the other requests, over the same time.
        new: the canary.
        running_s: since it began.
    """
    fault = (
        _too_often("results failed their check", rules.trips, (old.trips, old.requests), (new.trips, new.requests))
        or _too_often("requests failed", rules.failures, (old.failures, old.requests), (new.failures, new.requests))
        or _slower(rules, old.latencies_ms, new.latencies_ms)
    )
    if fault:
        return CanaryDecision("roll-back", fault)
    if new.requests < rules.least_requests:
        return CanaryDecision("wait", f"{new.requests} requests, {rules.least_requests} are needed")
    if running_s < rules.promote_after_s:
        return CanaryDecision("wait", f"{running_s:.0f} s, {rules.promote_after_s:g} s are needed")
    return CanaryDecision("promote", f"{new.requests} requests in {running_s:.0f} s without a fault that counts")


def _too_often(what: str, limit: int, old: tuple[int, int], new: tuple[int, int]) -> str:
    """Say that ``new``, faults and requests, reaches the limit and is worse than ``old``; empty if not."""
    faults, requests = new
    is_no_worse = old[1] > 0 and faults * old[1] <= old[0] * requests
    if faults < limit or is_no_worse:
        return ""
    return f"{faults} of {requests} {what}, of the old version {old[0]} of {old[1]}"


def _slower(rules: CanaryRules, old_ms: Sequence[float], new_ms: Sequence[float]) -> str:
    """Say that the canary is too slow; empty where it is not, or cannot be told yet."""
    if min(len(old_ms), len(new_ms)) < max(rules.least_requests, 1):
        return ""
    old_p95_ms, new_p95_ms = (sorted(values)[int((1 - _TAIL) * (len(values) - 1))] for values in (old_ms, new_ms))
    limit_ms = rules.latency_factor * old_p95_ms
    fast = sum(value <= limit_ms for value in new_ms)
    if binomial_upper(fast, len(new_ms), confidence=_CONFIDENCE) >= 1 - _TAIL:
        return ""
    return (
        f"p95 is {new_p95_ms:.3g} ms, {limit_ms:.3g} ms are allowed "
        f"({rules.latency_factor:g} times the old version's {old_p95_ms:.3g} ms)"
    )
