"""The section of the policies' benchmark says what its numbers say."""

from benchmarks.runtime.policies import BASELINES, LOADS, OURS, render, trace_text
from sanderling.twin.traces import specified


def numbers(slo, goodput):
    return {
        "slo_attainment": slo,
        "goodput_per_s": goodput,
        "slo_minute_1": 1.0,
        "slo_minute_30": slo,
        "latency_ms": {"p50": 10.0, "p99": 50.0},
        "energy_per_inference_j": 0.05,
        "seconds_above_75_c": 3.0,
        "highest_c": 76.0,
    }


def test_margins_are_means_with_the_worst_seed():
    others = {name.removeprefix("baseline:"): [numbers(0.5, 50.0), numbers(0.9, 0.1)] for name in BASELINES}
    policies = {OURS[0]: [numbers(0.9, 100.0), numbers(0.8, 100.0)], **others}
    page = render(
        {
            "loads": {"busy": {"trace": "t", "policies": policies}},
            "speed": {"per_s": 60_000.0, "per_processor_s": 61_000.0, "requests": 9},
        }
    )
    assert "`heft` +15.000 points (worst -10.000), goodput more than ×100" in page
    assert "| `default` | 85.00 % | 100.00 % | 85.00 % | 100.0 /s | 10.0 ms | 50 ms | 0.050 | 3 s | 76.0 °C |" in page
    assert "60,000 requests a second" in page


def test_every_load_has_four_models():
    for load in LOADS.values():
        assert len(specified(trace_text(load), minutes=0.1, seed=1).models) == 4
