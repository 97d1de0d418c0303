"""How long work tells what it is doing, without knowing who listens."""

from __future__ import annotations

import time
from typing import Protocol

from pydantic import BaseModel, ConfigDict


class Event(BaseModel):
    """Something that was given up, undone, skipped or changed, with its reason and its cost.

    Attributes:
        kind: what happened, such as ``pass-undone`` or ``picture-skipped``.
        subject: what it happened to.
        reason: why, with the numbers.
    """

    model_config = ConfigDict(frozen=True)

    kind: str
    subject: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject} ({self.reason})"


class Progress(Protocol):
    """Receives stages, steps and events of long work."""

    def stage(self, name: str, total: int = 0) -> None:
        """A stage begins; it has ``total`` steps, or 0 when that is not known."""

    def advance(self, steps: int = 1) -> None:
        """Some steps of the current stage are done."""

    def event(self, event: Event) -> None:
        """Something happened that the user should know."""


class Silent:
    """A progress that nobody watches."""

    def stage(self, name: str, total: int = 0) -> None:
        """Ignore the stage."""

    def advance(self, steps: int = 1) -> None:
        """Ignore the steps."""

    def event(self, event: Event) -> None:
        """Ignore the event."""


class Recorder:
    """Keeps every event, times every stage, and passes all on to another progress."""

    def __init__(self, inner: Progress) -> None:
        self.events: list[Event] = []
        self.seconds: dict[str, float] = {}
        self._inner = inner
        self._running: tuple[str, float] | None = None

    def stage(self, name: str, total: int = 0) -> None:
        """End the running stage, begin another, and pass it on."""
        self.stop()
        self._running = (name, time.perf_counter())
        self._inner.stage(name, total)

    def advance(self, steps: int = 1) -> None:
        """Pass the steps on."""
        self._inner.advance(steps)

    def event(self, event: Event) -> None:
        """Keep the event and pass it on."""
        self.events.append(event)
        self._inner.event(event)

    def stop(self) -> None:
        """End the running stage."""
        if self._running is not None:
            name, start = self._running
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - start, 3)
            self._running = None
