from __future__ import annotations

import math

import pytest

from sanderling.core.errors import DataError
from sanderling.run.sensors import ScriptedSensors, Step, Temperature, device_temperature
from tests.unit.run.sensors.trees import Clock

_HEADER = "time_s,npu,gpu,cpu,memory_used_bytes\n"


@pytest.fixture
def clock():
    return Clock(1000.0)


def write(folder, text):
    path = folder / "heat.csv"
    path.write_text(text)
    return path


def test_each_step_holds_until_the_next_and_the_last_for_ever(clock):
    steps = [Step(0.0, {"npu": 40.0}), Step(10.0, {"npu": 76.0}), Step(20.0, {"npu": 60.0})]
    sensors = ScriptedSensors(steps, clock=clock)
    said = []
    for now_s in (0.0, 9.9, 10.0, 19.0, 20.0, 1e6):
        clock.now_s = 1000.0 + now_s
        said.append(device_temperature(sensors.read().temperatures, "npu"))
    assert said == [40.0, 40.0, 76.0, 76.0, 60.0, 60.0]


def test_first_step_holds_before_its_time(clock):
    assert ScriptedSensors([Step(5.0, {"npu": 40.0})], clock=clock).read().temperatures == (Temperature("npu", 40.0),)


def test_reading_has_the_time_of_the_clock(clock):
    assert ScriptedSensors([Step(0.0)], clock=clock).read().time_s == 1000.0


def test_file_is_played_with_its_memory(tmp_path, clock):
    path = write(tmp_path, _HEADER + "0,40,41,42.5,1000000\n\n5,76,50,43,2e6\n")
    sensors = ScriptedSensors.from_csv(path, clock=clock)
    clock.now_s += 5.0
    found = sensors.read()
    assert found.temperatures == (Temperature("npu", 76.0), Temperature("gpu", 50.0), Temperature("cpu", 43.0))
    assert (found.memory_used_bytes, found.memory_limit_bytes, found.power_w) == (2_000_000, None, None)


def test_file_that_a_spreadsheet_marked_as_unicode_is_played(tmp_path, clock):
    sensors = ScriptedSensors.from_csv(write(tmp_path, "\ufefftime_s,npu\n0,40\n"), clock=clock)
    assert sensors.read().temperatures == (Temperature("npu", 40.0),)


def test_sensor_without_a_value_is_lost_in_that_step(tmp_path, clock):
    sensors = ScriptedSensors.from_csv(write(tmp_path, _HEADER + "0,,41,42,\n"), clock=clock)
    assert [entry.sensor for entry in sensors.read().temperatures] == ["gpu", "cpu"]
    assert sensors.read().memory_used_bytes is None


def test_power_of_the_script_is_added_up_to_energy(tmp_path, clock):
    sensors = ScriptedSensors.from_csv(write(tmp_path, "time_s,power_w\n0,2\n10,5\n"), clock=clock)
    clock.now_s += 12.0
    assert (sensors.read().power_w, sensors.read().energy_j) == (5.0, 30.0)


def test_energy_is_unknown_once_a_step_says_no_power(tmp_path, clock):
    sensors = ScriptedSensors.from_csv(write(tmp_path, "time_s,power_w\n0,2\n10,\n20,1\n"), clock=clock)
    said = []
    for now_s in (5.0, 15.0, 25.0):
        clock.now_s = 1000.0 + now_s
        said.append(sensors.read().energy_j)
    assert said == [10.0, None, None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begins with '': expected time_s"),
        ("0,40\n", "begins with '0,40': expected time_s and different names of sensors, such as time_s,npu,gpu"),
        ("time_s\n0\n", "begins with 'time_s': expected"),
        ("time_s,npu,npu\n0,1,1\n", "begins with 'time_s,npu,npu': expected"),
        ("time_s,,npu\n0,1,1\n", "begins with 'time_s,,npu': expected"),
        (_HEADER, "has no step: at least one is needed"),
        (_HEADER + "0,1,1,1\n", "line 2 has 4 fields: the header has 5"),
        (_HEADER + ",1,1,1,1\n", "line 2 has no time_s"),
        (_HEADER + "0,1,1,1,1\n1,nan,1,1,1\n", "line 3 says 'nan' for 'npu': expected a number"),
        (_HEADER + "0,1,inf,1,1\n", "line 2 says 'inf' for 'gpu'"),
        (_HEADER + "0,1,hot,1,1\n", "line 2 says 'hot' for 'gpu'"),
        (_HEADER + "nan,1,1,1,1\n", "line 2 says 'nan' for 'time_s'"),
        (_HEADER + "2,1,1,1,1\n1,1,1,1,1\n", "step 2 of a script of sensors has time_s 1 after 2"),
        (_HEADER + "1,1,1,1,1\n1,1,1,1,1\n", "has time_s 1 after 1: times are seconds from 0 on and rise"),
        (_HEADER + "-1,1,1,1,1\n", "has time_s -1 after 0"),
        (_HEADER + "0,45000,1,1,1\n", "says 45000 °C for 'npu': expected -55 to 200"),
        (_HEADER + "0,1,1,1,-1\n", "says -1 for 'memory_used_bytes': expected 0 or more"),
    ],
)
def test_file_that_is_no_script_is_refused_with_its_place(tmp_path, text, message):
    with pytest.raises(DataError, match=r"heat\.csv") as raised:
        ScriptedSensors.from_csv(write(tmp_path, text))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_file_that_is_missing_or_no_text_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"none\.csv does not exist"):
        ScriptedSensors.from_csv(tmp_path / "none.csv")
    with pytest.raises(DataError, match="is no readable CSV"):
        ScriptedSensors.from_csv(tmp_path)
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="is no readable CSV"):
        ScriptedSensors.from_csv(tmp_path / "bytes.csv")


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([], "has no step"),
        ([Step(math.nan)], "has time_s nan"),
        ([Step(0.0, {"npu": math.nan})], "says nan °C for 'npu'"),
        ([Step(0.0, power_w=math.inf)], "says inf for 'power_w'"),
    ],
)
def test_steps_that_no_sensor_could_say_are_refused(steps, message):
    with pytest.raises(DataError, match=message):
        ScriptedSensors(steps)
