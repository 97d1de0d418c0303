"""Which sensors vanish, freeze, and come back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sanderling.core.progress import Event
from sanderling.run.sensors.reading import Reading
from sanderling.run.sensors.temperatures import Temperature

_Key = tuple[str, int]  # name, and its place among the sensors of that name


@dataclass
class _State:
    celsius: float
    alike: int = 1
    lost: bool = False
    frozen: bool = False


class Watch:
    """Compares each reading with those before.

    Args:
        frozen_after: readings with the very same temperature after which a sensor counts as frozen; None for never.
    """

    def __init__(self, frozen_after: int | None) -> None:
        self._frozen_after = frozen_after
        self._states: dict[_Key, _State] = {}

    def look_at(self, reading: Reading) -> tuple[Reading, list[Event]]:
        """The reading without sensors that are frozen, and what changed: one event a change, not one a reading."""
        here = _keyed(reading.temperatures)
        events = [event for key, entry in here.items() if (event := self._seen(key, entry))]
        events += [event for key, state in self._states.items() if key not in here and (event := _missed(key, state))]
        alive = tuple(entry for key, entry in here.items() if not self._states[key].frozen)
        return replace(reading, temperatures=alive), events

    def _seen(self, key: _Key, entry: Temperature) -> Event | None:
        state = self._states.get(key)
        if state is None or state.lost or entry.temperature_c != state.celsius:
            self._states[key] = _State(entry.temperature_c)
            if state is None or not (state.lost or state.frozen):
                return None
            return Event(kind="sensor-back", subject=entry.sensor, reason=f"it says {entry.temperature_c:g} °C")
        state.alike += 1
        if self._frozen_after is not None and state.alike >= self._frozen_after and not state.frozen:
            state.frozen = True
            reason = f"{state.alike} readings of exactly {entry.temperature_c:g} °C; left out until it moves"
            return Event(kind="sensor-frozen", subject=entry.sensor, reason=reason)
        return None


def _keyed(temperatures: Sequence[Temperature]) -> dict[_Key, Temperature]:
    counts: Counter[str] = Counter()
    keyed = {}
    for entry in temperatures:
        keyed[entry.sensor, counts[entry.sensor]] = entry
        counts[entry.sensor] += 1
    return keyed


def _missed(key: _Key, state: _State) -> Event | None:
    if state.lost:
        return None
    state.lost = True
    reason = f"it is gone from the readings; it last said {state.celsius:g} °C"
    return Event(kind="sensor-lost", subject=key[0], reason=reason)
