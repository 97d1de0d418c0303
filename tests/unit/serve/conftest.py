"""A tiny package, a server's data plane over it, and the same package on devices that are emulated."""

import json

import numpy as np
import pytest

from sanderling.api import build
from sanderling.run.emulation.engine import EmulatedDevices
from sanderling.run.emulation.table import LatencyTable
from sanderling.run.policy.document import parse_policy
from sanderling.run.pool import Pool
from sanderling.run.session import load
from sanderling.serve.data_plane import DataPlane
from tests.models import conv_classifier, random_arrays, save

POLICY = {
    "devicePriorities": ["npu", "gpu"],
    "precisionLadder": ["int8"],
    "fallbackThresholds": {"npu": {"temp": 75}, "gpu": {"temp": 80}},
    "sensorInterval": 50,
}


@pytest.fixture(scope="session")
def tiny_package(tmp_path_factory):
    """A classifier in FP32 and INT8."""
    folder = tmp_path_factory.mktemp("served")
    calibration = folder / "calibration.npz"
    np.savez(calibration, **random_arrays({"image": (24, 3, 8, 8)}, seed=1))
    source = save(conv_classifier(), folder / "tiny.onnx")
    build(source, folder / "tiny.sdl", calibration=calibration, precision="fp32,int8", repeats=3)
    return folder / "tiny.sdl"


@pytest.fixture
def plane(tiny_package):
    """A pool with the model ``tiny``, version 1."""
    with Pool() as pool:
        plane = DataPlane(pool)
        plane.add(pool.load(tiny_package, name="tiny"), name="tiny")
        yield plane


@pytest.fixture
def emulated():
    """An NPU and a GPU that answer at once and stay cold."""
    table = LatencyTable(source="test", models={"tiny": {name: {"latency_ms": {1: 0.1}} for name in ("npu", "gpu")}})
    return EmulatedDevices(table, "tiny")


@pytest.fixture
def emulated_plane(tiny_package, emulated):
    """The model ``tiny`` on emulated devices, which the policy leaves when they are hot."""
    with Pool() as pool, load(tiny_package, policy=parse_policy(json.dumps(POLICY)), emulate=emulated) as session:
        plane = DataPlane(pool)
        plane.add(session, name="tiny")
        yield plane


@pytest.fixture
def ask():
    """Send requests to a model and wait for their results."""

    def send(plane, count=1, rows=1, **options):
        images = random_arrays({"image": (rows, 3, 8, 8)}, seed=rows)
        return [plane.submit(plane.model("tiny"), images, **options).result(10) for _ in range(count)]

    return send
