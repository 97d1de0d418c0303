"""What could execute a graph here: every engine that Sanderling knows, and the devices of those installed."""

from __future__ import annotations

from dataclasses import dataclass

from sanderling.run.engines import engine_names, known_engine
from sanderling.run.engines.base import Availability, DeviceInfo


@dataclass(frozen=True)
class EngineState:
    """An engine, whether it is installed, and its devices here (none when it is not)."""

    name: str
    availability: Availability
    devices: tuple[DeviceInfo, ...]


def list_engines() -> tuple[EngineState, ...]:
    """Every engine but the null one, installed or not."""
    states = []
    for name in engine_names():
        if name == "null":
            continue
        found = known_engine(name)
        availability = found.availability()
        states.append(EngineState(name, availability, found.devices() if availability.installed else ()))
    return tuple(states)
