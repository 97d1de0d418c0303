"""Power and energy: RAPL counters of processors, hwmon chips, and what the cards' programs tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sanderling.core.errors import first_line
from sanderling.run.sensors.cards import Card
from sanderling.run.sensors.sysfs import line, numbered
from sanderling.run.sensors.temperatures import SYSTEM

_SHORTEST_S = 0.01  # the counters move about once a millisecond
_WHOLE_MACHINE = ("power_meter", "macsmc_hwmon")  # chips that the others of the same machine are a part of
_PARTS = ("i915_gt",)  # chips that are a part of another


@dataclass(frozen=True)
class Energy:
    """What a meter says.

    Attributes:
        energy_j: joules since the meter started; None where that cannot be measured.
        power_w: watts, where a counter is read the mean since the last reading; None as ``energy_j``, and before a
            counter had time to move.
        reason: why it cannot be measured; empty where it can.
    """

    energy_j: float | None
    power_w: float | None
    reason: str = ""


class _UnreadableError(Exception):
    """A file or a card does not tell its power now."""


@dataclass
class _Counter:
    """Microjoules that only rise, and begin at 0 again after ``range_uj``."""

    name: str
    file: Path
    range_uj: int | None
    last_uj: int = 0

    def passed_uj(self, now_uj: int) -> int | None:
        """Microjoules from the last reading to this one; None when it went back and nobody knows how far."""
        if now_uj >= self.last_uj:
            return now_uj - self.last_uj
        return None if self.range_uj is None else self.range_uj - self.last_uj + now_uj


@dataclass(frozen=True)
class _Gauge:
    """Watts at this moment."""

    name: str
    read_w: Callable[[Sequence[Card]], float]


class EnergyMeter:
    """Joules since it started, of what can be measured here without counting anything twice.

    That is: RAPL's packages, with the cards beside them; without RAPL the hwmon chips, of each the first sensor, as the
    others are mostly parts of it; without both, the cards. A counter begins at 0 again after some hundred kilojoules:
    read it more often than that, once a minute is enough. Power is added up by the trapezoid rule.

    Args:
        root: folder that holds ``powercap`` and ``hwmon``.
        cards: that tell their power now; later readings need the same.
        clock: seconds that never go back.

    Attributes:
        sources: what is counted, such as ``package-0``; empty where nothing can be.
        reason: why nothing can be measured; empty where something can.

    Source: Documentation/power/powercap/powercap.rst and Documentation/hwmon/sysfs-interface.rst of Linux.
    """

    def __init__(
        self, root: Path = SYSTEM, *, cards: Sequence[Card] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._counters, self._gauges, self.reason = _measurable(root, cards)
        counted, gauged = (entry.name for entry in self._counters), (entry.name for entry in self._gauges)
        self.sources = (*counted, *gauged)
        self._energy_j, self._watts = 0.0, 0.0
        self._time_s = clock()
        if not self.reason:
            self._start(cards)

    def read(self, cards: Sequence[Card] = ()) -> Energy:
        """Energy since the start, and power. A sensor that is silent only now makes only this reading None.

        Args:
            cards: as they are now, of those that were told of at the start.
        """
        if self.reason:
            return Energy(None, None, self.reason)
        try:
            values, watts = self._values(cards)
        except _UnreadableError as error:
            return Energy(None, None, _not_measurable(str(error)))
        now_s = self._clock()
        counted_j = 0.0
        for counter, value in zip(self._counters, values, strict=True):
            passed = counter.passed_uj(value)
            if passed is None:
                self.reason = _not_measurable(f"{counter.file} went back from {counter.last_uj} to {value} microjoules")
                return Energy(None, None, self.reason)
            counted_j += passed / 1e6
        return self._add(now_s, values, counted_j, watts)

    def _add(self, now_s: float, values: list[int], counted_j: float, watts: float) -> Energy:
        elapsed_s = now_s - self._time_s
        if self._counters and elapsed_s < _SHORTEST_S:
            return Energy(self._energy_j, None)
        self._energy_j += counted_j + (self._watts + watts) / 2 * elapsed_s
        self._time_s, self._watts = now_s, watts
        for counter, value in zip(self._counters, values, strict=True):
            counter.last_uj = value
        return Energy(self._energy_j, watts + (counted_j / elapsed_s if self._counters else 0.0))

    def _start(self, cards: Sequence[Card]) -> None:
        try:
            values, self._watts = self._values(cards)
        except _UnreadableError as error:
            self.reason, self.sources = _not_measurable(str(error)), ()
            return
        for counter, value in zip(self._counters, values, strict=True):
            counter.last_uj = value

    def _values(self, cards: Sequence[Card]) -> tuple[list[int], float]:
        counted = [_microunits(counter.file) for counter in self._counters]
        return counted, sum(gauge.read_w(cards) for gauge in self._gauges)


def _measurable(root: Path, cards: Sequence[Card]) -> tuple[list[_Counter], list[_Gauge], str]:
    """What can be counted, or why nothing can."""
    beside = [_card_gauge(card.name) for card in cards if card.power_w is not None]
    packages = _packages(root / "powercap")
    denied = ""
    try:
        for package in packages:
            _microunits(package.file)
    except _UnreadableError as error:
        packages, denied = [], str(error)
    if packages:
        return packages, beside, ""
    counters, gauges = _chips(root / "hwmon")
    if counters or gauges:
        return counters, gauges, ""
    if beside:
        return [], beside, ""
    nothing = f"no package of RAPL in {root / 'powercap'}, no power or energy that is readable in {root / 'hwmon'}"
    return [], [], _not_measurable(denied or nothing)


def _packages(folder: Path) -> list[_Counter]:
    """RAPL's packages. Cores, graphics and memory are parts of one, and ``psys`` is all of them."""
    found = []
    for domain in numbered(folder, "intel-rapl:*"):  # AMD's processors have that name, too
        name = line(domain / "name")
        if name.startswith("package"):
            found.append(_Counter(name, domain / "energy_uj", _whole_number(domain / "max_energy_range_uj")))
    return found


