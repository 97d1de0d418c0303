from __future__ import annotations

import itertools
import threading
import time

import pytest

from sanderling.run.sensors import Reading, Temperature
from tests.engines import Script, scripted_session, wait_until
from tests.requests import belongs_to, numbered

HOT, COOL = 80.0, 40.0


class HandSensors:
    """Sensors that say what a test sets; they move by a little, as real ones do, unless they are frozen."""

    def __init__(self, **celsius):
        self.celsius = celsius
        self.moves = True
        self.hang = threading.Event()
        self.hang.set()
        self._steps = itertools.cycle((0.0, 0.1))

    def read(self):
        self.hang.wait(30)
        step = next(self._steps) if self.moves else 0.0
        return Reading(time.monotonic(), tuple(Temperature(name, value + step) for name, value in self.celsius.items()))


def kinds(session):
    return [timed.event.kind for timed in list(session._runtime.events)]


@pytest.fixture
def sensors():
    made = HandSensors(npu=COOL, gpu=COOL)
    yield made
    made.hang.set()


@pytest.fixture
def session(sums, sensors):
    limits = {"npu": {"temp": 75, "cooldownTemp": 65}, "gpu": {"temp": 85}}
    scripts = {"npu": Script(), "gpu": Script()}
    with scripted_session(sums, scripts, sensors=sensors, fallbackThresholds=limits, sensorInterval=5) as opened:
        yield opened


def test_hot_device_is_left_and_used_again_when_it_has_cooled(session, sensors):
    assert session.run(numbered(1)).lane == "scripted/npu/fp32"
    sensors.celsius["npu"] = HOT
    wait_until(lambda: session.device == "gpu")
    assert session.run(numbered(2)).lane == "scripted/gpu/fp32"
    sensors.celsius["npu"] = 70.0  # cooler, but not cool
    time.sleep(0.05)
    assert session.device == "gpu"
    sensors.celsius["npu"] = COOL
    wait_until(lambda: session.device == "npu")
    reasons = [event.reason for event in session.events if event.kind == "switched"]
    assert ["is left at 75 °C" in reasons[0], "returns at 65 °C" in reasons[1]] == [True, True]


def test_sensor_that_vanishes_is_told_once_and_requests_go_on(session, sensors):
    wait_until(lambda: session.conditions.last is not None)
    del sensors.celsius["npu"]
    wait_until(lambda: "temperature-unknown" in kinds(session))
    assert belongs_to(session.run(numbered(1)), 1)
    time.sleep(0.1)
    assert kinds(session).count("temperature-unknown") == 1
    assert kinds(session).count("sensor-lost") == 1
    sensors.celsius["npu"] = HOT
    wait_until(lambda: session.device == "gpu")


def test_device_that_was_hot_when_its_sensor_vanished_is_not_taken_for_cool(session, sensors):
    sensors.celsius["npu"] = HOT
    wait_until(lambda: session.device == "gpu")
    del sensors.celsius["npu"]
    wait_until(lambda: "temperature-unknown" in kinds(session))
    assert session.device == "gpu"
    assert belongs_to(session.run(numbered(1)), 1)


def test_frozen_sensor_is_told_and_does_not_count(session, sensors):
    sensors.moves = False
    wait_until(lambda: "sensor-frozen" in kinds(session))
    wait_until(lambda: "temperature-unknown" in kinds(session))
    assert belongs_to(session.run(numbered(1)), 1)
    sensors.moves = True
    sensors.celsius["npu"] = HOT
    wait_until(lambda: session.device == "gpu")


def test_sensors_that_hang_hold_up_neither_requests_nor_closing(session, sensors):
    wait_until(lambda: session.conditions.last is not None)
    sensors.hang.clear()
    time.sleep(0.02)
    assert belongs_to(session.run(numbered(1)), 1)
    begun_s = time.monotonic()
    session.close()
    assert time.monotonic() - begun_s < 3


def test_policy_without_limits_reads_no_sensors(sums):
    with scripted_session(sums) as opened:
        assert opened.conditions is None
