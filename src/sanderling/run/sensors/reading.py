"""One reading of all sensors, and the temperature that counts for a device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sanderling.core.errors import OptionError
from sanderling.core.progress import Event
from sanderling.run.sensors.cards import Cards
from sanderling.run.sensors.memory import read_memory
from sanderling.run.sensors.power import EnergyMeter
from sanderling.run.sensors.supply import on_mains
from sanderling.run.sensors.temperatures import Temperature, read_temperatures

# How the names of sensors begin that lie in a processor, a GPU or an NPU: hwmon drivers, zones of boards, our cards.
_WELL_KNOWN = {
    "cpu": ("coretemp", "k8temp", "k10temp", "zenpower", "x86_pkg_temp", "cpu", "bigcore", "midcore", "littlecore"),
    "gpu": ("gpu", "amdgpu", "radeon", "nouveau", "nvidia", "i915", "xe ", "mali"),
    "npu": ("npu", "nsp", "apu", "ascend", "davinci", "hailo", "apex"),
}
_WHOLE_CHIP = "soc"


@dataclass(frozen=True)
class Reading:
    """What the sensors say at one moment; None for what is not known.

    Attributes:
        time_s: of the sensors' clock.
        temperatures: one a sensor that answers.
        memory_used_bytes: of the container, or of the machine.
        memory_limit_bytes: of the same.
        resident_bytes: of this process.
        power_w: of what can be measured, see ``EnergyMeter``.
        energy_j: of the same, since the first reading.
        charging: whether the machine has mains power.
    """

    time_s: float
    temperatures: tuple[Temperature, ...] = ()
    memory_used_bytes: int | None = None
    memory_limit_bytes: int | None = None
    resident_bytes: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    charging: bool | None = None


class Sensors(Protocol):
    """Anything that can be read again and again."""

    def read(self) -> Reading:
        """What the sensors say now."""


class SystemSensors:
    """The sensors of this machine, whatever it has. Nothing is read before the first reading, which may hang.

    Args:
        root: folder that holds ``sys`` and ``proc``.
        on_event: told when a vendor's program does not answer.
        clock: seconds that never go back.

    Attributes:
        meter: of energy; says what it counts, or why it cannot. None before the first reading.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        on_event: Callable[[Event], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._clock = root, clock
        self._cards = Cards(on_event)
        self.meter: EnergyMeter | None = None

    def read(self) -> Reading:
        """What the sensors say now."""
        cards, memory = self._cards.read(), read_memory(self._root)
        if self.meter is None:
            self.meter = EnergyMeter(self._root / "sys/class", cards=cards, clock=self._clock)
        energy = self.meter.read(cards)
        of_cards = tuple(told for card in cards for told in card.temperatures)
        return Reading(
            time_s=self._clock(),
            temperatures=read_temperatures(self._root / "sys/class") + of_cards,
            memory_used_bytes=memory.used_bytes,
            memory_limit_bytes=memory.limit_bytes,
            resident_bytes=memory.resident_bytes,
            power_w=energy.power_w,
            energy_j=energy.energy_j,
            charging=on_mains(self._root),
        )


def device_temperature(temperatures: Sequence[Temperature], kind: str, wanted: str | None = None) -> float | None:
    """The temperature in degrees Celsius that counts for a kind of device: the hottest sensor of those that lie in it.

    Args:
        temperatures: of all sensors.
        kind: ``cpu``, ``gpu`` or ``npu``.
        wanted: name of the sensor to use, or a part of it; by default, sensors are known by their names. Where none of
            the kind is known, the zone of the whole chip counts, such as ``soc-thermal``.

    Returns:
        None where there is no such sensor.

    Raises:
        OptionError: there is no such kind.
    """
    if wanted is not None:
        asked = wanted.casefold()
        named = [entry for entry in temperatures if entry.sensor.casefold() == asked]
        return _hottest(named or [entry for entry in temperatures if asked in entry.sensor.casefold()])
    if kind not in _WELL_KNOWN:
        raise OptionError(f"there is no kind of device '{kind}': expected {', '.join(_WELL_KNOWN)}")
    inside = [entry for entry in temperatures if entry.sensor.casefold().startswith(_WELL_KNOWN[kind])]
    return _hottest(inside or [entry for entry in temperatures if entry.sensor.casefold().startswith(_WHOLE_CHIP)])


def _hottest(temperatures: Sequence[Temperature]) -> float | None:
    return max((entry.temperature_c for entry in temperatures), default=None)
