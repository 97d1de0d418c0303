"""What can be read of a device while it works: temperatures, memory, power.

``reading`` joins what ``temperatures``, ``memory``, ``power`` and ``cards`` read; ``sampler`` reads it again and again
on a thread of its own, ``watch`` tells which sensors vanish or freeze, ``scripted`` plays a script instead, and
``survey`` lists everything once for people.
"""

from sanderling.run.sensors.cards import Card, Cards
from sanderling.run.sensors.memory import Memory, read_memory
from sanderling.run.sensors.power import Energy, EnergyMeter
from sanderling.run.sensors.reading import Reading, Sensors, SystemSensors, device_temperature
from sanderling.run.sensors.sampler import Sampler
from sanderling.run.sensors.scripted import ScriptedSensors, Step
from sanderling.run.sensors.survey import Power, Survey, survey_sensors
from sanderling.run.sensors.temperatures import Temperature, read_temperatures

__all__ = [
    "Card",
    "Cards",
    "Energy",
    "EnergyMeter",
    "Memory",
    "Power",
    "Reading",
    "Sampler",
    "ScriptedSensors",
    "Sensors",
    "Step",
    "Survey",
    "SystemSensors",
    "Temperature",
    "device_temperature",
    "read_memory",
    "read_temperatures",
    "survey_sensors",
]
