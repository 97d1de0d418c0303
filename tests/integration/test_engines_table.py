"""The page of the choice's benchmark says what its numbers say."""

import pytest

from benchmarks.engines.table import render

FP32, PLAN, OTHER = "onnxruntime/cpu/fp32/t2/b1", "openvino/cpu/int8/t2/b1", "onnxruntime/cpu/int8/t2/b1"


def model(name, *, plan_ms, other_ms, fp32_ms=12.0):
    times = {FP32: fp32_ms, PLAN: plan_ms, OTHER: other_ms}
    return {
        "name": name,
        "winner": PLAN,
        "tune_seconds": 20.0,
        "race_calls": 900,
        "exhaustive_seconds": 110.0,
        "exhaustive_calls": 2400,
        "candidates": {candidate: {"p50": p50, "repeats": 800} for candidate, p50 in times.items()},
        "excluded": {"ncnn/cpu/int8": "the device does not take int8"},
        "cold_start_ms": {"openvino/int8": {"uncached": 200.0, "cached": 50.0}},
    }


@pytest.fixture
def page():
    return render(
        {
            "command": "python -m benchmarks.engines.run",
            "machine": {
                "processor": "A",
                "cores": 2,
                "cpu_features": [],
                "memory_bytes": 8 << 30,
                "system": "Linux",
                "python": "3.11",
                "versions": {},
                "architecture": "x86_64",
            },
            "exhaustive": {"calls": 200, "calls_a_pass": 8},
            "tune_seconds_asked": 30.0,
            "models": [model("quick", plan_ms=2.0, other_ms=4.0), model("close", plan_ms=4.2, other_ms=4.0)],
            "session_overhead_us": {"engine": 1.0, "session": 4.0, "added": 3.0},
            "adapter_overhead_us": {"openvino": {"raw": 20.0, "adapter": 22.5, "added": 2.5}},
        }
    )


def test_aims_are_counted_over_all_models(page):
    assert "Geometric mean of plan against FP32: 4.14×; five times or more: quick." in page
    assert "within 3 % of the best on 1 of 2 models, 5.0 % behind at worst" in page
    assert "`tune` took 40 s for all, the exhaustive run 220 s: 1/5.5." in page


def test_cold_start_overheads_and_excluded_candidates_are_shown(page):
    assert "| `openvino/int8` | 200 → 50 ms (0.25×) | 200 → 50 ms (0.25×) |" in page
    assert "| `openvino` | 20.0 | 22.5 | 2.5 |" in page
    assert "| session | 1.0 | 4.0 | 3.0 |" in page
    assert "the device does not take int8" in page