def _chips(folder: Path) -> tuple[list[_Counter], list[_Gauge]]:
    named = [(line(chip / "name") or chip.name, chip) for chip in numbered(folder, "hwmon*")]
    apart = [(name, chip) for name, chip in named if not name.startswith(_PARTS)]
    measuring = [(name, chip) for name, chip in apart if _energy(chip) or _power(chip)]
    whole = [entry for entry in measuring if entry[0] in _WHOLE_MACHINE]
    counters: list[_Counter] = []
    gauges: list[_Gauge] = []
    for name, chip in whole[:1] or measuring:
        energy, power = _energy(chip), _power(chip)
        if energy:
            counters += [_Counter(_labelled(name, file), file, None) for file in energy]
        elif power:
            gauges.append(_file_gauge(_labelled(name, power), power))
    return counters, gauges


def _energy(chip: Path) -> list[Path]:
    """Energy counters of a chip: the first, or its sockets' where it lists cores before them."""
    readable = [file for file in numbered(chip, "energy*_input") if _whole_number(file) is not None]
    sockets = [file for file in readable if _label(file).startswith("Esocket")]
    return sockets or readable[:1]


def _power(chip: Path) -> Path | None:
    """The first power of a chip: the mean where it tells that, else the present value."""
    files = sorted(numbered(chip, "power*_average") + numbered(chip, "power*_input"), key=_place)
    return next((file for file in files if _whole_number(file) is not None), None)


def _place(file: Path) -> tuple[int, str]:
    sensor = file.name.partition("_")[0]
    return len(sensor), sensor


def _label(file: Path) -> str:
    return line(file.with_name(f"{file.name.partition('_')[0]}_label"))


def _labelled(chip: str, file: Path) -> str:
    return f"{chip} {_label(file) or file.name.partition('_')[0]}"


def _file_gauge(name: str, file: Path) -> _Gauge:
    return _Gauge(name, lambda _: _microunits(file) / 1e6)


def _card_gauge(name: str) -> _Gauge:
    def read_w(cards: Sequence[Card]) -> float:
        watts = next((card.power_w for card in cards if card.name == name), None)
        if watts is None:
            raise _UnreadableError(f"{name} does not tell its power any more")
        return watts

    return _Gauge(name, read_w)


def _microunits(file: Path) -> int:
    """Microjoules or microwatts."""
    try:
        text = file.read_text(encoding="ascii").strip()
        return int(text)
    except PermissionError as error:
        raise _UnreadableError(f"{file}: permission denied; its administrator can make it readable") from error
    except OSError as error:
        raise _UnreadableError(f"{file}: {(error.strerror or first_line(error)).lower()}") from error
    except ValueError as error:
        raise _UnreadableError(f"{file} holds no whole number") from error


def _whole_number(file: Path) -> int | None:
    try:
        return _microunits(file)
    except _UnreadableError:
        return None


def _not_measurable(why: str) -> str:
    return f"not measurable here ({why})"
