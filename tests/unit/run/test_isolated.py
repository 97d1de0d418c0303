from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
from onnx import helper

from sanderling.core.errors import EngineError, ModelError, OptionError
from sanderling.run import exchange
from sanderling.run.engines.base import DeviceKind, EngineOptions
from sanderling.run.environments import import_path
from sanderling.run.isolated import Worker
from tests.models import (
    conv_classifier,
    make_model,
    random_arrays,
    run_directly,
    save,
    sum_and_difference,
    tensor,
)

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


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="only Linux has priorities that a process may lower so")
def test_process_that_should_yield_does_and_this_one_stays_as_it_was(model):
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with Worker(niceness=10) as worker:
        worker.load("onnxruntime", model, EngineOptions())
        assert worker._process is not None
        assert os.getpriority(os.PRIO_PROCESS, worker._process.pid) == max(before, 10)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


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


def test_worker_that_is_busy_for_ever_ends_with_its_parent(model):
    program = f"""if True:
        import threading
        from pathlib import Path
        from sanderling.run.engines.base import EngineOptions
        from sanderling.run.isolated import Worker
        from tests.models import random_arrays
        worker = Worker()
        loaded = worker.load("onnxruntime", Path({str(model)!r}), EngineOptions())
        feeds = random_arrays({{"image": (1, 3, 8, 8)}})
        threading.Timer(0.2, lambda: print(worker.pid, flush=True)).start()
        loaded.time(feeds, warmup=0, repeats=10**9)
    """
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        worker = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    worker.wait(timeout=30)


EXPECTED = run_directly(conv_classifier(), FEEDS)["scores"]


def assert_scores(outputs: dict[str, np.ndarray]) -> None:
    np.testing.assert_allclose(outputs["scores"], EXPECTED, rtol=1e-4, atol=1e-6)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_arrays_in_shared_memory_are_not_copied(worker, model):
    loaded = worker.load("onnxruntime", model, EngineOptions())
    feeds, outputs = loaded.buffers(2), loaded.output_buffers(2)
    for seed in range(3):
        written = random_arrays({"image": (2, 3, 8, 8)}, seed=seed)
        feeds["image"][:] = written["image"]
        outputs["scores"][:] = 77
        found = loaded.run(feeds, outputs)
        assert found["scores"] is outputs["scores"]
        np.testing.assert_allclose(outputs["scores"], run_directly(model, written)["scores"], rtol=1e-4, atol=1e-6)
    assert loaded.copied_bytes == 0
    assert loaded.transport == "shared memory"


def test_buffers_of_fewer_rows_are_the_same_memory(worker, model):
    loaded = worker.load("onnxruntime", model, EngineOptions())
    many, few = loaded.buffers(8)["image"], loaded.buffers(2)
    assert np.shares_memory(many, few["image"])
    few["image"][:] = FEEDS["image"]
    np.testing.assert_array_equal(many[:2], FEEDS["image"])
    assert_scores(loaded.run(few, loaded.output_buffers(2)))
    assert loaded.copied_bytes == 0


def test_other_arrays_are_copied_once_each_way(worker, model):
    loaded = worker.load("onnxruntime", model, EngineOptions())
    outputs = {"scores": np.empty((2, 4), np.float32)}
    assert_scores(loaded.run(FEEDS, outputs))
    assert loaded.copied_bytes == FEEDS["image"].nbytes + outputs["scores"].nbytes
    assert_scores(loaded.run({"image": FEEDS["image"][:, ::-1][:, ::-1]}, outputs))
    assert loaded.copied_bytes == 2 * (FEEDS["image"].nbytes + outputs["scores"].nbytes)


def test_results_are_the_callers_own(worker, model):
    loaded = worker.load("onnxruntime", model, EngineOptions())
    found = [loaded.run(FEEDS) for _ in range(3)]
    loaded.run(random_arrays({"image": (2, 3, 8, 8)}, seed=1))
    loaded.close()
    for outputs in found:
        assert_scores(outputs)


def test_more_rows_move_the_buffers_and_earlier_ones_still_serve(worker, model):
    loaded = worker.load("onnxruntime", model, EngineOptions())
    early = loaded.buffers(2)
    early["image"][:] = FEEDS["image"]
    many = loaded.buffers(40)
    assert not np.shares_memory(early["image"], many["image"])
    assert_scores(loaded.run(early, loaded.output_buffers(2)))
    assert loaded.copied_bytes == FEEDS["image"].nbytes


