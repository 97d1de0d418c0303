"""What the runtime serves, and a batch of it that a thread runs."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sanderling.core.errors import EngineError, SanderlingError, first_line
from sanderling.run.dispatcher import Dispatch
from sanderling.run.results import Outputs
from sanderling.run.tickets import Call, Ticket


class Served(Protocol):
    """A model that the runtime serves."""

    name: str

    def compute(self, lane: int, calls: Sequence[Call], call_rows: int) -> list[Outputs | SanderlingError]:
        """Run the requests of a batch together on a lane, and check the results.

        Returns:
            For each request its outputs, or the error that it alone met.
        """

    def lane_name(self, lane: int) -> str:
        """A lane's name, for events."""

    def is_ready(self, lane: int) -> bool:
        """Whether a lane is loaded, so that a call's time says something about it."""

    @property
    def is_simple(self) -> bool:
        """Whether it has one lane, whose engine runs in this process and on the processor."""

    @property
    def has_rescue(self) -> bool:
        """Whether another lane could take over a call that hangs, unless its caller's own thread hangs with it."""


@dataclass(eq=False, slots=True)
class Batch:
    """Requests that a thread runs together; those that were cancelled at the last moment are left out."""

    dispatch: Dispatch
    live: list[Ticket]
    served: Served
    thread: threading.Thread
    since_s: float
    is_warm: bool
    is_runners: bool  # not its caller's own


def failure_of(ticket: Ticket, served: Served, last: Exception, *, hung: bool) -> Exception:
    """The only failure as an error of this request's own; several in one error that names each."""
    if hung and ticket.call.outputs:
        return EngineError(f"{last}; it may still write to the outputs that were given: do not use them again")
    if len(ticket.failures) < 2:
        return copy.copy(last) if isinstance(last, SanderlingError) else EngineError(first_line(last))
    told = "; ".join(f"{served.lane_name(lane)}: {reason}" for lane, reason in ticket.failures)
    return EngineError(f"every way of running '{ticket.model}' failed for this request: {told}")
