from pathlib import Path

import pytest

from sanderling.api import build
from sanderling.run.emulation.engine import EmulatedDevices
from sanderling.run.emulation.table import LatencyTable
from sanderling.run.policy.document import parse_policy
from sanderling.run.session import load
from tests.models import conv_classifier, random_arrays, save


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("emulated")
    build(save(conv_classifier(), folder / "tiny.onnx"), folder / "tiny.sdl", precision="fp32", repeats=3)
    return folder / "tiny.sdl"


def test_each_way_of_running_heats_its_own_device(package):
    table = LatencyTable(source="test", models={"tiny": {name: {"latency_ms": {1: 5}} for name in ("npu", "gpu")}})
    devices = EmulatedDevices(table, "tiny", seconds_a_second=1000.0)
    policy = parse_policy('{"devicePriorities": ["npu", "gpu"]}')
    with load(package, policy=policy, emulate=devices) as session:
        session.switch(device="gpu")
        assert session.placement.device == "gpu"
        for _ in range(10):
            session.run(random_arrays({"image": (1, 3, 8, 8)}, seed=1))
        npu, gpu = devices.read().temperatures
    assert gpu.temperature_c > npu.temperature_c
