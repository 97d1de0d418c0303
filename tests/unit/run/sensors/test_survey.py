from __future__ import annotations

from sanderling.run.sensors import Temperature, survey_sensors
from tests.unit.run.sensors.trees import put, put_fake_program, put_package


def test_survey_lists_temperatures_power_and_the_programs_that_did_not_answer(tmp_path, programs):
    put_fake_program(programs, "nvidia-smi", "echo '0, 45, 68.25, 1024, 81559'")
    put_fake_program(programs, "npu-smi", "exit 1")
    put_package(tmp_path / "sys/class", 0, 0)
    put(tmp_path, sys__class__thermal__thermal_zone0__type="cpu", sys__class__thermal__thermal_zone0__temp="40000")
    found = survey_sensors(tmp_path)
    assert found.temperatures == (Temperature("cpu", 40.0), Temperature("nvidia 0", 45.0))
    assert (found.power.sources, found.power.reason) == (("package-0", "nvidia 0"), "")
    assert len(found.lost) == 1
    assert found.lost[0].startswith("sensor-lost: npu-smi (ended with exit code 1")


def test_survey_of_this_machine_has_memory_and_says_whether_power_can_be_read():
    found = survey_sensors()
    assert found.memory.used_bytes < found.memory.limit_bytes
    assert bool(found.power.sources) != bool(found.power.reason)
