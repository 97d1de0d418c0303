"""Engines that do what a test tells them to: take their time, fail, hang, crash, vanish; and sessions over them."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sanderling.core.errors import EngineError
from sanderling.core.precision import Precision
from sanderling.core.tensor import Array, Feeds
from sanderling.model.package import Package
from sanderling.run.engines import engine
from sanderling.run.engines.base import (
    Availability,
    DeviceInfo,
    DeviceKind,
    EngineOptions,
    Executable,
    Fidelity,
    Placement,
)
from sanderling.run.isolated import Worker
from sanderling.run.lanes import LanePlan
from sanderling.run.placing import Place
from sanderling.run.policy.document import parse_policy
from sanderling.run.sensors import Sensors
from sanderling.run.session import Session
from sanderling.run.worker import IN_WORKER

HANG_LIMIT_S = 60.0  # a hang that nobody releases ends by itself, so that no test outlives it for ever


@dataclass(frozen=True)
class When:
    """Calls that something happens to: by number, from 1 on; by a value anywhere in their first input; or all.

    Attributes:
        first: calls from the beginning on.
        values: of which one is in the first input; a row that carries it spoils its batch.
    """

    numbers: tuple[int, ...] | range = ()
    first: int = 0
    values: tuple[float, ...] = ()
    every: bool = False

    def applies(self, number: int, first_input: Array) -> bool:
        """Whether a call is one of them."""
        if self.every or number in self.numbers or number <= self.first:
            return True
        return bool(self.values) and bool(np.isin(first_input, np.array(self.values, first_input.dtype)).any())

    def to_header(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {**vars(self), "numbers": list(self.numbers)}

    def rows(self, first_input: Array) -> Array:
        """Which rows of a call it applies to."""
        if not self.values:
            return np.ones(len(first_input), bool)
        carried = np.isin(first_input, np.array(self.values, first_input.dtype)).reshape(len(first_input), -1)
        return np.asarray(carried.any(axis=1))


NEVER = When()
ALWAYS = When(every=True)


@dataclass
class Script:
    """What an engine does. A test may change it while calls run.

    Attributes:
        call_ms: that a call takes, and ``row_ms`` more for each row, without using the processor.
        fails: calls that raise.
        hangs: calls that wait for ``release``.
        crashes: calls that end their process by SIGSEGV; only in a worker.
        spoils: calls whose outputs become NaN; only rows that carry one of its values, where it has some.
        load_fails: loads that raise, by their number.
        load_ms: that loading takes.
        gone: the device has vanished: loads and calls raise.
        release: lets calls go on that hang.
        calls: that were made.
        rows: of every call, unless it does not ``remember``, as in a soak.
        seen: is given the first input of every call that ended well.
        loads: that were made.
        closed: executables that were closed.
    """

    call_ms: float = 0.0
    row_ms: float = 0.0
    fails: When = NEVER
    hangs: When = NEVER
    crashes: When = NEVER
    spoils: When = NEVER
    load_fails: When = NEVER
    load_ms: float = 0.0
    gone: bool = False
    release: threading.Event = field(default_factory=threading.Event)
    calls: int = 0
    remember: bool = True
    rows: list[int] = field(default_factory=list)
    seen: Callable[[Array], None] | None = None
    loads: int = 0
    closed: int = 0
    counting: threading.Lock = field(default_factory=threading.Lock)

    def to_header(self) -> dict[str, Any]:
        """What a worker can be told of it."""
        times = {name: getattr(self, name) for name in ("call_ms", "row_ms", "load_ms", "gone")}
        conditions = ("fails", "hangs", "crashes", "spoils", "load_fails")
        return {**times, **{name: getattr(self, name).to_header() for name in conditions}}

    @classmethod
    def from_header(cls, header: Mapping[str, Any]) -> Script:
        """The script that a message tells of."""
        script = cls()
        for name, value in header.items():
            if isinstance(value, dict):
                value = When(tuple(value["numbers"]), value["first"], tuple(value["values"]), value["every"])
            setattr(script, name, value)
        return script


class ScriptedEngine:
    """Computes with ONNX Runtime on one thread, and does what its script says before.

    Args:
        script: shared with the test; a worker gets what it says when a graph is loaded.
        isolated: compute in a process of its own.
    """

    name = "scripted"

    def __init__(self, script: Script, *, device: str = "npu", isolated: bool = False) -> None:
        self.script = script
        self._device, self._isolated = device, isolated

    def availability(self) -> Availability:
        """Always here."""
        return Availability(True, version="1")

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The one device."""
        kind = DeviceKind(self._device.partition(":")[0])
        return (DeviceInfo(self.name, self._device, kind, Fidelity.SIMULATOR, "scripted", None, tuple(Precision)),)

    def load(self, model: Path | bytes, options: EngineOptions) -> Executable:
        """Load the graph, as the script says."""
        script = self.script
        script.loads += 1
        time.sleep(script.load_ms / 1e3)
        if script.gone or script.load_fails.applies(script.loads, np.empty(0)):
            raise EngineError(f"scripted: load {script.loads} fails")
        if self._isolated:
            return _InWorker(model, script)
        inner = engine("onnxruntime").load(model, EngineOptions(threads=1, lean=options.lean))
        return ScriptedExecutable(inner, script, self.devices()[0])


