"""Gates: what every step of training, of evaluation and of features goes through, so that it can be held back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Gate(Protocol):
    """Lets steps run when they may; ``idle.IdleGate`` asks a policy."""

    def take(self, step: Callable[[], None], before_pause: Callable[[], None] | None = None) -> None:
        """Run one step, now or later; ``before_pause`` is called before it waits for long."""


class Open:
    """Every step may run at once."""

    def take(self, step: Callable[[], None], before_pause: Callable[[], None] | None = None) -> None:  # noqa: ARG002
        """Run the step."""
        step()


OPEN = Open()
