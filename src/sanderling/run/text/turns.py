"""Whose turn it is: text is computed in short steps, and between two of them other models may run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from sanderling.core.errors import SanderlingError
from sanderling.core.machine import usable_cores
from sanderling.run.policy import NEVER
from sanderling.run.policy.batching import BatchRules
from sanderling.run.policy.document import Policy
from sanderling.run.policy.latency import LatencyModel
from sanderling.run.policy.rules import lane_rule, recovery_rule
from sanderling.run.results import Outputs
from sanderling.run.runtime import Runtime
from sanderling.run.tickets import Call

_CPU = "cpu"


class Turns(Protocol):
    """Lets steps run, one at a time."""

    def take(self, step: Callable[[], None], *, priority: int = 0) -> None:
        """Run a step when it is its turn.

        Raises:
            SanderlingError: what the step raised, or no turn comes any more.
        """

    def slice_ms(self) -> float:
        """Milliseconds that a step may take now, so that other models are not late for it; infinite without any."""


class Alone:
    """Every turn is ours."""

    def take(self, step: Callable[[], None], *, priority: int = 0) -> None:  # noqa: ARG002
        """Run a step at once."""
        step()

    def slice_ms(self) -> float:
        """Infinite."""
        return NEVER


class SharedTurns:
    """Turns by a runtime's policy: a request of another model that is due sooner goes first.

    Args:
        runtime: that other models use as well.
        policy: of the runtime.
        name: that the runtime knows these turns by.
        lane: name of the way of running, such as ``genai/cpu/int8``.
        threads: of a step; 0 for all cores.
    """

    def __init__(self, runtime: Runtime, policy: Policy, *, name: str, lane: str, threads: int = 0) -> None:
        self.name = name
        self.has_rescue = False
        self.is_simple = False  # steps run in the runtime's own threads, however short they are
        self._runtime = runtime
        self._lane = lane
        self._step: Callable[[], None] = _nothing
        self._failure: Exception | None = None
        runtime.add(
            self,
            [lane_rule(policy, lane, _CPU, _CPU)],
            [LatencyModel()],
            batching=BatchRules(max_rows=1),
            recovery=recovery_rule(policy),
            costs=[threads or usable_cores()],
            capacities={_CPU: usable_cores()},
        )

    def take(self, step: Callable[[], None], *, priority: int = 0) -> None:
        """Run a step when the runtime lets it.

        Raises:
            EngineError: the runtime serves this no more.
            SanderlingError: what the step raised.
        """
        self._step, self._failure = step, None
        try:
            self._runtime.run(self.name, Call({}), priority=priority)
        finally:
            self._step = _nothing
        if self._failure is not None:
            raise self._failure

    def slice_ms(self) -> float:
        """As of the runtime."""
        return self._runtime.slice_ms(self.name)

    def compute(self, lane: int, calls: Sequence[Call], call_rows: int) -> list[Outputs | SanderlingError]:  # noqa: ARG002
        """Called by the runtime: run the step. What it raises is its request's own, and no fault of the lane."""
        try:
            self._step()
        except Exception as failure:  # noqa: BLE001 - raised by ``take``
            self._failure = failure
        return [Outputs({}, lane=self._lane, batch_rows=call_rows) for _ in calls]

    def lane_name(self, lane: int) -> str:  # noqa: ARG002
        """Called by the runtime."""
        return self._lane

    def is_ready(self, lane: int) -> bool:  # noqa: ARG002
        """Called by the runtime: steps load nothing."""
        return True


def _nothing() -> None:
    """No step."""
