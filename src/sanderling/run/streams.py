"""Results in the order in which their requests came, stream by stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable


class Link:
    """One result's place in its stream."""

    __slots__ = ("after", "before", "deliver", "key")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.before: Link | None = None
        self.after: Link | None = None
        self.deliver: Callable[[], None] | None = None


class Streams:
    """Holds a result back until those before it are delivered. Usable from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[Hashable, Link] = {}

    def join(self, key: Hashable) -> Link:
        """Take the next place of a stream; it must be settled once."""
        link = Link(key)
        with self._lock:
            last = self._last.get(key)
            if last is not None:
                link.before, last.after = last, link
            self._last[key] = link
        return link

    def settle(self, link: Link, deliver: Callable[[], None]) -> None:
        """A result is there: deliver it as soon as all before it are, and what waited for it after it."""
        with self._lock:
            link.deliver = deliver
            if link.before is not None:
                return
        following: Link | None = link
        while following is not None and following.deliver is not None:
            following.deliver()
            with self._lock:
                following = self._pass_on(following)

    def _pass_on(self, link: Link) -> Link | None:
        """The next result that is there; a link lets go of it, so that an old one does not hold all that came after."""
        after, link.after, link.deliver = link.after, None, None
        if after is None:
            del self._last[link.key]
            return None
        after.before = None
        return after if after.deliver is not None else None
