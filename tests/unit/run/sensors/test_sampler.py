from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from sanderling.core.errors import OptionError
from sanderling.run.sensors import Reading, Sampler, ScriptedSensors, Step, SystemSensors, Temperature
from tests.unit.run.sensors.trees import Clock

_WAIT_S = 20.0


class Box:
    """Collects from another thread, and waits until there is enough."""

    def __init__(self) -> None:
        self.kept: list = []
        self._changed = threading.Condition()

    def __call__(self, value) -> None:
        with self._changed:
            self.kept.append(value)
            self._changed.notify_all()

    def wait_for(self, count: int) -> list:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.kept) >= count, _WAIT_S), self.kept
            return list(self.kept)


class Faulty:
    """Sensors that hang while ``blocked`` is set, and raise what they are told to."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.failure: Exception | None = None
        self.reads = 0

    def read(self) -> Reading:
        self.reads += 1
        self.free.wait(_WAIT_S)
        if self.failure is not None:
            raise self.failure
        return Reading(0.0, (Temperature("npu", float(self.reads)),))


@pytest.fixture
def readings():
    return Box()


@pytest.fixture
def events():
    return Box()


def kinds(events):
    return [(event.kind, event.subject) for event in events]


def test_sensors_are_read_again_and_again_and_passed_on(readings, events):
    with Sampler(Faulty(), 0.01, readings, events):
        kept = readings.wait_for(3)
    assert [reading.temperatures[0].temperature_c for reading in kept[:3]] == [1.0, 2.0, 3.0]
    assert events.kept == []


def test_nothing_is_passed_on_after_it_is_closed(readings, events):
    sampler = Sampler(Faulty(), 0.01, readings, events)
    readings.wait_for(1)
    sampler.close()
    sampler.close()
    count = len(readings.kept)
    time.sleep(0.05)
    assert len(readings.kept) == count


def test_threads_end_when_it_is_closed(readings, events):
    before = set(threading.enumerate())
    with Sampler(Faulty(), 0.01, readings, events):
        readings.wait_for(1)
    ours = set(threading.enumerate()) - before
    for thread in ours:
        thread.join(_WAIT_S)
    assert not any(thread.is_alive() for thread in ours)


def test_read_that_hangs_is_one_event_and_its_return_another(readings, events):
    sensors = Faulty()
    sensors.free.clear()
    with Sampler(sensors, 0.01, readings, events, timeout_s=0.05):
        told = events.wait_for(1)
        time.sleep(0.2)
        assert kinds(events.kept) == [("sensor-lost", "sensors")]
        assert told[0].reason == "no answer for 0.05 s"
        assert sensors.reads == 1
        sensors.free.set()
        readings.wait_for(2)
    assert kinds(events.kept)[:2] == [("sensor-lost", "sensors"), ("sensor-back", "sensors")]


def test_closing_while_a_read_hangs_takes_less_than_a_second(readings, events):
    sensors = Faulty()
    sensors.free.clear()
    sampler = Sampler(sensors, 0.01, readings, events, timeout_s=0.02)
    events.wait_for(1)
    begun_s = time.monotonic()
    sampler.close()
    took_s = time.monotonic() - begun_s
    sensors.free.set()
    assert took_s < 1.0
    assert readings.kept == []


def test_closing_while_the_receiver_hangs_takes_less_than_a_second(events):
    entered, free = threading.Event(), threading.Event()

    def hang(_):
        entered.set()
        free.wait(_WAIT_S)

    sampler = Sampler(Faulty(), 0.01, hang, events)
    assert entered.wait(_WAIT_S)
    begun_s = time.monotonic()
    sampler.close()
    took_s = time.monotonic() - begun_s
    free.set()
    assert took_s < 1.0


def test_read_that_raises_is_one_event_and_never_the_end(readings, events):
    sensors = Faulty()
    sensors.failure = OSError(5, "Input/output error")
    with Sampler(sensors, 0.01, readings, events):
        told = events.wait_for(1)
        while sensors.reads < 4:
            time.sleep(0.01)
        assert len(events.kept) == 1
        sensors.failure = None
        readings.wait_for(2)
    assert told[0].reason == "reading failed: OSError: [Errno 5] Input/output error"
    assert kinds(events.kept) == [("sensor-lost", "sensors"), ("sensor-back", "sensors")]


def test_frozen_sensor_is_one_event_and_left_out(readings, events):
    sensors = ScriptedSensors([Step(0.0, {"npu": 45.0})])
    with Sampler(sensors, 0.005, readings, events, frozen_after=5):
        kept = readings.wait_for(8)
    assert [len(reading.temperatures) for reading in kept[:8]] == [1] * 4 + [0] * 4
    assert kinds(events.kept) == [("sensor-frozen", "npu")]


def test_age_is_infinite_before_the_first_reading_and_grows_after_it(readings, events):
    clock, sensors = Clock(50.0), Faulty()
    sensors.free.clear()
    with Sampler(sensors, 60.0, readings, events, clock=clock) as sampler:
        assert sampler.age_s == float("inf")
        sensors.free.set()
        readings.wait_for(1)
        clock.now_s = 53.0
        assert sampler.age_s == 3.0


def test_receiver_that_raises_is_shown_and_the_next_reading_comes(events, monkeypatch):
    shown = Box()
    monkeypatch.setattr(threading, "excepthook", shown)
    received = Box()

    def fail(reading):
        received(reading)
        raise ValueError("no room")

    with Sampler(Faulty(), 0.01, fail, events):
        received.wait_for(3)
    assert str(shown.kept[0].exc_value) == "no room"


def test_it_can_be_closed_by_its_own_receiver(events):
    closed = threading.Event()
    sampler: list[Sampler] = []

    def close(_):
        sampler[0].close()
        closed.set()

    sensors = Faulty()
    sensors.free.clear()
    sampler.append(Sampler(sensors, 0.01, close, events))
    sensors.free.set()
    assert closed.wait(_WAIT_S)


@pytest.mark.parametrize(("interval_s", "timeout_s"), [(0.0, 1.0), (-1.0, 1.0), (float("nan"), 1.0), (1.0, 0.0)])
def test_interval_or_timeout_that_is_not_above_0_is_refused(readings, events, interval_s, timeout_s):
    with pytest.raises(OptionError, match="expected more than 0 seconds"):
        Sampler(Faulty(), interval_s, readings, events, timeout_s=timeout_s)


def test_sensors_of_this_machine_can_be_sampled(readings, events):
    with Sampler(SystemSensors(), 0.05, readings, events):
        kept = readings.wait_for(2)
    assert kept[1].time_s > kept[0].time_s


_FORKING = """
import os, time
from sanderling.run.sensors import Sampler, ScriptedSensors, Step
read = []
sampler = Sampler(ScriptedSensors([Step(0.0, {"npu": 45.0})]), 0.01, read.append, print)
while not read:
    time.sleep(0.01)
child = os.fork()
if child == 0:
    count, age_s = len(read), sampler.age_s
    time.sleep(0.1)
    grown = sampler.age_s > age_s
    sampler.close()
    os._exit(0 if len(read) == count and grown else 1)
count = len(read)
_, status = os.waitpid(child, 0)
while len(read) == count:
    time.sleep(0.01)
sampler.close()
print("child", os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_forked_child_does_not_read_and_can_close_while_the_parent_goes_on():
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORKING], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("child 0\n", "")
