"""Temperatures that the kernel shows: hwmon chips and thermal zones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sanderling.run.sensors.sysfs import line, numbered

SYSTEM = Path("/sys/class")
_BELIEVABLE_C = (-55.0, 200.0)  # a sensor that is switched off says 0 K, or the largest number it has


@dataclass(frozen=True)
class Temperature:
    """What one sensor says; its name is the chip's or the zone's, with the label where it has one."""

    sensor: str
    temperature_c: float


def read_temperatures(root: Path = SYSTEM) -> tuple[Temperature, ...]:
    """Every temperature that can be read here; none on most virtual machines and containers.

    Args:
        root: folder that holds ``hwmon`` and ``thermal``.

    Source: Documentation/hwmon/sysfs-interface.rst and Documentation/driver-api/thermal/sysfs-api.rst of Linux.
    """
    chips = list(_chips(root / "hwmon"))
    shown = {chip for chip, _ in chips}  # the kernel shows most zones as chips of the same name, too
    zones = [found for name, found in _zones(root / "thermal") if name not in shown]
    return tuple(found for _, found in chips) + tuple(zones)


def believable(temperature_c: float) -> bool:
    """Whether a sensor that says so can be believed; NaN cannot."""
    return _BELIEVABLE_C[0] <= temperature_c <= _BELIEVABLE_C[1]


def _chips(folder: Path) -> Iterator[tuple[str, Temperature]]:
    for chip in numbered(folder, "hwmon*"):
        name = line(chip / "name") or chip.name
        for file in numbered(chip, "temp*_input"):
            label = line(chip / file.name.replace("_input", "_label")) or file.name.removesuffix("_input")
            celsius = _celsius(file)
            if celsius is not None:
                yield name, Temperature(f"{name} {label}", celsius)


def _zones(folder: Path) -> Iterator[tuple[str, Temperature]]:
    for zone in numbered(folder, "thermal_zone*"):
        name = line(zone / "type") or zone.name
        celsius = _celsius(zone / "temp")
        if celsius is not None:
            yield name, Temperature(name, celsius)


def _celsius(file: Path) -> float | None:
    """A temperature in thousandths of a degree; None where the sensor is off, broken or not ours to read."""
    try:
        celsius = int(line(file)) / 1000
    except ValueError:
        return None
    return celsius if believable(celsius) else None
