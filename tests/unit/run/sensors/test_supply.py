import pytest

from sanderling.run.sensors.reading import SystemSensors
from sanderling.run.sensors.supply import on_mains


@pytest.fixture
def supply(tmp_path):
    def add(name, **files):
        folder = tmp_path / "sys/class/power_supply" / name
        folder.mkdir(parents=True)
        for file, text in files.items():
            (folder / file).write_text(f"{text}\n")
        return tmp_path

    (tmp_path / "sys/class").mkdir(parents=True)
    return add


def test_machine_without_a_battery_is_on_mains(supply, tmp_path):
    assert on_mains(tmp_path) is True
    assert on_mains(supply("AC", type="Mains", online=1)) is True


@pytest.mark.parametrize(
    ("online", "status", "expected"),
    [(1, "Charging", True), (1, "Not charging", True), (0, "Discharging", False), (1, "Discharging", True)],
)
def test_plug_and_battery_tell(supply, online, status, expected):
    supply("BAT0", type="Battery", status=status)

    assert on_mains(supply("AC", type="Mains", online=online)) is expected


@pytest.mark.parametrize(
    ("status", "expected"), [("Full", True), ("Discharging", False), ("Unknown", None), ("", None)]
)
def test_battery_alone_tells_where_it_can(supply, status, expected):
    assert on_mains(supply("BAT0", type="Battery", status=status)) is expected


def test_battery_of_a_mouse_is_not_ours(supply):
    assert on_mains(supply("hid", type="Battery", status="Discharging", scope="Device")) is True


def test_where_nothing_can_be_read_nothing_is_known(tmp_path):
    assert on_mains(tmp_path / "none") is None


def test_reading_has_it(supply, tmp_path):
    supply("BAT0", type="Battery", status="Discharging")

    assert SystemSensors(tmp_path).read().charging is False
