from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from sanderling.run.sensors import Card, EnergyMeter
from tests.unit.run.sensors.trees import Clock, put, put_package

_NOBODY = 65534


@pytest.fixture
def clock():
    return Clock(100.0)


@pytest.fixture
def denied():
    """Makes files unreadable for this process, root or not, and gives a folder where that works."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    root = os.geteuid() == 0

    def deny(file):
        file.chmod(0)
        if root:
            os.seteuid(_NOBODY)

    yield folder, deny
    if root:
        os.seteuid(0)
    shutil.rmtree(folder)


def test_energy_is_the_sum_of_the_packages_since_the_start(tmp_path, clock):
    first, second = put_package(tmp_path, 0, 500_000), put_package(tmp_path, 1, 0)
    meter = EnergyMeter(tmp_path, clock=clock)
    clock.now_s += 2.0
    first.write_text("900000\n")
    second.write_text("200000\n")
    found = meter.read()
    assert (found.energy_j, found.power_w) == (pytest.approx(0.6), pytest.approx(0.3))
    assert meter.sources == ("package-0", "package-1")


def test_power_is_the_mean_since_the_last_reading(tmp_path, clock):
    file = put_package(tmp_path, 0, 0)
    meter = EnergyMeter(tmp_path, clock=clock)
    for joules in (0.1, 0.4):
        clock.now_s += 1.0
        file.write_text(f"{int(joules * 1e6)}\n")
        found = meter.read()
    assert (found.energy_j, found.power_w) == (pytest.approx(0.4), pytest.approx(0.3))


def test_counter_that_begins_at_0_again_loses_no_energy(tmp_path, clock):
    file = put_package(tmp_path, 0, 900_000, range_uj=1_000_000)
    meter = EnergyMeter(tmp_path, clock=clock)
    for text in ("50000", "990000", "20000"):
        clock.now_s += 1.0
        file.write_text(text)
        found = meter.read()
    assert found.energy_j == pytest.approx(0.15 + 0.94 + 0.03)


def test_counter_without_a_range_that_goes_back_cannot_be_measured_any_more(tmp_path, clock):
    file = put_package(tmp_path, 0, 900_000)
    (file.parent / "max_energy_range_uj").unlink()
    meter = EnergyMeter(tmp_path, clock=clock)
    file.write_text("5")
    clock.now_s += 1.0
    found = meter.read()
    assert (found.energy_j, found.power_w) == (None, None)
    assert found.reason == f"not measurable here ({file} went back from 900000 to 5 microjoules)"
    file.write_text("1000000")
    assert meter.read().reason == found.reason


def test_parts_of_a_package_and_the_whole_platform_are_not_counted_beside_it(tmp_path, clock):
    put_package(tmp_path, 0, 0)
    others = [put_package(tmp_path, 1, 0, name="psys"), put_package(tmp_path, 2, 0, name="package-0", range_uj=1)]
    shutil.move(others[1].parent, tmp_path / "powercap/intel-rapl-mmio:0")
    put(tmp_path / "powercap/intel-rapl:0:0", name="core", energy_uj="0")
    put(tmp_path / "powercap/intel-rapl:0:1", name="dram", energy_uj="0")
    assert EnergyMeter(tmp_path, clock=clock).sources == ("package-0",)


def test_reading_too_soon_after_the_last_gives_no_power_and_loses_no_energy(tmp_path, clock):
    file = put_package(tmp_path, 0, 0)
    meter = EnergyMeter(tmp_path, clock=clock)
    clock.now_s += 0.001
    file.write_text("100000")
    soon = meter.read()
    assert (soon.energy_j, soon.power_w, soon.reason) == (0.0, None, "")
    clock.now_s += 0.999
    assert meter.read().energy_j == pytest.approx(0.1)


def test_counter_that_may_not_be_read_is_a_reason_with_what_to_do(denied, clock):
    folder, deny = denied
    file = put_package(folder, 0, 0)
    deny(file)
    meter = EnergyMeter(folder, clock=clock)
    reason = f"not measurable here ({file}: permission denied; its administrator can make it readable)"
    assert (meter.reason, meter.sources) == (reason, ())
    assert meter.read().reason == reason
    assert meter.read().energy_j is None


def test_one_package_of_two_that_may_not_be_read_is_no_half_measurement(denied, clock):
    folder, deny = denied
    put_package(folder, 0, 0)
    deny(put_package(folder, 1, 0))
    assert "intel-rapl:1/energy_uj: permission denied" in EnergyMeter(folder, clock=clock).reason


def test_package_that_cannot_be_read_for_a_while_makes_only_those_readings_none(tmp_path, clock):
    file = put_package(tmp_path, 0, 0)
    meter = EnergyMeter(tmp_path, clock=clock)
    file.unlink()
    clock.now_s += 1.0
    assert meter.read().reason == f"not measurable here ({file}: no such file or directory)"
    file.write_text("300000")
    clock.now_s += 1.0
    assert meter.read().energy_j == pytest.approx(0.3)


@pytest.mark.parametrize("text", ["", "many"])
def test_counter_that_says_no_number_is_a_reason(tmp_path, clock, text):
    file = put_package(tmp_path, 0, 0)
    file.write_text(text)
    assert EnergyMeter(tmp_path, clock=clock).reason == f"not measurable here ({file} holds no whole number)"


def test_machine_without_any_sensor_says_where_it_looked(tmp_path, clock):
    found = EnergyMeter(tmp_path, clock=clock).read()
    assert (found.energy_j, found.power_w) == (None, None)
    assert found.reason == (
        f"not measurable here (no package of RAPL in {tmp_path}/powercap, "
        f"no power or energy that is readable in {tmp_path}/hwmon)"
    )


def test_power_of_a_chip_is_added_up_to_energy_by_the_trapezoid_rule(tmp_path, clock):
    put(tmp_path, hwmon__hwmon0__name="ina226", hwmon__hwmon0__power1_input="2000000")
    meter = EnergyMeter(tmp_path, clock=clock)
    clock.now_s += 10.0
    put(tmp_path, hwmon__hwmon0__power1_input="4000000")
    found = meter.read()
    assert (found.energy_j, found.power_w) == (pytest.approx(30.0), pytest.approx(4.0))
    assert meter.sources == ("ina226 power1",)


def test_first_sensor_of_a_chip_counts_and_its_mean_before_its_present_value(tmp_path, clock):
    put(
        tmp_path,
        hwmon__hwmon0__name="amdgpu",
        hwmon__hwmon0__power1_input="9000000",
        hwmon__hwmon0__power1_average="5000000",
        hwmon__hwmon0__power1_label="PPT",
        hwmon__hwmon0__power2_average="1000000",
    )
    meter = EnergyMeter(tmp_path, clock=clock)
    assert (meter.read().power_w, meter.sources) == (5.0, ("amdgpu PPT",))


def test_first_sensor_counts_even_where_only_a_later_one_tells_its_mean(tmp_path, clock):
    put(
        tmp_path,
        hwmon__hwmon0__name="pmbus",
        hwmon__hwmon0__power1_input="9000000",
        hwmon__hwmon0__power10_average="3000000",
        hwmon__hwmon0__power2_average="5000000",
    )
    assert EnergyMeter(tmp_path, clock=clock).read().power_w == 9.0


def test_energy_counter_of_a_chip_counts_before_its_power(tmp_path, clock):
    put(
        tmp_path,
        hwmon__hwmon0__name="xe",
        hwmon__hwmon0__energy1_input="1000000",
        hwmon__hwmon0__energy1_label="card",
        hwmon__hwmon0__energy2_input="500000",
        hwmon__hwmon0__power1_input="7000000",
    )
    meter = EnergyMeter(tmp_path, clock=clock)
    clock.now_s += 1.0
    put(tmp_path, hwmon__hwmon0__energy1_input="4000000", hwmon__hwmon0__energy2_input="3000000")
    assert (meter.read().energy_j, meter.sources) == (pytest.approx(3.0), ("xe card",))


def test_sockets_of_a_chip_that_lists_its_cores_first_are_counted_without_the_cores(tmp_path, clock):
    labels = {1: "Ecore000", 2: "Ecore001", 3: "Esocket0", 4: "Esocket1"}
    for number, label in labels.items():
        put(tmp_path / "hwmon/hwmon0", **{f"energy{number}_input": "0", f"energy{number}_label": label})
    put(tmp_path, hwmon__hwmon0__name="amd_energy")
    assert EnergyMeter(tmp_path, clock=clock).sources == ("amd_energy Esocket0", "amd_energy Esocket1")


def test_meter_of_the_whole_machine_counts_alone(tmp_path, clock):
    put(tmp_path, hwmon__hwmon0__name="amdgpu", hwmon__hwmon0__power1_average="5000000")
    put(tmp_path, hwmon__hwmon1__name="power_meter", hwmon__hwmon1__power1_average="60000000")
    meter = EnergyMeter(tmp_path, clock=clock)
    assert (meter.read().power_w, meter.sources) == (60.0, ("power_meter power1",))


def test_chips_are_not_counted_beside_packages_that_may_contain_them(tmp_path, clock):
    put_package(tmp_path, 0, 0)
    put(tmp_path, hwmon__hwmon0__name="amdgpu", hwmon__hwmon0__power1_average="5000000")
    assert EnergyMeter(tmp_path, clock=clock).sources == ("package-0",)


def test_chips_count_where_packages_may_not_be_read(tmp_path, clock):
    put_package(tmp_path, 0, 0).unlink()
    put(tmp_path, hwmon__hwmon0__name="ina226", hwmon__hwmon0__power1_input="2000000")
    assert EnergyMeter(tmp_path, clock=clock).sources == ("ina226 power1",)


def test_cards_are_counted_beside_packages(tmp_path, clock):
    file = put_package(tmp_path, 0, 0)
    meter = EnergyMeter(tmp_path, cards=[Card("nvidia 0", (), 50.0), Card("nvidia 1", ())], clock=clock)
    clock.now_s += 2.0
    file.write_text("200000")
    found = meter.read([Card("nvidia 0", (), 70.0)])
    assert (found.energy_j, found.power_w) == (pytest.approx(120.2), pytest.approx(70.1))
    assert meter.sources == ("package-0", "nvidia 0")


def test_card_that_is_silent_makes_that_reading_none_and_not_too_small(tmp_path, clock):
    meter = EnergyMeter(tmp_path, cards=[Card("nvidia 0", (), 50.0)], clock=clock)
    clock.now_s += 1.0
    assert meter.read([]).reason == "not measurable here (nvidia 0 does not tell its power any more)"
    clock.now_s += 1.0
    assert meter.read([Card("nvidia 0", (), 50.0)]).energy_j == pytest.approx(100.0)


def test_meter_of_this_machine_measures_or_says_why_not():
    meter = EnergyMeter()
    found = meter.read()
    assert (found.energy_j is None) == bool(found.reason)
    assert bool(meter.sources) != bool(meter.reason)
