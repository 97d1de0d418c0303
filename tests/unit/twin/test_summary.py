import numpy as np
import pytest

from sanderling.run.policy import NEVER
from sanderling.twin.simulate import Contender, DeviceSwitch, Outcome, Played
from sanderling.twin.summary import summarize
from sanderling.twin.traces import Trace


def played():
    """Five requests in 61.5 seconds: in time, late, dropped, rejected, without a deadline."""
    trace = Trace(
        ("a", "b"),
        np.array([0, 0, 1, 1, 0]),
        np.array([0.0, 10.0, 20.0, 30.0, 61_500.0]),
        np.array([50.0, 5.0, 5.0, 5.0, NEVER]),
        np.zeros(5, np.int64),
        np.ones(5, np.int64),
    )
    return Played(
        contender=Contender("mine", None, {}),
        trace=trace,
        devices=("npu", "cpu"),
        outcome=np.array([Outcome.DONE, Outcome.DONE, Outcome.DROPPED, Outcome.REFUSED_FULL, Outcome.DONE]),
        end_ms=np.array([50.0, 16.0, 25.0, 30.0, 61_600.0]),
        device=np.array([0, 0, -1, -1, 1]),
        rows=np.array([1, 1, 0, 0, 4]),
        tick_ms=np.array([1_000.0, 2_000.0, 2_500.0]),
        temperature_c=np.array([[60.0, 30.0], [76.0, 31.0], [74.0, 32.0]]),
        busy_share=np.array([[1.0, 0.0], [0.5, 0.0], [0.0, 1.0]]),
        power_w=np.array([[4.0, 1.0], [2.0, 1.0], [1.0, 3.0]]),
        switches=(DeviceSwitch(1_500.0, "a", "npu", "cpu", "hot"),),
    )


def test_every_miss_is_counted_once():
    whole = summarize(played()).whole
    assert (whole.requests, whole.in_time, whole.late, whole.dropped, whole.rejected) == (5, 2, 1, 1, 1)
    assert whole.misses == 3
    assert whole.slo_attainment == 0.4
    assert whole.goodput_per_s == pytest.approx(2 / 62)
    assert whole.latency_ms["p50"] == 50


def test_minutes_and_models_count_their_own_requests():
    found = summarize(played())
    assert (found.minutes[1].requests, found.minutes[1].in_time) == (4, 1)
    assert 30 not in found.minutes
    assert found.models["b"].latency_ms is None
    assert found.models["a"].requests == 3


def test_energy_utilization_and_heat_weigh_short_ticks_less():
    found = summarize(played(), {"npu": frozenset({70.0, 75.0})})
    npu = found.devices["npu"]
    assert npu.energy_j == pytest.approx(4 + 2 + 0.5)
    assert found.energy_j == pytest.approx(6.5 + 1 + 1 + 1.5)
    assert found.energy_per_inference_j == pytest.approx(found.energy_j / 3)
    assert npu.utilization == pytest.approx(1.5 / 2.5)
    assert npu.seconds_above_c == {70: 1.5, 75: 1.0}
    assert npu.highest_c == 76
    assert (npu.requests, found.devices["cpu"].requests) == (2, 1)


def test_switches_come_with_time_and_reason():
    switch = summarize(played()).switches[0]
    assert (switch.at_s, switch.model, switch.source, switch.target, switch.reason) == (1.5, "a", "npu", "cpu", "hot")