def test_results_larger_than_foreseen_do_not_move_the_buffers(worker, tmp_path):
    twice = helper.make_node("Concat", ["x", "x"], ["y"], "twice", axis=0)
    doubled = make_model([twice], [tensor("x", ["N", 64])], [tensor("y", ["M", 64])])
    loaded = worker.load("onnxruntime", save(doubled, tmp_path / "doubled.onnx"), EngineOptions())
    feeds = loaded.buffers(4)
    feeds["x"][:] = 3
    for _ in range(3):
        assert (loaded.run(feeds)["y"] == np.full((8, 64), 3)).all()
    assert np.shares_memory(feeds["x"], loaded.buffers(4)["x"])


def test_run_with_other_arrays_leaves_the_buffers_alone(worker, model):
    loaded = worker.load("onnxruntime", model, EngineOptions())
    feeds, outputs = loaded.buffers(2), loaded.output_buffers(2)
    feeds["image"][:] = FEEDS["image"]
    outputs["scores"][:] = 77
    for rows in (2, 64):
        loaded.run(random_arrays({"image": (rows, 3, 8, 8)}, seed=1))
        loaded.run(random_arrays({"image": (rows, 3, 8, 8)}, seed=1), {"scores": np.empty((rows, 4), np.float32)})
    assert (outputs["scores"] == 77).all()
    before = loaded.copied_bytes
    assert_scores(loaded.run(feeds, outputs))
    assert loaded.copied_bytes == before


def test_inputs_in_each_others_buffers_arrive_right(worker, tmp_path):
    loaded = worker.load("onnxruntime", save(sum_and_difference(), tmp_path / "sum.onnx"), EngineOptions())
    buffers = loaded.buffers(2)
    buffers["a"][:], buffers["b"][:] = 5, 3
    outputs = loaded.run({"a": buffers["b"], "b": buffers["a"]})
    assert (outputs["difference"] == -2).all()


def test_array_of_another_shape_than_the_result_is_an_engine_error(worker, model):
    loaded = worker.load("onnxruntime", model, EngineOptions())
    for given in (1, 3):
        with pytest.raises(EngineError, match=r"output 'scores' becomes \[2,4\]"):
            loaded.run(FEEDS, {"scores": np.empty((given, 4), np.float32)})
    assert_scores(loaded.run(FEEDS, loaded.output_buffers(2)))


def test_without_shared_memory_all_goes_over_the_pipe(model):
    with Worker(share=False) as worker:
        loaded = worker.load("onnxruntime", model, EngineOptions())
        feeds, outputs = loaded.buffers(2), loaded.output_buffers(2)
        feeds["image"][:] = FEEDS["image"]
        assert_scores(loaded.run(feeds, outputs))
        assert_scores(loaded.run(feeds))
        assert_scores(outputs)
        assert loaded.transport.startswith("pipe")
        assert loaded.copied_bytes == 2 * FEEDS["image"].nbytes + 3 * outputs["scores"].nbytes


@contextlib.contextmanager
def offered_elsewhere(size_bytes: int):
    with offered_here(size_bytes) as (block, _):
        yield block, "/proc/self/fd/999999"


offered_here = exchange.offered


def test_worker_that_cannot_attach_gets_all_over_the_pipe_and_it_is_told(worker, model, monkeypatch):
    monkeypatch.setattr(exchange, "offered", offered_elsewhere)
    loaded = worker.load("onnxruntime", model, EngineOptions())
    assert_scores(loaded.run(FEEDS))
    assert loaded.transport.startswith("pipe: the block cannot be attached")
    assert_scores(loaded.run(FEEDS, loaded.output_buffers(2)))


