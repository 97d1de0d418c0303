from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

from sanderling.core.errors import EngineError, ModelError, OptionError
from sanderling.run.engines.base import DeviceKind, EngineOptions
from sanderling.run.isolated import Worker
from tests.models import conv_classifier, random_arrays, run_directly, save

FEEDS = random_arrays({"image": (2, 3, 8, 8)})


@pytest.fixture
def model(tmp_path):
    return save(conv_classifier(), tmp_path / "model.onnx")


@pytest.fixture
def worker():
    with Worker() as started:
        yield started


def test_outputs_are_those_of_the_engine_in_this_process(worker, model):
    loaded = worker.load("onnxruntime", model, EngineOptions())
    np.testing.assert_allclose(loaded.run(FEEDS)["scores"], run_directly(model, FEEDS)["scores"], rtol=1e-4, atol=1e-6)
    assert loaded.placement.kinds == {DeviceKind.CPU: 1.0}
    assert [str(spec) for spec in loaded.inputs] == ["image: float32[N, 3, 8, 8]"]


def test_errors_keep_their_class_and_message(worker, tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError, match="does not take"):
        worker.load("onnxruntime", tmp_path / "bad.onnx", EngineOptions())
    with pytest.raises(OptionError, match=r"unknown engine 'abacus': available are .*onnxruntime"):
        worker.load("abacus", tmp_path / "bad.onnx", EngineOptions())


def test_crash_is_told_and_the_next_load_gets_a_new_process(worker, model):
    loaded = worker.load("onnxruntime", model, EngineOptions())
    first = worker.pid
    os.kill(first, signal.SIGSEGV)
    with pytest.raises(EngineError, match=r"crashed with SIGSEGV|is gone"):
        loaded.run(FEEDS)
    assert not loaded.alive
    again = worker.load("onnxruntime", model, EngineOptions())
    assert worker.pid != first
    assert again.run(FEEDS)["scores"].shape == (2, 4)
    with pytest.raises(EngineError, match="is gone"):
        loaded.run(FEEDS)
    loaded.close()


def test_hang_ends_at_the_timeout(worker, model):
    loaded = worker.load("onnxruntime", model, EngineOptions())
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(EngineError, match=r"gave no answer for 0\.2 s"):
        loaded.run(FEEDS, timeout_s=0.2)
    assert worker.pid is None


def test_times_are_taken_inside_the_worker(worker, model):
    loaded = worker.load("onnxruntime", model, EngineOptions())
    samples = loaded.time(FEEDS, warmup=1, repeats=5)
    assert len(samples) == 5
    assert all(0 < sample < 1000 for sample in samples)


def test_threads_get_their_own_answers(worker, model):
    loaded = worker.load("onnxruntime", model, EngineOptions())
    batches = [random_arrays({"image": (1, 3, 8, 8)}, seed=seed) for seed in range(8)]
    got: dict[int, np.ndarray] = {}
    threads = [
        threading.Thread(target=lambda i=i: got.__setitem__(i, loaded.run(batches[i])["scores"])) for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, batch in enumerate(batches):
        np.testing.assert_allclose(got[index], run_directly(model, batch)["scores"], rtol=1e-4, atol=1e-6)


def test_closed_graph_is_refused_and_closing_twice_is_fine(worker, model):
    loaded = worker.load("onnxruntime", model, EngineOptions())
    loaded.close()
    loaded.close()
    with pytest.raises(EngineError, match="closed"):
        loaded.run(FEEDS)


def test_no_process_is_left_behind(model):
    with Worker() as worker:
        worker.load("onnxruntime", model, EngineOptions())
        pid = worker.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
