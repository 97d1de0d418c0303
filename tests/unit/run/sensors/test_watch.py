from __future__ import annotations

from sanderling.run.sensors import Reading, Temperature
from sanderling.run.sensors.watch import Watch


class Played:
    """What a watch lets through, and the events that it told."""

    def __init__(self, *readings: dict[str, float], frozen_after: int | None = 3) -> None:
        watch = Watch(frozen_after)
        self.sensors: list[list[str]] = []
        self.events: list[tuple[str, str]] = []
        self.reasons: list[str] = []
        for reading in readings:
            temperatures = tuple(Temperature(name, celsius) for name, celsius in reading.items())
            alive, events = watch.look_at(Reading(0.0, temperatures))
            self.sensors.append([entry.sensor for entry in alive.temperatures])
            self.events += [(event.kind, event.subject) for event in events]
            self.reasons += [event.reason for event in events]


def test_sensor_that_never_moves_is_one_event_and_left_out():
    played = Played(*[{"npu": 45.5, "cpu": 40.0 + step} for step in range(6)])
    assert played.sensors == [["npu", "cpu"]] * 2 + [["cpu"]] * 4
    assert played.events == [("sensor-frozen", "npu")]
    assert played.reasons == ["3 readings of exactly 45.5 °C; left out until it moves"]


def test_frozen_sensor_that_moves_is_back_and_may_freeze_again():
    played = Played(*[{"npu": celsius} for celsius in (45.5, 45.5, 45.5, 45.6, 45.6, 45.6)])
    assert played.events == [("sensor-frozen", "npu"), ("sensor-back", "npu"), ("sensor-frozen", "npu")]
    assert played.sensors == [["npu"], ["npu"], [], ["npu"], ["npu"], []]


def test_sensor_that_moves_by_a_digit_is_not_frozen():
    assert Played(*[{"npu": celsius} for celsius in (45.5, 45.5, 45.6, 45.5, 45.5, 45.6)]).events == []


def test_sensor_that_vanishes_is_one_event_and_so_is_its_return():
    played = Played({"npu": 45.0, "cpu": 1.0}, {"cpu": 2.0}, {"cpu": 3.0}, {"npu": 45.0, "cpu": 4.0})
    assert played.events == [("sensor-lost", "npu"), ("sensor-back", "npu")]
    assert played.reasons[0] == "it is gone from the readings; it last said 45 °C"


def test_sensor_that_vanished_starts_afresh():
    played = Played({"npu": 45.0}, {"npu": 45.0}, {}, {"npu": 45.0}, {"npu": 45.0})
    assert [kind for kind, _ in played.events] == ["sensor-lost", "sensor-back"]


def test_two_sensors_of_one_name_are_told_apart():
    watch = Watch(3)
    for step in range(3):
        found, events = watch.look_at(Reading(0.0, (Temperature("nvme", 30.0 + step), Temperature("nvme", 50.0))))
    assert [event.kind for event in events] == ["sensor-frozen"]
    assert found.temperatures == (Temperature("nvme", 32.0),)


def test_watch_that_is_told_never_lets_sensors_stand_still():
    assert Played(*[{"npu": 45.0}] * 100, frozen_after=None).events == []