def test_system_without_such_memory_uses_the_pipe_and_it_is_told(worker, model, monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    loaded = worker.load("onnxruntime", model, EngineOptions())
    assert_scores(loaded.run(FEEDS))
    assert loaded.transport.startswith("pipe: this system makes no files in memory")


def test_worker_with_nothing_of_ours_but_the_package_shares_memory(model):
    with Worker(path=import_path()) as worker:
        loaded = worker.load("onnxruntime", model, EngineOptions())
        feeds, outputs = loaded.buffers(2), loaded.output_buffers(2)
        feeds["image"][:] = FEEDS["image"]
        assert_scores(loaded.run(feeds, outputs))
        assert (loaded.transport, loaded.copied_bytes) == ("shared memory", 0)


@pytest.mark.parametrize("place", [{"offset": 1 << 40}, {"offset": -64}, {"shape": [1 << 30]}, {"dtype": "O"}], ids=str)
@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_message_that_points_outside_the_memory_is_refused_and_the_worker_lives(worker, model, place, side):
    loaded = worker.load("onnxruntime", model, EngineOptions())
    loaded.buffers(2)
    sides = {"inputs": [{"name": "image", "dtype": "<f4", "shape": [2, 3, 8, 8], "offset": 0, "block": "lent"}]}
    sides["outputs"] = [{"name": "scores", "dtype": "<f4", "shape": [2, 4], "offset": 0, "block": "lent"}]
    sides[side][0] |= place
    with pytest.raises(EngineError, match="does not lie in a block"):
        worker.call(0, {"command": "run", **sides}, {}, timeout_s=5)
    assert_scores(loaded.run(FEEDS))


def test_message_that_names_memory_before_it_is_shared_is_refused(worker, model):
    worker.load("onnxruntime", model, EngineOptions())
    with pytest.raises(EngineError, match="memory 'lent', which is not attached"):
        worker.call(0, {"command": "run", "inputs": [{"block": "lent"}]}, {}, timeout_s=5)


def test_answer_that_points_outside_the_memory_is_an_engine_error(worker, model, monkeypatch):
    loaded = worker.load("onnxruntime", model, EngineOptions())
    loaded.run(FEEDS)
    told = [{"name": "scores", "dtype": "<f4", "shape": [2, 4], "offset": 1 << 40}]
    answer = {"outputs": told, "copied_bytes": 0}
    loaded.run(FEEDS)
    monkeypatch.setattr(worker, "call", lambda *_, **__: (answer, {}))
    with pytest.raises(EngineError, match=r"makes no sense: .* does not lie in a block"):
        loaded.run(FEEDS)


def test_crash_during_a_call_leaves_the_buffers_readable(worker, model):
    loaded = worker.load("onnxruntime", model, EngineOptions())
    feeds, outputs = loaded.buffers(2), loaded.output_buffers(2)
    feeds["image"][:] = FEEDS["image"]
    assert_scores(loaded.run(feeds, outputs))
    os.kill(worker.pid, signal.SIGSTOP)
    killer = threading.Timer(0.2, os.kill, (worker.pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(EngineError, match="crashed with SIGKILL"):
        loaded.run(feeds, outputs)
    killer.join()
    np.testing.assert_array_equal(feeds["image"], FEEDS["image"])
    again = worker.load("onnxruntime", model, EngineOptions())
    assert_scores(again.run(feeds, outputs))
    with pytest.raises(EngineError, match="is gone"):
        loaded.buffers(2)


def test_crashes_and_closing_leave_no_files_behind(worker, model):
    gc.collect()
    left = [open_files()]
    shared = set(Path("/dev/shm").iterdir())
    for round_ in range(4):
        loaded = worker.load("onnxruntime", model, EngineOptions())
        loaded.run(loaded.buffers(1 + round_), loaded.output_buffers(1 + round_))
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(EngineError):
            loaded.run(FEEDS)
        gc.collect()
        left.append(open_files())
    assert left[1:] == left[:1] * 4
    loaded = worker.load("onnxruntime", model, EngineOptions())
    before = open_files()
    loaded.run(FEEDS)
    loaded.close()
    gc.collect()
    assert open_files() == before
    assert set(Path("/dev/shm").iterdir()) == shared


def test_closed_graph_gives_its_memory_back_in_the_worker(worker, model):
    mapped = []
    for _ in range(4):
        loaded = worker.load("onnxruntime", model, EngineOptions())
        loaded.run(FEEDS)
        loaded.close()
        mapped.append(Path(f"/proc/{worker.pid}/maps").read_text().count("memfd:sanderling"))
    assert max(mapped) <= 1
