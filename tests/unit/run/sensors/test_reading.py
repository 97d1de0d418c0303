from __future__ import annotations

import pytest

from sanderling.core.errors import OptionError
from sanderling.run.sensors import SystemSensors, Temperature, device_temperature
from tests.unit.run.sensors.trees import Clock, put, put_fake_program, put_package


def told(**celsius: float) -> list[Temperature]:
    return [Temperature(name.replace("__", " ").replace("_", "-"), value) for name, value in celsius.items()]


@pytest.mark.parametrize(
    ("sensor", "kind"),
    [
        ("coretemp Package id 0", "cpu"),
        ("k10temp Tctl", "cpu"),
        ("x86_pkg_temp", "cpu"),
        ("cpu-thermal", "cpu"),
        ("cpu_thermal temp1", "cpu"),
        ("CPU-therm", "cpu"),
        ("bigcore0-thermal", "cpu"),
        ("gpu-thermal", "gpu"),
        ("GPU-therm", "gpu"),
        ("nvidia 0", "gpu"),
        ("amdgpu edge", "gpu"),
        ("xe pkg", "gpu"),
        ("npu-thermal", "npu"),
        ("npu 3 chip 1", "npu"),
        ("apex_0", "npu"),
    ],
)
def test_sensor_with_a_well_known_name_counts_for_its_kind_alone(sensor, kind):
    entry = [Temperature(sensor, 50.0)]
    found = {each: device_temperature(entry, each) for each in ("cpu", "gpu", "npu")}
    assert found == {"cpu": None, "gpu": None, "npu": None, kind: 50.0}


def test_hottest_of_several_sensors_counts():
    assert device_temperature(told(bigcore0_thermal=61.0, littlecore_thermal=55.0, gpu_thermal=70.0), "cpu") == 61.0


def test_board_with_one_zone_for_the_whole_chip_has_it_for_all_kinds():
    assert [device_temperature(told(soc_thermal=48.0), kind) for kind in ("cpu", "gpu", "npu")] == [48.0] * 3


def test_zone_of_the_whole_chip_does_not_count_where_the_device_has_its_own():
    assert device_temperature(told(soc_thermal=70.0, npu_thermal=48.0), "npu") == 48.0


@pytest.mark.parametrize("sensor", ["nvme Composite", "acpitz temp1", "iwlwifi_1"])
def test_sensor_of_something_else_does_not_count(sensor):
    assert device_temperature([Temperature(sensor, 50.0)], "cpu") is None


def test_sensor_that_is_asked_for_counts_before_those_that_only_contain_its_name():
    temperatures = [Temperature("board", 40.0), Temperature("board edge", 60.0), Temperature("gpu-thermal", 70.0)]
    assert device_temperature(temperatures, "gpu", "Board") == 40.0
    assert device_temperature(temperatures, "gpu", "edge") == 60.0


def test_sensor_that_is_asked_for_and_not_here_is_none_and_not_another():
    assert device_temperature(told(gpu_thermal=70.0), "gpu", "hotspot") is None


def test_kind_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(OptionError, match="there is no kind of device 'tpu': expected cpu, gpu, npu"):
        device_temperature([], "tpu")


def test_reading_joins_what_the_kernel_and_the_programs_tell(tmp_path, programs):
    clock = Clock(7.0)
    file = put_package(tmp_path / "sys/class", 0, 0)
    put(tmp_path, sys__class__thermal__thermal_zone0__type="cpu", sys__class__thermal__thermal_zone0__temp="40000")
    put_fake_program(programs, "nvidia-smi", "echo '0, 45, 68.00, 1024, 81559'")
    sensors = SystemSensors(tmp_path, clock=clock)
    assert (sensors.meter, sensors.read().energy_j) == (None, 0.0)
    file.write_text("2000000")
    clock.now_s = 9.0
    found = sensors.read()
    assert found.temperatures == (Temperature("cpu", 40.0), Temperature("nvidia 0", 45.0))
    assert (found.time_s, found.energy_j, found.power_w) == (9.0, pytest.approx(138.0), pytest.approx(69.0))


def test_program_that_fails_is_told_of_and_the_other_sensors_are_read(tmp_path, programs):
    put(tmp_path, sys__class__thermal__thermal_zone0__type="cpu", sys__class__thermal__thermal_zone0__temp="40000")
    put_fake_program(programs, "nvidia-smi", "exit 9")
    events = []
    sensors = SystemSensors(tmp_path, on_event=events.append)
    assert sensors.read().temperatures == (Temperature("cpu", 40.0),)
    assert [(event.kind, event.subject) for event in events] == [("sensor-lost", "nvidia-smi")]


def test_sensors_of_this_machine_can_be_read_whatever_it_has():
    sensors = SystemSensors()
    found = sensors.read()
    assert found.memory_used_bytes is not None
    assert 0 < found.resident_bytes < found.memory_limit_bytes
    assert (found.energy_j is None) == bool(sensors.meter.reason)
