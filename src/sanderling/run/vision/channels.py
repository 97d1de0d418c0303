"""How threads hand things to each other, one at a time and with a bound."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class ChannelEndError(Exception):
    """Nothing comes any more."""


class Channel(Generic[T]):
    """A queue with room for ``capacity`` things, that can end."""

    def __init__(self, capacity: int) -> None:
        self._things: deque[T] = deque()
        self._capacity = capacity
        self._changed = threading.Condition()
        self._ended = False
        self._last_put_s = 0.0

    def put(self, thing: T) -> None:
        """Add one; waits for room.

        Raises:
            ChannelEndError: it was aborted, or has ended.
        """
        with self._changed:
            while len(self._things) >= self._capacity and not self._ended:
                self._changed.wait()
            self._add(thing)

    def replace(self, thing: T) -> int:
        """Add one in the place of all that wait; returns how many these were.

        Raises:
            ChannelEndError: it was aborted, or has ended.
        """
        with self._changed:
            replaced = len(self._things)
            self._things.clear()
            self._add(thing)
            return replaced

    def exchange(self, thing: T) -> T | None:
        """Put one in the place of the oldest that waits, and return that; None, and nothing is put, where none waits.

        Raises:
            ChannelEndError: it was aborted, or has ended.
        """
        with self._changed:
            if self._ended:
                raise ChannelEndError
            if not self._things:
                return None
            replaced, self._things[0] = self._things[0], thing
            return replaced

    def put_back(self, thing: T) -> bool:
        """Add one that was taken, also after the end, unless another waits; returns whether it was added."""
        with self._changed:
            if self._things:
                return False
            self._things.append(thing)
            self._changed.notify_all()
            return True

    def get(self) -> T:
        """Take the oldest one; waits for it.

        Raises:
            ChannelEndError: it has ended, and all is taken.
        """
        with self._changed:
            while not self._things:
                if self._ended:
                    raise ChannelEndError
                self._changed.wait()
            thing = self._things.popleft()
            self._changed.notify_all()
            return thing

    def wait_for_newer(self, timeout_s: float) -> bool:
        """Wait until something is put after this call; False when nothing was, or it has ended."""
        with self._changed:
            before, until = self._last_put_s, time.monotonic() + timeout_s
            while self._last_put_s == before and not self._ended:
                left_s = until - time.monotonic()
                if left_s <= 0:
                    return False
                self._changed.wait(left_s)
            return self._last_put_s != before

    def wait_until_taken(self, timeout_s: float) -> bool:
        """Wait until nothing waits here, or it has ended; False when something still does."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._things or self._ended, timeout_s)

    def oldest(self) -> T | None:
        """What ``get`` would take, without taking it."""
        with self._changed:
            return self._things[0] if self._things else None

    def end(self, *, abort: bool = False) -> None:
        """Nothing is put any more; with ``abort``, what waits is let go of too."""
        with self._changed:
            self._ended = True
            if abort:
                self._things.clear()
            self._changed.notify_all()

    def _add(self, thing: T) -> None:
        if self._ended:
            raise ChannelEndError
        self._things.append(thing)
        self._last_put_s = time.monotonic()
        self._changed.notify_all()
