"""The text of an answer on its way from the thread that computes it to whoever reads it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from sanderling.core.errors import SanderlingError

Finish = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class TextResult:
    """An answer that is over.

    Attributes:
        finish: ``stop`` at the model's own end or a stop string, ``length`` at the most tokens or the context's end.
        prompt_tokens: of the prompt.
        cached_tokens: of these, kept from an earlier request and not computed again.
        tokens: of the answer.
        first_ms: from the request to the first token; None where there was none.
        total_ms: from the request to the end.
    """

    text: str
    finish: Finish
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    first_ms: float | None
    total_ms: float


class Outlet:
    """Takes pieces of text from one thread, for another one.

    Args:
        notify: called in the first thread whenever there is news; it must be quick and must not raise.

    Attributes:
        began_s: when the request came, on the monotonic clock.
        first_s: when its first token was chosen.
        tokens: chosen so far.
    """

    def __init__(self, notify: Callable[[], None] | None = None) -> None:
        self.began_s = time.monotonic()
        self.first_s: float | None = None
        self.tokens = 0
        self._notify = notify
        self._pieces: deque[str] = deque()
        self._texts: list[str] = []
        lock = threading.Lock()
        self._news, self._over = threading.Condition(lock), threading.Condition(lock)
        self._end: TextResult | SanderlingError | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing comes any more."""
        return self._end is not None

    @property
    def text(self) -> str:
        """All of the text so far."""
        return "".join(self._texts)

    def put(self, text: str) -> None:
        """A piece."""
        with self._news:
            self._pieces.append(text)
            self._texts.append(text)
            self._news.notify_all()
        self._tell()

    def end(self, outcome: TextResult | SanderlingError) -> None:
        """The end, or what has failed; only the first counts."""
        with self._news:
            if self._end is None:
                self._end = outcome
            self._news.notify_all()
            self._over.notify_all()
        self._tell()

    def take(self) -> list[str]:
        """The pieces that have come."""
        with self._news:
            pieces = list(self._pieces)
            self._pieces.clear()
        return pieces

    def wait(self) -> bool:
        """Wait for a piece; False at the end."""
        with self._news:
            self._news.wait_for(lambda: self._pieces or self._end is not None)
            return bool(self._pieces)

    def result(self) -> TextResult:
        """Wait for the end.

        Raises:
            SanderlingError: it has failed.
        """
        with self._over:  # whoever waits for the end is not woken by every piece
            self._over.wait_for(lambda: self._end is not None)
        return self.ended()

    def ended(self) -> TextResult:
        """How it has ended.

        Raises:
            SanderlingError: it has failed.
        """
        assert self._end is not None
        if isinstance(self._end, SanderlingError):
            raise self._end
        return self._end

    def _tell(self) -> None:
        if self._notify is not None:
            self._notify()


class TextStream:
    """An answer as it comes: iterate over its pieces, or ``take`` those that are there.

    Whoever lets go of it before its end cancels it. Used by one thread at a time.

    Args:
        outlet: that the pieces come from.
        cancel: ends the request.
    """

    def __init__(self, outlet: Outlet, cancel: Callable[[], None]) -> None:
        self._outlet = outlet
        self._cancel = cancel

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        """The next piece, never empty.

        Raises:
            StopIteration: the answer is over.
            SanderlingError: it has failed.
        """
        pieces = self._outlet.take() if self._outlet.wait() else []
        if not pieces:
            self._outlet.ended()
            raise StopIteration
        return "".join(pieces)

    @property
    def is_over(self) -> bool:
        """Whether nothing is computed any more; pieces may wait."""
        return self._outlet.is_over

    @property
    def tokens(self) -> int:
        """Tokens that were chosen so far."""
        return self._outlet.tokens

    def take(self) -> str:
        """What has come since the last time, without waiting; maybe empty."""
        return "".join(self._outlet.take())

    def result(self) -> TextResult:
        """Wait for the end, and return all of the answer.

        Raises:
            SanderlingError: it has failed.
        """
        return self._outlet.result()

    def cancel(self) -> None:
        """End it; its memory is given back as soon as the step that runs has ended. A second call does nothing."""
        self._cancel()

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        self._cancel()
