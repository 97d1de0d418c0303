from __future__ import annotations

import pytest

from sanderling.run.sensors import Temperature, read_temperatures
from tests.unit.run.sensors.trees import put


def test_chips_are_read_with_their_labels_in_the_order_of_their_numbers(tmp_path):
    put(
        tmp_path,
        hwmon__hwmon10__name="nvme",
        hwmon__hwmon10__temp1_input="38850",
        hwmon__hwmon2__name="coretemp",
        hwmon__hwmon2__temp1_input="51000",
        hwmon__hwmon2__temp1_label="Package id 0",
        hwmon__hwmon2__temp10_input="50000",
        hwmon__hwmon2__temp2_input="49000",
        hwmon__hwmon2__fan1_input="1200",
    )
    assert read_temperatures(tmp_path) == (
        Temperature("coretemp Package id 0", 51.0),
        Temperature("coretemp temp2", 49.0),
        Temperature("coretemp temp10", 50.0),
        Temperature("nvme temp1", 38.85),
    )


def test_zones_are_read_and_one_that_is_a_chip_too_is_told_once(tmp_path):
    put(
        tmp_path,
        hwmon__hwmon0__name="acpitz",
        hwmon__hwmon0__temp1_input="27800",
        thermal__thermal_zone0__type="acpitz",
        thermal__thermal_zone0__temp="27800",
        thermal__thermal_zone1__type="npu-thermal",
        thermal__thermal_zone1__temp="-1500",
        thermal__cooling_device0__type="Processor",
    )
    assert read_temperatures(tmp_path) == (Temperature("acpitz temp1", 27.8), Temperature("npu-thermal", -1.5))


@pytest.mark.parametrize("text", ["", "no number", "-274000", "2147483647", "\udcff"])
def test_sensor_that_says_nothing_believable_is_left_out(tmp_path, text):
    put(tmp_path, thermal__thermal_zone0__type="soc", thermal__thermal_zone1__type="cpu")
    (tmp_path / "thermal/thermal_zone0/temp").write_bytes(text.encode(errors="surrogateescape"))
    put(tmp_path, thermal__thermal_zone1__temp="40000")
    assert read_temperatures(tmp_path) == (Temperature("cpu", 40.0),)


def test_sensor_that_cannot_be_read_is_left_out(tmp_path):
    put(tmp_path, thermal__thermal_zone0__type="soc")
    (tmp_path / "thermal/thermal_zone0/temp").mkdir()
    assert read_temperatures(tmp_path) == ()


def test_machine_without_sensors_has_none(tmp_path):
    assert read_temperatures(tmp_path / "nothing") == ()
