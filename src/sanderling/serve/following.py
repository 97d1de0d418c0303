"""Events of all runtimes that the models of a data plane use, as they come and go."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial

from sanderling.run.runtime import Runtime, TimedEvent
from sanderling.serve.data_plane import DataPlane


class Follower:
    """Passes on the events of every runtime, each with its runtime.

    Args:
        plane: whose models' runtimes are followed, and its pool's.
        happened: told about every event.
    """

    def __init__(self, plane: DataPlane, happened: Callable[[Runtime, TimedEvent], None]) -> None:
        self._plane = plane
        self._happened = happened
        self._followed: weakref.WeakSet[Runtime] = weakref.WeakSet()

    def follow(self) -> None:
        """Listen to runtimes that are new; what has happened in them so far is told first."""
        for runtime in {model.session.runtime for model in self._plane.models} | {self._plane.pool.runtime}:
            if runtime not in self._followed:
                self._followed.add(runtime)
                for timed in list(runtime.events):
                    self._happened(runtime, timed)
                runtime.listen(partial(self._happened, runtime))
