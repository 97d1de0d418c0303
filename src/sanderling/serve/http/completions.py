"""Results that come from other threads to the event loop, woken once for as many as there are."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from sanderling.run.results import Outputs

Receive = Callable[[Future[Outputs]], None]


class Completions:
    """Calls back in the loop's thread when futures are done.

    Args:
        loop: that runs in the thread.
        run_short: runs short calls in this thread, see ``Runtime.run_short``.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, run_short: Callable[[], bool]) -> None:
        self._loop = loop
        self._run_short = run_short
        self._is_visiting = False
        self._done: deque[tuple[Receive, Future[Outputs]]] = deque()
        self._is_woken = False

    def watch(self, future: Future[Outputs], receive: Receive) -> None:
        """Call ``receive`` with the future once it is done."""
        future.add_done_callback(lambda done: self._put(receive, done))

    def visit(self) -> None:
        """Run short calls, with those that come meanwhile; to be called in the loop's thread."""
        if not self._is_visiting:
            self._is_visiting = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_visiting = False
        self._is_woken = True  # for the results of this turn, which are handed over at its end
        try:
            is_left = self._run_short()
        finally:
            self._drain()
        if is_left:
            self.visit()

    def _put(self, receive: Receive, future: Future[Outputs]) -> None:
        self._done.append((receive, future))
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop is closed, and nobody waits
                self._done.clear()

    def _drain(self) -> None:
        self._is_woken = False
        while self._done:
            receive, future = self._done.popleft()
            receive(future)