class ScriptedExecutable:
    """A graph that does what its script says."""

    def __init__(self, inner: Executable, script: Script, device: DeviceInfo) -> None:
        self.inputs, self.outputs = inner.inputs, inner.outputs
        self.placement = Placement(device.device, {device.kind: 1.0})
        self._inner: Executable | None = inner
        self._script = script

    @property
    def copied_bytes(self) -> int:
        """As the inner engine says."""
        inner = self._inner
        return inner.copied_bytes if inner is not None else 0

    def run(self, feeds: Feeds, outputs: Feeds | None = None) -> dict[str, Array]:
        """Execute once."""
        script, inner = self._script, self._inner
        if inner is None:
            raise EngineError("scripted: the graph is closed; load the package again")
        first = feeds[self.inputs[0].name]
        with script.counting:
            script.calls += 1
            number = script.calls
        if script.remember:
            script.rows.append(len(first))
        if script.crashes.applies(number, first):
            assert os.environ.get(IN_WORKER), "a crash belongs into a worker"
            os.kill(os.getpid(), signal.SIGSEGV)
        if script.hangs.applies(number, first):
            script.release.wait(HANG_LIMIT_S)
        time.sleep((script.call_ms + script.row_ms * len(first)) / 1e3)
        if script.gone or script.fails.applies(number, first):
            raise EngineError(f"scripted: call {number} fails")
        results = inner.run(feeds, outputs)
        if script.spoils.applies(number, first):
            for array in results.values():
                array[script.spoils.rows(first)] = np.nan
        if script.seen is not None:
            script.seen(first)
        return results

    def close(self) -> None:
        """Drop the graph; a second call does nothing."""
        if self._inner is not None:
            self._inner.close()
            self._script.closed += 1
        self._inner = None


class _InWorker:
    """A scripted graph in a process of its own, which ends with it."""

    def __init__(self, model: Path | bytes, script: Script) -> None:
        assert isinstance(model, Path)
        self._worker = Worker(module="tests.scripted_worker")
        self._inner = self._worker.load_as({"model": str(model), "script": json.dumps(script.to_header())})
        self.inputs, self.outputs, self.placement = self._inner.inputs, self._inner.outputs, self._inner.placement

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._inner.alive

    @property
    def copied_bytes(self) -> int:
        """As the other end says."""
        return self._inner.copied_bytes

    def run(self, feeds: Feeds, outputs: Feeds | None = None) -> dict[str, Array]:
        """Execute once."""
        return self._inner.run(feeds, outputs)

    def close(self) -> None:
        """End the process."""
        self._worker.close()


def scripted_plan(package: Package, device: str, script: Script, *, variant: str = "fp32", isolated: bool) -> LanePlan:
    """One way of running, by a script."""
    place = Place("scripted", package.variant(variant), EngineOptions(device=device, threads=1))
    kind = DeviceKind(device.partition(":")[0])
    return LanePlan(place, device, kind, ScriptedEngine(script, device=device, isolated=isolated))


def scripted_session(
    package: Path | Package,
    scripts: Mapping[str, Script] | None = None,
    *,
    isolated: bool = False,
    sensors: Sensors | None = None,
    **policy: Any,
) -> Session:
    """A session whose lanes are the scripts' devices, the first preferred.

    Args:
        package: with a variant ``fp32``.
        scripts: by device, such as ``npu`` or ``gpu:1``; one NPU that works by default.
        isolated: every lane computes in a process of its own.
        sensors: to read.
        policy: of the session, with the file's keys; nothing is checked in results unless it says so.
    """
    opened = package if isinstance(package, Package) else Package.open(package)
    devices = scripts or {"npu": Script()}
    document = {"devicePriorities": list(devices), "guard": {"checkFinite": False}, **policy}
    plans = [scripted_plan(opened, device, script, isolated=isolated) for device, script in devices.items()]
    return Session(opened, parse_policy(json.dumps(document)), plans, sensors=sensors)


def wait_until(holds: Callable[[], object], *, timeout_s: float = 10.0) -> None:
    """Wait until something holds; an error if it does not in time."""
    end_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.001)
