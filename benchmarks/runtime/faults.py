"""The faults of the drill, one after another."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.runtime.callers import Load
from benchmarks.runtime.ledger import Ledger
from sanderling.core.errors import DeadlineError, EngineError, GuardError, QueueFullError, SanderlingError, TensorError
from sanderling.run.policy.document import Policy
from sanderling.run.sensors import Reading, Temperature
from sanderling.run.session import Session, load
from tests.engines import ALWAYS, NEVER, Script, When, scripted_session
from tests.requests import belongs_to, numbered

_QUICK = {"holdOff": 20, "longestHoldOff": 100, "hangTimeout": 10_000}  # a busy machine must not look like a hang
_IMPATIENT = {**_QUICK, "hangTimeout": 150}
_POISON = tuple(float(low) for low in range(7, 4096, 97))  # requests whose number has one of these in its lower part


class Rig:
    """What a fault is injected into.

    Attributes:
        session: that callers use now.
        scripts: of its devices.
        ended: set when the load is about to end.
    """

    def __init__(self, package: Path, fault: Fault, ledger: Ledger) -> None:
        self.package, self.fault, self.ledger = package, fault, ledger
        self.ended = threading.Event()
        self.sensors = HandSensors()
        self.scripts: dict[str, Script] = {}
        self.problems: list[str] = []
        self.session = self.open()

    def open(self) -> Session:
        """A new session over new scripts."""
        document = {"recovery": _QUICK, "batchTuning": {"maxBatchSize": 8}, **self.fault.policy}
        if self.fault.real:
            return load(self.package, policy=Policy.model_validate(document), threads=1)
        self.scripts = self.fault.scripts()
        if not self.fault.isolated:
            for script in self.scripts.values():
                script.seen = self.ledger.saw
        sensors = self.sensors if self.fault.sensed else None
        return scripted_session(self.package, self.scripts, isolated=self.fault.isolated, sensors=sensors, **document)

    def expect(self, holds: object, problem: str) -> None:
        """Note a problem unless something holds."""
        if not holds:
            self.problems.append(problem)

    def pause(self, seconds: float) -> bool:
        """Wait; False when the load is about to end."""
        return not self.ended.wait(seconds)


class HandSensors:
    """Sensors that say what the drill sets."""

    def __init__(self) -> None:
        self.celsius: dict[str, float] = {"npu": 40.0, "gpu": 40.0}
        self.frozen = False
        self._reads = 0

    def read(self) -> Reading:
        """What they say now; they move a little, as real ones do, unless they are frozen."""
        self._reads += not self.frozen
        step = self._reads % 2 / 10
        return Reading(time.monotonic(), tuple(Temperature(name, value + step) for name, value in self.celsius.items()))


def two_devices(**npu: Any) -> dict[str, Script]:  # noqa: ANN401 - whatever a script has
    """An NPU with a script, and a GPU that works."""
    return {"npu": Script(**{"call_ms": 0.5, **npu}), "gpu": Script(call_ms=0.5)}


def _nothing(_: Rig) -> None:
    """The load alone is the fault."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        disturb: what happens meanwhile, until ``rig.ended``.
        refusals: errors that it may lead to.
        once: no request runs twice.
        isolated: engines have processes of their own.
        real: ONNX Runtime by the policy, instead of scripts.
        sensed: the session reads sensors.
    """

    name: str
    scripts: Callable[[], dict[str, Script]] = two_devices
    policy: dict[str, Any] = field(default_factory=dict)
    load: Load = field(default_factory=Load)
    disturb: Callable[[Rig], None] = _nothing
    refusals: tuple[type[SanderlingError], ...] = ()
    once: bool = True
    isolated: bool = False
    real: bool = False
    sensed: bool = False


def _switch(rig: Rig) -> None:
    while rig.pause(0.003):
        rig.session.switch(device="gpu" if rig.session.device == "npu" else "npu")


def _vanish(rig: Rig) -> None:
    while rig.pause(0.05):
        script = rig.scripts["npu"]
        script.gone = not script.gone


def _hang(rig: Rig) -> None:
    while rig.pause(0.1):
        rig.scripts["npu"].release.set()  # what hung before comes back late, and is thrown away
        if rig.pause(0.01):
            rig.scripts["npu"].release.clear()
    rig.scripts["npu"].release.set()


def _crash(rig: Rig) -> None:
    while rig.pause(0.3):
        worker = rig.session._served.lanes[0]._worker
        if worker is not None and worker.pid is not None:
            os.kill(worker.pid, signal.SIGSEGV)


def _stop_worker(rig: Rig) -> None:
    while rig.pause(0.4):
        lane = rig.session._served.lanes[0]
        worker = lane._worker
        if lane.loaded and worker is not None and worker.pid is not None:  # while it loads, it has two minutes
            os.kill(worker.pid, signal.SIGSTOP)


def _sense(rig: Rig) -> None:
    sensors = rig.sensors
    steps: list[Callable[[], object]] = [
        lambda: sensors.celsius.update(npu=90.0),
        lambda: sensors.celsius.update(npu=40.0),
        lambda: sensors.celsius.pop("npu"),
        lambda: sensors.celsius.update(npu=40.0),
        lambda: setattr(sensors, "frozen", True),
        lambda: setattr(sensors, "frozen", False),
    ]
    step = 0
    while rig.pause(0.06):
        steps[step % len(steps)]()
        step += 1


def _reopen(rig: Rig) -> None:
    while rig.pause(0.08):
        old, rig.session = rig.session, rig.open()
        old.close(drain_s=1.0)


def _cut_off(rig: Rig) -> None:
    while rig.pause(0.15):
        old_scripts, old, rig.session = rig.scripts, rig.session, rig.open()
        old.close(drain_s=0.02)
        for script in old_scripts.values():
            script.release.set()
    for script in rig.scripts.values():
        script.release.set()


def _fork(rig: Rig) -> None:
    while rig.pause(0.1):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.alarm(10)
                rig.session.run(numbered(1))
            except EngineError as error:
                code = 0 if "forked" in str(error) else 2
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        rig.expect(code == 0, f"a forked child ended with {code}")


def _callbacks(rig: Rig) -> None:
    """Callbacks that wait for further results of the same session."""
    while rig.pause(0.005):
        answered = threading.Event()

        def call(_: object, answered: threading.Event = answered) -> None:
            rig.expect(belongs_to(rig.session.run(numbered(0)), 0), "a callback got another's result")
            answered.set()

        rig.session.submit(numbered(0), stream=object()).add_done_callback(call)
        rig.expect(answered.wait(10), "a callback waited for ever")


_FULL = {"queueLimit": 3}
FAULTS: tuple[Fault, ...] = (
    Fault("none"),
    Fault("malformed requests", load=Load(malformed=0.3), refusals=(TensorError,)),
    Fault("strided, turned and read-only arrays", load=Load(odd=True)),
    Fault("cancelled futures and coroutines", load=Load(cancelled=0.4)),
    Fault("deadlines too short", load=Load(deadlines_ms=(None, -1.0, 0.5, 2.0, 4.0)), refusals=(DeadlineError,)),
    Fault("queue full, rejects", policy={"scheduling": _FULL}, refusals=(QueueFullError,)),
    Fault("queue full, callers wait", policy={"scheduling": {**_FULL, "whenFull": "wait"}}, load=Load(cancelled=0.1)),
    Fault("engine fails now and then", lambda: two_devices(fails=When(numbers=range(2, 10**9, 5)))),
    Fault(
        "requests that every engine fails",
        lambda: {device: Script(call_ms=0.5, fails=When(values=_POISON)) for device in ("npu", "gpu")},
        refusals=(EngineError,),
    ),
    Fault(
        "engine hangs",
        lambda: two_devices(hangs=When(numbers=range(9, 10**9, 40))),
        policy={"recovery": _IMPATIENT},
        disturb=_hang,
        once=False,
    ),
    Fault("device vanishes", disturb=_vanish),
    Fault("loading fails", lambda: {"npu": Script(load_fails=ALWAYS), "gpu": Script(load_fails=NEVER, call_ms=0.5)}),
    Fault(
        "engine crashes by SIGSEGV, another takes over",
        lambda: two_devices(crashes=When(values=_POISON[::12])),
        isolated=True,
        once=False,
    ),
    Fault(
        "ONNX Runtime's process crashes by SIGSEGV",
        policy={"devicePriorities": ["cpu"], "isolation": "process"},
        disturb=_crash,
        refusals=(EngineError,),
        real=True,
    ),
    Fault(
        "ONNX Runtime's process stops",
        policy={"devicePriorities": ["cpu"], "isolation": "process", "recovery": _IMPATIENT},
        disturb=_stop_worker,
        refusals=(EngineError,),
        real=True,
        once=False,
    ),
    Fault(
        "NaN in results",
        lambda: two_devices(spoils=When(values=_POISON)),
        policy={"guard": {"checkFinite": True, "onTrip": "raise", "breakerTrips": 1_000_000}},
        refusals=(GuardError,),
    ),
    Fault(
        "sensors hot, missing and frozen",
        policy={"fallbackThresholds": {"npu": {"temp": 75}}, "sensorInterval": 1},
        disturb=_sense,
        sensed=True,
    ),
    Fault("a device of the policy is not here", policy={"devicePriorities": ["npu:7", "cpu"]}, real=True),
    Fault("switching", disturb=_switch),
    Fault("callbacks that wait for results", disturb=_callbacks),
    Fault("forks", disturb=_fork),
    Fault("closing, which drains", disturb=_reopen, refusals=(EngineError,)),
    Fault(
        "closing, which cuts off hung calls",
        lambda: two_devices(hangs=When(numbers=range(5, 10**9, 5))),
        disturb=_cut_off,
        refusals=(EngineError,),
        once=False,
    ),
)
