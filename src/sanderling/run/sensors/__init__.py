"""What can be read of a device while it works: temperatures, memory, power."""

from sanderling.run.sensors.cards import Card, Cards
from sanderling.run.sensors.memory import Memory, read_memory
from sanderling.run.sensors.power import Energy, EnergyMeter
from sanderling.run.sensors.temperatures import Temperature, read_temperatures

__all__ = [
    "Card",
    "Cards",
    "Energy",
    "EnergyMeter",
    "Memory",
    "Temperature",
    "read_memory",
    "read_temperatures",
]
