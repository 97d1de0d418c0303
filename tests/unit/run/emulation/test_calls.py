from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from sanderling.core.errors import EngineError
from sanderling.run.emulation.engine import EmulatedDevices
from sanderling.run.emulation.table import LatencyTable
from sanderling.run.engines.base import EngineOptions
from tests.models import save, sum_and_difference

CALL_S = 0.3


@pytest.fixture
def emulated():
    thermal = {"tau_s": 0.1, "r_c_per_w": 5.0, "ambient_c": 25.0}
    device = {"kind": "npu", "power_w": 10.0, "idle_w": 0.0, "thermal": thermal}
    return EmulatedDevices(
        LatencyTable.model_validate(
            {
                "source": "a test",
                "devices": {"npu": device},
                "models": {"sums": {"npu": {"latency_ms": {1: CALL_S * 1e3}}}},
            }
        ),
        "sums",
    )


@pytest.fixture
def loaded(emulated, tmp_path):
    return emulated.load(save(sum_and_difference(), tmp_path / "sums.onnx"), EngineOptions(device="npu"))


def feeds():
    return {"a": np.ones((1, 3), np.float32), "b": np.ones((1, 3), np.float32)}


def test_call_takes_as_long_as_the_table_says_and_gives_the_graphs_numbers(loaded):
    begun_s = time.monotonic()
    outputs = loaded.run(feeds())
    assert time.monotonic() - begun_s >= CALL_S
    np.testing.assert_array_equal(outputs["sum"], np.full((1, 3), 2, np.float32))


def test_device_is_seen_to_heat_while_a_call_is_under_way(emulated, loaded):
    thread = threading.Thread(target=loaded.run, args=(feeds(),))
    thread.start()
    time.sleep(CALL_S / 2)
    warm_c = emulated.read().temperatures[0].temperature_c
    thread.join(10)
    assert warm_c > 26


def test_energy_does_not_depend_on_how_often_it_is_read(emulated, loaded):
    thread = threading.Thread(target=loaded.run, args=(feeds(),))
    thread.start()
    while thread.is_alive():
        emulated.read()
        time.sleep(0.005)
    assert emulated.read().energy_j >= 10.0 * CALL_S * 0.99


def test_device_that_vanished_fails_every_call_until_it_is_there_again(emulated, loaded):
    emulated.vanish("npu")
    with pytest.raises(EngineError, match="'npu' is gone"):
        loaded.run(feeds())
    emulated.vanish("npu", gone=False)
    assert loaded.run(feeds())["sum"].shape == (1, 3)
