"""What branches gave, by what they were given: the same picture is computed once, for all who ask about it."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from sanderling.core.tensor import Array, Feeds

Key = tuple[str, bytes]
_ENTRY_BYTES = 512  # of an entry beside its arrays


@dataclass(frozen=True)
class Content:
    """What a branch reads: known by its hash, and made into the branch's input only where it must run.

    Attributes:
        digest: of the bytes that it comes from.
        feeds: makes the branch's input of one row; raises what is wrong with the content.
    """

    digest: bytes
    feeds: Callable[[], Feeds]


def digest_of(data: bytes) -> bytes:
    """SHA-256 of what a content comes from."""
    return hashlib.sha256(data).digest()


class FeatureCache:
    """Outputs of branches by branch and content. Usable from several threads.

    What is being computed counts as there: who asks for it meanwhile waits for it. The least recently used entries go
    when more than ``limit_bytes`` would be held; an entry that is larger by itself is not kept.

    Args:
        limit_bytes: 0 keeps nothing.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._held: OrderedDict[Key, Feeds] = OrderedDict()
        self._coming: dict[Key, Future[Feeds]] = {}
        self._bytes = 0
        self._counts: Counter[str] = Counter()

    @property
    def size_bytes(self) -> int:
        """That the entries hold now."""
        return self._bytes

    @property
    def counts(self) -> dict[str, int]:
        """``hits``, ``misses``, and entries that were ``evicted`` or too large to be ``kept``, so far."""
        with self._lock:
            return {name: self._counts[name] for name in ("hits", "misses", "evicted", "not kept")}

    def claim(self, key: Key) -> tuple[Future[Feeds], bool]:
        """What a branch gives for a content, and whether the caller has to compute it.

        A caller who has to must end with ``settle`` or ``fail``.
        """
        with self._lock:
            if (held := self._held.get(key)) is not None:
                self._held.move_to_end(key)
                self._counts["hits"] += 1
                ready: Future[Feeds] = Future()
                ready.set_result(held)
                return ready, False
            if (coming := self._coming.get(key)) is not None:
                self._counts["hits"] += 1
                return coming, False
            self._counts["misses"] += 1
            promise: Future[Feeds] = Future()
            self._coming[key] = promise
            return promise, True

    def settle(self, key: Key, outputs: Feeds) -> None:
        """Give the outputs to all who wait for them, and keep them."""
        owned = {name: _owned(array) for name, array in outputs.items()}
        with self._lock:
            promise = self._coming.pop(key)
            self._keep(key, owned)
        promise.set_result(owned)

    def fail(self, key: Key, error: Exception) -> None:
        """Tell all who wait that it failed; the next one tries again. What is not being computed is left alone."""
        with self._lock:
            promise = self._coming.pop(key, None)
        if promise is not None:
            promise.set_exception(error)

    def clear(self) -> int:
        """Forget everything; returns the bytes that were held."""
        with self._lock:
            freed, self._bytes = self._bytes, 0
            self._held.clear()
            return freed

    def _keep(self, key: Key, outputs: Feeds) -> None:
        size = _size(outputs)
        if size > self.limit_bytes:
            self._counts["not kept"] += 1
            return
        self._held[key] = outputs
        self._bytes += size
        while self._bytes > self.limit_bytes:
            _, gone = self._held.popitem(last=False)
            self._bytes -= _size(gone)
            self._counts["evicted"] += 1


def _owned(array: Array) -> Array:
    """The array, read-only; a copy where it is a row of a batch, which it would keep in memory as a whole."""
    base = array.base
    owned = array.copy() if base is not None and getattr(base, "nbytes", 0) > array.nbytes else array
    owned.setflags(write=False)
    return owned


def _size(outputs: Feeds) -> int:
    return _ENTRY_BYTES + sum(array.nbytes for array in outputs.values())
