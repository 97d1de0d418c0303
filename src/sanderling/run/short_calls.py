"""Which models' calls are so short that a thread with other work runs them itself: a change of threads costs more."""

from __future__ import annotations

import time

_SHORT_MS = 0.5  # of processor time that a call in such a thread takes, in the mean
_TRIED_MS = 1.0  # of a call elsewhere, from which on it is not even tried
_WEIGHT = 0.1  # of the newest call
_COUNTED_MS = 2.0  # at most, so that one call more or less decides nothing
_TIMED = 16  # one call in as many, as the system's clock of a thread takes a while itself
_AGAIN_MS = 1_000.0  # after which a model whose calls were too long is tried again


class ShortCalls:
    """Learns from the calls in such threads alone: elsewhere, a call's time says more of what else ran."""

    def __init__(self) -> None:
        self._means_ms: dict[str, float] = {}
        self._tried_ms: dict[str, float] = {}
        self._calls = 0

    def has(self, name: str, *, expected_ms: float, now_ms: float) -> bool:
        """Whether a model's next call counts as short.

        Args:
            name: of the model.
            expected_ms: of the call, from those elsewhere.
            now_ms: the time.
        """
        mean_ms = self._means_ms.get(name)
        if mean_ms is None:
            return expected_ms <= _TRIED_MS
        return mean_ms <= _SHORT_MS or now_ms - self._tried_ms[name] >= _AGAIN_MS

    def begin(self, name: str) -> float | None:
        """Where the thread's clock stands before a call, in seconds; None for a call that need not be observed."""
        self._calls += 1
        if self._calls % _TIMED and self._means_ms.get(name, _COUNTED_MS) <= _SHORT_MS:
            return None
        return time.thread_time()

    def observe(self, name: str, cpu_ms: float, *, now_ms: float) -> None:
        """A call has run in a thread with other work, and took so much of the processor's time."""
        counted_ms = min(cpu_ms, _COUNTED_MS)
        mean_ms = self._means_ms.get(name, counted_ms)
        self._means_ms[name] = mean_ms + _WEIGHT * (counted_ms - mean_ms)
        self._tried_ms[name] = now_ms

    def forget(self, name: str) -> None:
        """A model is gone; another may get its name."""
        self._means_ms.pop(name, None)
        self._tried_ms.pop(name, None)
