"""What takes longer than a moment, such as reading megabytes of JSON, done beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from sanderling.core.errors import QueueFullError

_THREADS = 2
_MOST = 64
Given = ParamSpec("Given")
Result = TypeVar("Result")


class Aside:
    """A few threads for the event loop. Used from its thread alone.

    Args:
        threads: at a time; more would only take the interpreter from the loop.
        most: calls that wait or run.
    """

    def __init__(self, *, threads: int = _THREADS, most: int = _MOST) -> None:
        self._executor = ThreadPoolExecutor(threads, "sanderling-aside")
        self._most = most
        self._count = 0

    def run(self, call: Callable[Given, Result], *given: Given.args, **named: Given.kwargs) -> asyncio.Future[Result]:
        """Call something beside the running loop.

        Raises:
            QueueFullError: too many calls wait already.
        """
        if self._count >= self._most:
            raise QueueFullError(f"{self._count} large requests wait to be read or written already: try again later")
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, lambda: call(*given, **named))
        self._count += 1
        future.add_done_callback(self._ended)
        return future

    def close(self) -> None:
        """Call nothing more."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _ended(self, _: asyncio.Future[Result]) -> None:
        self._count -= 1
