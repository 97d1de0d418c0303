"""Messages of calls as they come: a client that stops in the middle of one does not keep its place."""

from __future__ import annotations

import asyncio
import time

from grpc.aio import EOF
from grpc.aio import ServicerContext as Context

from sanderling.serve.errors import RequestError, TooSlowError

_SWEEP_S = 0.5


class Arrivals:
    """Waits for messages, and ends calls whose message does not come in time.

    gRPC itself waits for as long as the client answers its pings. Used from the event loop's thread alone.

    Args:
        limit_s: from a call's head to the end of its message.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since_s: dict[asyncio.Task[object], float] = {}
        self._overdue: set[asyncio.Task[object]] = set()

    async def message(self, context: Context) -> bytes:
        """The message of a call, in the call's own task.

        Raises:
            TooSlowError: it has not come in time.
            RequestError: there is none.
        """
        task = asyncio.current_task()
        assert task is not None
        self._since_s[task] = time.monotonic()
        try:
            came: bytes = await context.read()
        except asyncio.CancelledError:
            if task not in self._overdue:  # the client has gone
                raise
            self._overdue.discard(task)
            task.uncancel()
            raise TooSlowError(f"the message did not come within {self._limit_s:g} s: send it in one go") from None
        finally:
            self._since_s.pop(task, None)
        if came is EOF:
            raise RequestError("the call has no message: send one")
        return came

    async def watch(self) -> None:
        """End calls that take too long, until this is cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            before_s = time.monotonic() - self._limit_s
            for task in [task for task, since_s in self._since_s.items() if since_s < before_s]:
                del self._since_s[task]
                self._overdue.add(task)
                task.cancel()
