"""A request as the runtime keeps it: its arrays, who waits for it, its place in a stream, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future, InvalidStateError
from typing import Literal, NamedTuple

from sanderling.core.errors import DeadlineError
from sanderling.core.tensor import Feeds
from sanderling.run.dispatcher import Request
from sanderling.run.results import Outputs
from sanderling.run.streams import Link

Fate = Literal["", "completed", "failed", "late", "rejected", "cancelled"]
ALONE: Hashable = object()  # the stream of requests that wait for no other's result, and whose own nobody gets again


class Call(NamedTuple):
    """What a caller gives.

    Attributes:
        feeds: inputs by name.
        rows: in them.
        outputs: arrays for the results, if it has its own.
        stream: whose order is kept, and whose last good result may be given again; neither where it is ``ALONE``.
    """

    feeds: Feeds
    rows: int = 1
    outputs: Feeds | None = None
    stream: Hashable = None


_NOTHING = Call({})


class Ticket(Request):
    """A request of a caller.

    Attributes:
        call: its arrays, until it is settled.
        fate: what became of it, noted once; empty until then.
        future: where somebody waits for it; a request that runs in its caller's thread has none.
        outcome: of a request without a future.
        link: its place in a stream.
        started: it can no longer be cancelled.
    """

    __slots__ = ("call", "fate", "future", "link", "outcome", "started")

    def __init__(self, model: str, call: Call, *, deadline_ms: float, priority: int) -> None:
        super().__init__(model, rows=call.rows, deadline_ms=deadline_ms, priority=priority)
        self.call = call
        self.fate: Fate = ""
        self.future: Future[Outputs] | None = None
        self.outcome: Outputs | BaseException | None = None
        self.link: Link | None = None
        self.started = False

    def start(self) -> bool:
        """Whether its caller still wants the result; it can no longer be cancelled then."""
        if not self.started:
            self.started = self.future is None or self.future.set_running_or_notify_cancel()
        return self.started

    def detach(self) -> None:
        """Give it a future that cannot be cancelled: its caller's thread will wait for another one's result."""
        if self.future is None:
            self.future = Future()
            self.future.set_running_or_notify_cancel()

    def forget_arrays(self) -> None:
        """Let go of the caller's arrays, which nobody reads any more."""
        self.call = _NOTHING


class TicketFuture(Future[Outputs]):
    """What the caller of a request waits for.

    Args:
        ticket: of the request.
        cancelled: told when its caller has cancelled it.
    """

    def __init__(self, ticket: Ticket, cancelled: Callable[[Ticket], None]) -> None:
        super().__init__()
        self._ticket = ticket
        self._cancelled = cancelled

    def cancel(self) -> bool:
        """Cancel the request, unless it runs already or is done."""
        was_cancelled = self.cancelled()
        is_cancelled = super().cancel()
        if is_cancelled and not was_cancelled:
            self._cancelled(self._ticket)
        return is_cancelled


def ticket_of(request: Request) -> Ticket:
    """The request as this host made it."""
    assert isinstance(request, Ticket)
    return request


def deliver(future: Future[Outputs], outcome: Outputs | BaseException) -> None:
    """Give a future its result, or its error."""
    try:
        if isinstance(outcome, Outputs):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)
    except InvalidStateError:  # its caller cancelled it at this moment
        return


def late(request: Request, now_ms: float) -> DeadlineError:
    """The error of a request that is refused for its deadline."""
    left_ms = request.deadline_ms - now_ms
    told = f"{left_ms:.1f} ms are left" if left_ms > 0 else f"it was due {-left_ms:.1f} ms ago"
    return DeadlineError(f"a request of '{request.model}' cannot be finished in time: {told}")
