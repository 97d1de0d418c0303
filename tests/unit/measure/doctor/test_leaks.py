from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from sanderling.core.errors import EngineError, OptionError
from sanderling.measure.doctor import cycles, leaks
from sanderling.measure.doctor.cycles import check_count, check_cycles, judge_cycles
from tests.models import chain, conv_classifier, save


def measured(growth_bytes: int, threads: int = 0, cycles: int = 20) -> dict[str, list[int]]:
    noise = np.random.default_rng(0).integers(-20_000, 20_000, cycles)
    resident = [50_000_000 + growth_bytes * place + int(noise[place]) for place in range(cycles)]
    return {"resident_bytes": resident, "threads": [8 + threads * place for place in range(cycles)]}


def test_memory_that_stays_is_a_fault_with_its_slope():
    found, told = judge_cycles(measured(200_000), "net")
    assert [(finding.kind, finding.severity) for finding in found] == [("memory-growth", "fault")]
    assert found[0].numbers["slope_kb"] == pytest.approx(200, abs=3)
    assert found[0].numbers["slope_low_kb"] < found[0].numbers["slope_kb"] < found[0].numbers["slope_high_kb"]
    assert "resident memory grows: +" in told


@pytest.mark.parametrize("growth", [0, 2_000])
def test_noise_and_a_few_bytes_are_no_leak(growth):
    found, told = judge_cycles(measured(growth), "net")
    assert found == []
    assert "does not grow" in told


def test_threads_that_stay_are_a_fault():
    found, _ = judge_cycles(measured(0, threads=2), "net")
    assert [finding.kind for finding in found] == ["thread-growth"]
    assert found[0].numbers["threads_per_cycle"] == 2


def test_cycles_of_a_real_engine_are_measured(tmp_path):
    found, told = check_cycles(save(chain(["Relu"]), tmp_path / "m.onnx"), "onnxruntime", 10)
    assert found == []
    assert "over the last 8 of 10 cycles" in told


class Keeping:
    """An engine whose executables are never let go."""

    def __init__(self, inner):
        self.inner = inner
        self.kept = []
        self.devices = inner.devices

    def load(self, model, options):
        self.kept.append(self.inner.load(model, options))
        kept = self.kept[-1]
        return SimpleNamespace(run=kept.run, inputs=kept.inputs, close=lambda: None)


def test_engine_that_keeps_what_it_loaded_is_found(tmp_path, monkeypatch):
    engine = Keeping(cycles.engine("onnxruntime"))
    monkeypatch.setattr(cycles, "engine", lambda _: engine)
    model = save(conv_classifier(features=4096), tmp_path / "m.onnx")
    request = json.dumps({"model": str(model), "engine": "onnxruntime", "cycles": 20})
    found, _ = judge_cycles(cycles._measure(request), "m.onnx")
    assert "memory-growth" in [finding.kind for finding in found]
    assert found[0].numbers["slope_low_kb"] > 100  # the weights alone are 440 kB


def test_too_few_cycles_and_a_model_that_does_not_load_are_refused(tmp_path):
    check_count(0)
    with pytest.raises(OptionError, match="at least 8 are needed"):
        check_count(3)
    with pytest.raises(EngineError, match=r"onnxruntime failed while m\.onnx was loaded again and again"):
        check_cycles(tmp_path / "m.onnx", "onnxruntime", 8)


def test_kept_thread_is_named():
    stop = threading.Event()
    with leaks() as watch:
        thread = threading.Thread(target=stop.wait, name="camera", daemon=True)
        thread.start()
    stop.set()
    thread.join()
    assert [(finding.kind, finding.subject) for finding in watch.findings] == [("thread-leak", "camera")]


def test_kept_arrays_are_named_by_the_line_that_made_them():
    kept = []
    with leaks() as watch:
        kept.append(np.ones(100_000, np.float32))
        np.ones(100_000, np.float32)
    (finding,) = watch.findings
    assert (finding.kind, finding.severity) == ("array-leak", "warning")
    assert finding.subject.startswith(__file__)
    assert finding.numbers["size_bytes"] == pytest.approx(400_000, rel=0.01)


def test_block_that_keeps_nothing_is_clean():
    with leaks() as watch:
        np.ones(100_000, np.float32).sum()
    assert watch.findings == ()
