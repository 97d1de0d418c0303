"""Every request of a drill, and what became of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable
from typing import Protocol

from sanderling.core.errors import SanderlingError
from sanderling.core.tensor import Array
from sanderling.run.results import Outputs
from tests.requests import belongs_to, number_in, numbers_in

FAULTS = ("lost", "duplicated", "misrouted", "wrong")
CANCELLED = "cancelled"


class Account(Protocol):
    """Where callers get their numbers from, and tell what they were told."""

    def issue(self, rows: int) -> int:
        """A number for a request."""

    def told(self, number: int, outcome: Outputs | BaseException | str, *, stream: Hashable = None) -> None:
        """A caller got a result, an error, or its own cancellation."""


class Tally:
    """Checks every result, and remembers only requests that were told nothing yet, for as many as there may be."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.issued = 0
        self._open: dict[int, int] = {}
        self._lock = threading.Lock()

    def issue(self, rows: int) -> int:
        """A number for a request."""
        with self._lock:
            self.issued += 1
            self._open[self.issued] = rows
            return self.issued

    def told(self, number: int, outcome: Outputs | BaseException | str, *, stream: Hashable = None) -> None:  # noqa: ARG002
        """A caller got a result, an error, or its own cancellation."""
        with self._lock:
            rows = self._open.pop(number, None)
            if rows is None:
                self.counts["told twice"] += 1
            elif isinstance(outcome, Outputs):
                self.counts["completed" if belongs_to(outcome, number, rows) else "wrong"] += 1
            else:
                self.counts[outcome if isinstance(outcome, str) else f"refused: {type(outcome).__name__}"] += 1

    def faults(self) -> int:
        """Results that were wrong or told twice, and requests that were told nothing."""
        return self.counts["wrong"] + self.counts["told twice"] + len(self._open)


class Ledger:
    """Numbers of requests, from 1 on, with the rows of each and what its caller was told. Usable from many threads.

    Args:
        refusals: errors that the fault may lead to; any other, and a request that is told nothing, is lost.
        once: whether no request may run twice, as none should where no call is given up.
    """

    def __init__(self, refusals: tuple[type[SanderlingError], ...], *, once: bool) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: list[str] = []
        self._refusals, self._once = refusals, once
        self._lock = threading.Lock()
        self._rows: dict[int, int] = {}
        self._told: Counter[int] = Counter()
        self._computed: Counter[int] = Counter()
        self._last: dict[Hashable, int] = {}

    def issue(self, rows: int) -> int:
        """A number for a request."""
        with self._lock:
            number = len(self._rows) + 1
            self._rows[number] = rows
            return number

    def saw(self, first_input: Array) -> None:
        """An engine computed these rows."""
        with self._lock:
            self._computed.update(set(numbers_in(first_input)))

    def told(self, number: int, outcome: Outputs | BaseException | str, *, stream: Hashable = None) -> None:
        """A caller got a result, an error, or its own cancellation."""
        with self._lock:
            self._told[number] += 1
            if stream is not None and outcome != CANCELLED:
                if self._last.get(stream, 0) > number:
                    self._fault("wrong", f"{number} came after {self._last[stream]} in its stream")
                self._last[stream] = number
            self.counts[self._fate(number, outcome)] += 1

    def _fate(self, number: int, outcome: Outputs | BaseException | str) -> str:
        if isinstance(outcome, str):
            return outcome
        if isinstance(outcome, BaseException):
            if not isinstance(outcome, self._refusals):
                self._fault("lost", f"{number}: {type(outcome).__name__}: {outcome}")
            return f"refused: {type(outcome).__name__}"
        if not belongs_to(outcome, number, self._rows[number]):
            shown = number_in(outcome)
            kind = "wrong" if shown in (None, number) else "misrouted"
            self._fault(kind, f"{number} was given {shown}'s: {dict(outcome)}")
        return "completed"

    def close(self) -> dict[str, int]:
        """Faults by kind, when every request must have been told something."""
        with self._lock:
            for number in self._rows:
                if not self._told[number]:
                    self._fault("lost", f"{number} was told nothing")
                if self._told[number] > 1 or (self._once and self._computed[number] > 1):
                    self._fault("duplicated", f"{number}: told {self._told[number]}×, ran {self._computed[number]}×")
            return {kind: self.counts[f"fault: {kind}"] for kind in FAULTS}

    @property
    def issued(self) -> int:
        """Requests so far."""
        return len(self._rows)

    def fates(self) -> dict[str, int]:
        """Requests by what became of them."""
        with self._lock:
            return {kind: count for kind, count in sorted(self.counts.items()) if not kind.startswith("fault: ")}

    def _fault(self, kind: str, example: str) -> None:
        self.counts[f"fault: {kind}"] += 1
        if len(self.examples) < 10:
            self.examples.append(f"{kind}: {example}")
