"""Devices that are not here: a latency table's devices, behind the engine's contract. They are never chosen unasked.

Numbers are ONNX Runtime's, on this processor; a call ends no sooner than the table says, and heats its device by the
same model as the twin's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sanderling.core.errors import EngineError
from sanderling.core.precision import Precision
from sanderling.core.tensor import Array, Feeds
from sanderling.run.emulation.heat import Heat, HeatRule, after_power, cold, slowdown
from sanderling.run.emulation.table import LatencyTable, TableDevice
from sanderling.run.engines import engine
from sanderling.run.engines.base import (
    Availability,
    DeviceInfo,
    DeviceKind,
    EngineOptions,
    Executable,
    Fidelity,
    Placement,
    choose_device,
)
from sanderling.run.policy.latency import predict_ms
from sanderling.run.sensors import Reading, Temperature

NAME = "emulated"


@dataclass
class _Device:
    """Heat of a device, as far as it was last looked at, and whether it has been busy since."""

    described: TableDevice
    rule: HeatRule
    heat: Heat
    looked_s: float
    busy: bool = False
    energy_j: float = 0.0
    gone: bool = False
    turn: threading.Lock = field(default_factory=threading.Lock)


class EmulatedDevices:
    """The devices of a latency table for one of its models; an engine, and the sensors of its devices.

    Args:
        table: with the model.
        model: name of it.
        seconds_a_second: how much faster heat runs than the clock.
    """

    name = NAME

    def __init__(self, table: LatencyTable, model: str, *, seconds_a_second: float = 1.0) -> None:
        self._table = table
        self._entries = table.model(model)
        self._pace = seconds_a_second
        self._lock = threading.Lock()
        self._kinds = {device: table.device_kinds[device] for device in self._entries}
        now_s = time.monotonic()
        self._devices = {}
        for name in self._entries:
            described = table.device(name)
            rule = described.thermal.rule()
            self._devices[name] = _Device(described, rule, cold(rule), now_s)

    def availability(self) -> Availability:
        """Always here."""
        return Availability(True, version="1")

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The table's devices for the model."""
        return tuple(
            DeviceInfo(
                engine=NAME,
                device=name,
                kind=DeviceKind(kind),
                fidelity=Fidelity.SIMULATOR,
                description=f"emulated, {self._table.source}",
                memory_bytes=None,
                precisions=tuple(Precision),
            )
            for name, kind in self._kinds.items()
        )

    def load(self, model: Path | bytes, options: EngineOptions) -> EmulatedExecutable:
        """Load the graph with ONNX Runtime, on one thread.

        Raises:
            ModelError: ONNX Runtime does not take the graph.
            EngineError: loading failed for another reason, or the device was made to vanish.
        """
        device = choose_device(self.devices(), options)
        self._check_there(device.device)
        inner = engine("onnxruntime").load(
            model, EngineOptions(threads=1, optimization=options.optimization, lean=options.lean)
        )
        return EmulatedExecutable(inner, self, device)

    def vanish(self, device: str, *, gone: bool = True) -> None:
        """Let a device fail every call from now on, as one that was unplugged, or be there again."""
        self._devices[device].gone = gone

    def read(self) -> Reading:
        """The temperatures and the energy of the devices."""
        with self._lock:
            now_s = time.monotonic()
            for device in self._devices.values():
                self._look(device, now_s)
            return Reading(
                time_s=now_s,
                temperatures=tuple(
                    Temperature(name, device.heat.temperature_c) for name, device in self._devices.items()
                ),
                energy_j=sum(device.energy_j for device in self._devices.values()),
            )

    def occupy(self, device: str, rows: int, call: Callable[[], dict[str, Array]]) -> dict[str, Array]:
        """Run a call on a device, alone there, for as long as the table says."""
        state = self._devices[device]
        with state.turn:
            self._check_there(device)
            start_s = time.monotonic()
            wanted_s = predict_ms(self._entries[device].latency, rows) / 1e3 * slowdown(state.rule, state.heat)
            self._become(state, busy=True)
            try:
                outputs = call()
                time.sleep(max(start_s + wanted_s - time.monotonic(), 0.0))
            finally:
                self._become(state, busy=False)
            return outputs

    def _become(self, device: _Device, *, busy: bool) -> None:
        with self._lock:
            self._look(device, time.monotonic())
            device.busy = busy

    def _check_there(self, device: str) -> None:
        if self._devices[device].gone:
            raise EngineError(f"emulated device '{device}' is gone")

    def _look(self, device: _Device, now_s: float) -> None:
        """Bring a device's heat and energy up to now."""
        passed_s = now_s - device.looked_s
        if passed_s <= 0:
            return
        power_w = device.described.power_w if device.busy else device.described.idle_w
        device.heat = after_power(device.rule, device.heat, power_w=power_w, seconds=passed_s * self._pace)
        device.energy_j += power_w * passed_s
        device.looked_s = now_s


class EmulatedExecutable:
    """A graph that runs as slowly as its device would."""

    def __init__(self, inner: Executable, devices: EmulatedDevices, device: DeviceInfo) -> None:
        self.inputs, self.outputs = inner.inputs, inner.outputs
        self.placement = Placement(device.device, {device.kind: 1.0}, detail=device.description)
        self._inner: Executable | None = inner
        self._devices, self._device = devices, device.device

    @property
    def copied_bytes(self) -> int:
        """Bytes that were copied between the caller's arrays and the engine."""
        inner = self._inner
        return inner.copied_bytes if inner is not None else 0

    def run(self, feeds: Feeds, outputs: Feeds | None = None) -> dict[str, Array]:
        """Execute once, into ``outputs`` where they are given.

        Raises:
            EngineError: execution failed, the device is gone, or the executable is closed.
        """
        inner = self._inner  # held until the call ends, whoever closes meanwhile
        if inner is None:
            raise EngineError("emulated: the graph is closed; load the package again")
        first = feeds[self.inputs[0].name]
        return self._devices.occupy(self._device, len(first) if first.ndim else 1, partial(inner.run, feeds, outputs))

    def close(self) -> None:
        """Drop the graph; a second call does nothing."""
        if self._inner is not None:
            self._inner.close()
        self._inner = None
