"""Training while the device has nothing better to do: step by step, under a policy, in turns with inference."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from datetime import datetime

from sanderling.core.closing import Closing
from sanderling.core.errors import RefusedError
from sanderling.core.progress import Event, Progress, Silent
from sanderling.run.policy.document import Policy
from sanderling.run.policy.rules import training_rules
from sanderling.run.policy.training import TrainingConditions, Verdict, may_train
from sanderling.run.runtime import Runtime
from sanderling.run.sensors import Reading, Sampler, Sensors, SystemSensors, device_temperature
from sanderling.run.text.turns import Alone, SharedTurns, Turns

_NAME = "training"
_PRIORITY = -1  # background work: below every request that does not say otherwise
_STALE_INTERVALS = 10  # of the sensors' readings, after which the last one says nothing
_LEAST_STALE_S = 5.0
_LONG = 5  # steps in a row that take longer than others may wait, before that is told


class IdleGate(Closing):
    """Lets training steps run while a policy allows it, and pauses before the next step when it does not.

    Close it, or use it in a ``with`` block.

    Args:
        policy: with a section ``training``.
        sensors: to read instead of this machine's.
        runtime: whose models training shares the processor with: each step waits for its turn, behind their requests.
        threads: of a step; 0 for all cores.
        progress: told about pauses, and about sensors that are lost.
        give_up_s: seconds of a pause after which training ends.
        now: local time.

    Attributes:
        pauses: that there were.
        verdict: of the last decision.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        sensors: Sensors | None = None,
        runtime: Runtime | None = None,
        threads: int = 0,
        progress: Progress | None = None,
        give_up_s: float = math.inf,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.pauses = 0
        self.verdict = Verdict(True, "")
        self._policy, self._rules = policy, training_rules(policy)
        self._runtime = runtime
        self._turns: Turns = (
            Alone()
            if runtime is None
            else SharedTurns(runtime, policy, name=_NAME, lane=f"{_NAME}/cpu", threads=threads)
        )
        self._progress = progress or Silent()
        self._give_up_s, self._now = give_up_s, now
        self._slow = 0
        self._is_training = False
        self._reading: Reading | None = None
        self._changed = threading.Condition()
        interval_s = policy.sensor_interval / 1e3
        self._stale_s = max(_STALE_INTERVALS * interval_s, _LEAST_STALE_S)
        self._sampler = Sampler(sensors or SystemSensors(), interval_s, self._receive, self._progress.event)

    def take(self, step: Callable[[], None], before_pause: Callable[[], None] | None = None) -> None:
        """Run one step when the policy allows it and it is its turn.

        Args:
            step: to run.
            before_pause: called once before it waits for long, such as to save.

        Raises:
            RefusedError: the pause takes longer than ``give_up_s``.
            SanderlingError: what the step raised.
        """
        self._wait(before_pause)
        begun = time.monotonic()
        self._turns.take(step, priority=_PRIORITY)
        self._watch_length((time.monotonic() - begun) * 1e3)

    def close(self) -> None:
        """End the readings, and leave the runtime; a second call does nothing."""
        self._sampler.close()
        if self._runtime is not None:
            self._runtime.remove(_NAME, reason="training has ended", drain_s=0.0)

    def _receive(self, reading: Reading) -> None:
        with self._changed:
            self._reading = reading
            self._changed.notify_all()

    def _wait(self, before_pause: Callable[[], None] | None) -> None:
        verdict = self._decide()
        if not verdict.allowed:
            self._pause(verdict, before_pause)
        self._is_training = True

    def _pause(self, verdict: Verdict, before_pause: Callable[[], None] | None) -> None:
        begun = time.monotonic()
        self._is_training = False
        if self._reading is None:  # the sensors have not answered for the first time
            self._await_reading(self._stale_s)
            verdict = self._decide()
            if verdict.allowed:
                return
        self.pauses += 1
        if before_pause is not None:
            before_pause()
        told = ""
        while not verdict.allowed:
            if _kind_of(verdict) != told:
                told = _kind_of(verdict)
                self._progress.event(Event(kind="training-paused", subject=_NAME, reason=verdict.reason))
            if time.monotonic() - begun >= self._give_up_s:
                raise RefusedError(
                    f"training was not allowed for {time.monotonic() - begun:.0f} s: {verdict.reason}; "
                    "what was done is in the checkpoint, run it again later"
                )
            self._await_reading(min(self._policy.sensor_interval / 1e3, self._give_up_s))
            verdict = self._decide()
        reason = f"after {time.monotonic() - begun:.0f} s"
        self._progress.event(Event(kind="training-resumed", subject=_NAME, reason=reason))

    def _await_reading(self, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait(timeout_s)

    def _decide(self) -> Verdict:
        now = self._now()
        reading = self._reading if self._sampler.age_s <= self._stale_s else None
        seen = TrainingConditions(
            charging=reading.charging if reading is not None else None,
            temperature_c=(
                device_temperature(reading.temperatures, "cpu", self._policy.training.sensor)
                if reading is not None
                else None
            ),
            free_share=_free_share(reading),
            minute=60 * now.hour + now.minute,
        )
        self.verdict = may_train(self._rules, seen, training=self._is_training)
        return self.verdict

    def _watch_length(self, took_ms: float) -> None:
        """Tell once where steps are so long that others wait for them."""
        self._slow = self._slow + 1 if took_ms > self._turns.slice_ms() else 0
        if self._slow == _LONG:
            reason = (
                f"{took_ms:.0f} ms, others may wait for {self._turns.slice_ms():.0f} ms: train with a smaller batch"
            )
            self._progress.event(Event(kind="training-step-long", subject=_NAME, reason=reason))


def _kind_of(verdict: Verdict) -> str:
    """What a pause is for, without the numbers: one pause is told once, however readings waver."""
    return "".join(letter for letter in verdict.reason if not letter.isdigit() and letter not in ".:")


def _free_share(reading: Reading | None) -> float | None:
    if reading is None or not reading.memory_limit_bytes or reading.memory_used_bytes is None:
        return None
    return 1.0 - reading.memory_used_bytes / reading.memory_limit_bytes
