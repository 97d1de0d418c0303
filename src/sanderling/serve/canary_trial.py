"""A canary's trial: counts what becomes of both versions' requests, until there is a decision."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable

from sanderling.serve.canary import CanaryDecision, CanaryRules, VersionTally, judge_canary
from sanderling.serve.data_plane import Finished

_KEPT_LATENCIES = 1000
_FAULTS = ("EngineError", "GuardError")  # others are the client's, or say that there is too much to do


class CanaryTrial:
    """A canary beside the version that it may replace. Usable from several threads.

    Args:
        rules: when it has passed or failed.
        old: version that gets the other requests.
        new: the canary.
        now_s: monotonic clock.
    """

    def __init__(self, rules: CanaryRules, old: str, new: str, now_s: Callable[[], float]) -> None:
        self.rules = rules
        self.old = old
        self.new = new
        self._now_s = now_s
        self._began_s = now_s()
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {old: Counter(), new: Counter()}
        self._latencies_ms: dict[str, deque[float]] = {version: deque(maxlen=_KEPT_LATENCIES) for version in (old, new)}

    def count(self, finished: Finished) -> bool:
        """Count a request; returns whether it is a fault of the canary."""
        if finished.version not in self._counts or not (finished.ok or finished.error in _FAULTS):
            return False
        tripped = bool(finished.tripped) or finished.error == "GuardError"
        with self._lock:
            counts = self._counts[finished.version]
            counts["requests"] += 1
            counts["trips"] += tripped
            counts["failures"] += not finished.ok
            if finished.ok:
                self._latencies_ms[finished.version].append(finished.total_ms)
        return finished.version == self.new and (tripped or not finished.ok)

    def judge(self) -> CanaryDecision:
        """Decide by what was counted so far."""
        old, new = self._tally(self.old), self._tally(self.new)
        return judge_canary(self.rules, old, new, running_s=self._now_s() - self._began_s)

    def _tally(self, version: str) -> VersionTally:
        with self._lock:
            counts = self._counts[version]
            latencies_ms = tuple(self._latencies_ms[version])
            return VersionTally(counts["requests"], counts["trips"], counts["failures"], latencies_ms)
