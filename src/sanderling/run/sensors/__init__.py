"""What can be read of a device while it works: temperatures, memory, power."""

from sanderling.run.sensors.cards import Card, Cards
from sanderling.run.sensors.memory import Memory, read_memory
from sanderling.run.sensors.power import Energy, EnergyMeter
from sanderling.run.sensors.reading import Reading, Sensors, SystemSensors, device_temperature
from sanderling.run.sensors.sampler import Sampler
from sanderling.run.sensors.scripted import ScriptedSensors, Step
from sanderling.run.sensors.temperatures import Temperature, read_temperatures

__all__ = [
    "Card",
    "Cards",
    "Energy",
    "EnergyMeter",
    "Memory",
    "Reading",
    "Sampler",
    "ScriptedSensors",
    "Sensors",
    "Step",
    "SystemSensors",
    "Temperature",
    "device_temperature",
    "read_memory",
    "read_temperatures",
]
