"""Sensors that play a script: for tests, demonstrations and the twin."""

from __future__ import annotations

import csv
import math
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sanderling.core.errors import DataError, first_line
from sanderling.run.sensors.reading import Reading
from sanderling.run.sensors.temperatures import Temperature, believable

_BYTES = ("memory_used_bytes", "memory_limit_bytes", "resident_bytes")
_NOT_SENSORS = ("time_s", *_BYTES, "power_w", "charging")


@dataclass(frozen=True)
class Step:
    """What the sensors say from a time on; None for what they do not tell.

    Attributes:
        time_s: after the script began.
        temperatures_c: degrees Celsius by sensor; a sensor that is not named is lost.
        charging: whether the machine has mains power.
    """

    time_s: float
    temperatures_c: Mapping[str, float] = field(default_factory=dict)
    memory_used_bytes: int | None = None
    memory_limit_bytes: int | None = None
    resident_bytes: int | None = None
    power_w: float | None = None
    charging: bool | None = None


class ScriptedSensors:
    """Plays steps on a clock: each holds until the next, the first also before its time, the last for ever.

    Args:
        steps: in the order of their times.
        clock: seconds that never go back; the script begins when the sensors are made.

    Raises:
        DataError: there is no step, times do not rise, or a value is none that a sensor could say.
    """

    def __init__(self, steps: Sequence[Step], *, clock: Callable[[], float] = time.monotonic) -> None:
        _check(steps)
        self._steps = tuple(steps)
        self._times = [step.time_s for step in steps]
        self._clock = clock
        self._start_s = clock()

    @classmethod
    def from_csv(cls, path: Path, *, clock: Callable[[], float] = time.monotonic) -> ScriptedSensors:
        """Read a script such as ``time_s,npu,gpu,cpu,memory_used_bytes``.

        Columns are ``time_s``, any of ``memory_used_bytes``, ``memory_limit_bytes``, ``resident_bytes`` and
        ``power_w``, and one for each sensor by its name. An empty field is a sensor that does not answer.

        Raises:
            DataError: the file is no such script; the message names the line.
        """
        return cls(_steps_of(path), clock=clock)

    def read(self) -> Reading:
        """What the script says now."""
        now_s = self._clock()
        step = self._steps[max(0, bisect_right(self._times, now_s - self._start_s) - 1)]
        return Reading(
            time_s=now_s,
            temperatures=tuple(Temperature(name, celsius) for name, celsius in step.temperatures_c.items()),
            memory_used_bytes=step.memory_used_bytes,
            memory_limit_bytes=step.memory_limit_bytes,
            resident_bytes=step.resident_bytes,
            power_w=step.power_w,
            energy_j=self._energy_j(now_s - self._start_s),
            charging=step.charging,
        )

    def _energy_j(self, until_s: float) -> float | None:
        """Joules from the beginning; None once a step that has begun says no power."""
        begun = self._steps[: max(1, bisect_right(self._times, until_s))]
        ends = [*(step.time_s for step in begun[1:]), until_s]
        joules, since_s = 0.0, 0.0
        for step, end_s in zip(begun, ends, strict=True):
            if step.power_w is None:
                return None
            joules += step.power_w * (end_s - since_s)
            since_s = end_s
        return joules


def _check(steps: Sequence[Step]) -> None:
    if not steps:
        raise DataError("a script of sensors has no step: at least one is needed")
    before_s = -math.inf
    for place, step in enumerate(steps, start=1):
        if not (math.isfinite(step.time_s) and step.time_s >= 0 and step.time_s > before_s):
            raise DataError(
                f"step {place} of a script of sensors has time_s {step.time_s:g} after {max(before_s, 0.0):g}: "
                "times are seconds from 0 on and rise"
            )
        before_s = step.time_s
        _check_values(place, step)


def _check_values(place: int, step: Step) -> None:
    for name, celsius in step.temperatures_c.items():
        if not believable(celsius):
            raise DataError(
                f"step {place} of a script of sensors says {celsius:g} °C for '{name}': expected -55 to 200"
            )
    for name in (*_BYTES, "power_w"):
        value = getattr(step, name)
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise DataError(f"step {place} of a script of sensors says {value:g} for '{name}': expected 0 or more")


def _steps_of(path: Path) -> list[Step]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            rows = [(reader.line_num, row) for reader in [csv.reader(stream)] for row in reader if row]
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist: expected a .csv with the columns time_s and sensors") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is no readable CSV: {first_line(error)}") from error
    header = [name.strip() for name in rows[0][1]] if rows else []
    if "time_s" not in header or len(header) < 2 or len(set(header)) != len(header) or "" in header:
        raise DataError(
            f"{path} begins with '{','.join(header)}': expected time_s and different names of sensors, such as "
            "time_s,npu,gpu,cpu,memory_used_bytes"
        )
    steps = [_step(f"{path}, line {number}", header, row) for number, row in rows[1:]]
    try:
        _check(steps)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    return steps


def _step(where: str, header: list[str], row: list[str]) -> Step:
    if len(row) != len(header):
        raise DataError(f"{where} has {len(row)} fields: the header has {len(header)}")
    said = {name: text.strip() for name, text in zip(header, row, strict=True) if text.strip()}
    if "time_s" not in said:
        raise DataError(f"{where} has no time_s: expected seconds from the beginning")
    values = {name: _number(where, name, text) for name, text in said.items()}
    used, limit, resident = (int(values[name]) if name in values else None for name in _BYTES)
    celsius = {name: value for name, value in values.items() if name not in _NOT_SENSORS}
    charging = values.get("charging")
    if charging not in (None, 0.0, 1.0):
        raise DataError(f"{where} says '{said['charging']}' for 'charging': expected 0 or 1")
    on = None if charging is None else bool(charging)
    return Step(values["time_s"], celsius, used, limit, resident, values.get("power_w"), on)


def _number(where: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{where} says '{text}' for '{name}': expected a number, or nothing where a sensor is lost")
    return value
