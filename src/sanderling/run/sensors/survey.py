"""Everything that the sensors of this machine say, once, and what cannot be read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sanderling.core.progress import Event
from sanderling.run.sensors.cards import Card, Cards
from sanderling.run.sensors.memory import Memory, read_memory
from sanderling.run.sensors.power import EnergyMeter
from sanderling.run.sensors.temperatures import Temperature, read_temperatures


@dataclass(frozen=True)
class Power:
    """Whether power can be read: of what, or why not."""

    sources: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Survey:
    """What can be read here.

    Attributes:
        temperatures: of the kernel's sensors and of the cards.
        cards: as their vendors' programs tell.
        memory: of the container or the machine.
        power: whether it can be read.
        lost: programs that did not answer, with the reason.
    """

    temperatures: tuple[Temperature, ...]
    cards: tuple[Card, ...]
    memory: Memory
    power: Power
    lost: tuple[str, ...]


def survey_sensors(root: Path = Path("/")) -> Survey:
    """Read everything once.

    Args:
        root: folder that holds ``sys`` and ``proc``.
    """
    events: list[Event] = []
    cards = Cards(events.append).read()
    meter = EnergyMeter(root / "sys/class", cards=cards)
    of_cards = tuple(told for card in cards for told in card.temperatures)
    return Survey(
        temperatures=read_temperatures(root / "sys/class") + of_cards,
        cards=cards,
        memory=read_memory(root),
        power=Power(meter.sources, meter.reason),
        lost=tuple(str(event) for event in events),
    )
