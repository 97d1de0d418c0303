import math

import numpy as np
import pytest

from sanderling.core.errors import DataError, UnavailableError
from sanderling.run.emulation.heat import Heat, HeatRule, after_power
from sanderling.run.policy.document import parse_policy
from sanderling.serve.live import Arrival
from sanderling.serve.trial import fit_heat, try_policy

NPU_FIRST = parse_policy('{"devicePriorities": ["npu", "gpu"]}')
GPU_FIRST = parse_policy('{"devicePriorities": ["gpu", "npu"]}')
LATENCIES = {"tiny:1": {"npu": {1: 2.0}, "gpu": {1: 30.0}}}
KINDS = {"npu": "npu", "gpu": "gpu"}


def arrivals(count=200, every_ms=20.0, deadline_ms=10.0):
    return [Arrival(100.0 + index * every_ms / 1e3, "tiny:1", 1, deadline_ms, 0) for index in range(count)]


def test_slower_device_first_serves_fewer_in_time():
    trial = try_policy(GPU_FIRST.model_copy(), NPU_FIRST, arrivals(), LATENCIES, KINDS, [])
    assert (trial.requests, trial.current.in_time) == (200, 1.0)
    assert trial.current.device_shares["npu"] == 1.0
    late = parse_policy('{"devicePriorities": ["gpu", "npu"], "scheduling": {"spill": "never"}}')
    assert try_policy(late, NPU_FIRST, arrivals(), LATENCIES, KINDS, []).proposed.in_time < 0.2


def test_same_policy_has_the_same_outcome():
    trial = try_policy(NPU_FIRST, NPU_FIRST, arrivals(), LATENCIES, KINDS, [])
    assert trial.current == trial.proposed


def test_requests_without_a_deadline_get_that_of_the_policy_in_use():
    current = parse_policy('{"devicePriorities": ["gpu"], "deadlines": {"default": 10, "dropLate": false}}')
    trial = try_policy(current, current, arrivals(deadline_ms=None), LATENCIES, KINDS, [])
    assert trial.current.in_time == 0.0


def test_device_that_never_ran_is_left_out_and_said_so():
    trial = try_policy(NPU_FIRST, NPU_FIRST, arrivals(), {"tiny:1": {"npu": {1: 2.0}}}, KINDS, [])
    assert "no request ran on gpu yet: it is left out here" in trial.notes


def test_nothing_to_play_is_an_error_with_what_to_do():
    with pytest.raises(DataError, match="send some first"):
        try_policy(NPU_FIRST, NPU_FIRST, [], LATENCIES, KINDS, [])


def test_policy_whose_devices_are_not_here_is_refused():
    wrong = parse_policy('{"devicePriorities": ["cpu"]}')
    with pytest.raises(UnavailableError, match="cpu"):
        try_policy(wrong, NPU_FIRST, arrivals(), LATENCIES, KINDS, [])


def test_heat_that_is_fitted_is_that_of_the_device():
    rule = HeatRule(tau_s=40.0, r_c_per_w=35.0, ambient_c=30.0)
    heat, seconds = Heat(30.0), []
    generator = np.random.default_rng(0)
    for second in range(200):
        use = 0.9 if second % 60 < 40 else 0.1
        heat = after_power(rule, heat, power_w=use, seconds=1.0)
        seconds.append((use, heat.temperature_c + generator.normal(0, 0.02)))
    fitted = fit_heat(seconds)
    assert fitted.tau_s == pytest.approx(40, rel=0.15)
    assert fitted.r_c_per_w == pytest.approx(35, rel=0.15)
    assert fitted.ambient_c == pytest.approx(30, abs=3)


@pytest.mark.parametrize(
    "seconds",
    [
        [],
        [(0.5, None)] * 100,
        [(0.5, 40.0)] * 100,
        [(0.5, 40.0 + 5 * math.sin(at * 1.7)) for at in range(100)],
    ],
    ids=["nothing", "no sensor", "no change", "changes without a cause"],
)
def test_heat_is_not_guessed_where_it_does_not_show(seconds):
    assert fit_heat(seconds) is None
