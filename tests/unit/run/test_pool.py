"""The pool: what it holds, what it releases and why, and what its callers notice of that."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import sanderling
from sanderling.core.errors import EngineError, OptionError, PackageError, SanderlingError
from sanderling.core.machine import usable_cores
from sanderling.run.emulation.engine import EmulatedDevices
from sanderling.run.emulation.table import LatencyTable
from sanderling.run.engines.onnxruntime_ import OnnxRuntime, OnnxRuntimeExecutable
from sanderling.run.policy.document import parse_policy
from sanderling.run.pool import Pool
from sanderling.run.sensors import Reading
from sanderling.run.session import load, open_sessions
from tests.models import chain, conv_classifier, random_arrays, run_directly
from tests.unit.run.guard.packages import package_of

X = np.array([[-2.0, -1.0, 1.0, 2.0]], np.float32)
RESULTS = {"abs": np.abs(X), "neg": -X, "relu": np.maximum(X, 0), "exp": np.exp(X)}
GIB = 1 << 30


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models of one operator each, by name, from ``x`` (N, 4) to ``y`` (N, 4)."""
    folder = tmp_path_factory.mktemp("models")
    return {
        name: package_of(
            folder / f"{name}.sdl", {"fp32": chain([name.capitalize()], shape=["N", 4])}, [{"x": X}], name=name
        ).path
        for name in RESULTS
    }


class Gauge:
    """Sensors whose memory a test sets; ``passed`` waits until the pool has seen what was set."""

    def __init__(self) -> None:
        self.used_bytes: int | None = 0
        self._reads = 0

    def read(self) -> Reading:
        self._reads += 1
        return Reading(time_s=time.monotonic(), memory_used_bytes=self.used_bytes, memory_limit_bytes=100 * GIB)

    def passed(self, used_gib: float) -> None:
        self.used_bytes = int(used_gib * GIB)
        seen = self._reads
        wait_for(lambda: self._reads >= seen + 3)


def pool_of(packages: dict[str, Path], *names: str, sensors=None, emulate=None, pinned=(), **policy) -> Pool:
    policy = {"guard": {"checkFinite": False}, "sensorInterval": 5, **policy}
    pool = Pool(parse_policy(json.dumps(policy)), sensors=sensors or Gauge(), emulate=emulate)
    for name in names:
        pool.load(packages[name], pinned=name in pinned)
    return pool


def loaded(pool: Pool) -> set[str]:
    return {model.name for model in pool.models if model.loaded}


def kinds(pool: Pool) -> list[str]:
    return [event.kind for event in pool.events]


def wait_for(holds, timeout_s: float = 10.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.002)


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Whatever a test does, its pools leave no session and no thread."""
    sessions, threads = open_sessions(), set(threading.enumerate())
    yield
    assert open_sessions() == sessions
    wait_for(lambda: not {each for each in set(threading.enumerate()) - threads if each.name.startswith("sanderling")})


def test_graphs_of_a_pool_leave_each_other_the_cores(packages):
    name = next(iter(packages))
    with pool_of(packages, name) as pool, load(packages[name]) as alone:
        (session,) = (pool[model.name] for model in pool.models)
        assert not any(lane.plan.place.options.spin for lane in session._served.lanes)
        assert all(lane.plan.place.options.spin for lane in alone._served.lanes)


def test_pool_is_a_public_name():
    assert sanderling.Pool is Pool


def test_models_answer_by_name(packages):
    with pool_of(packages, "abs", "neg", "relu") as pool:
        for name in ("abs", "neg", "relu"):
            np.testing.assert_array_equal(pool.run(name, X)["y"], RESULTS[name])
        assert [model.name for model in pool.models] == ["abs", "neg", "relu"]


def test_least_recently_used_model_is_released_for_one_more_and_loaded_again_by_its_next_request(packages):
    with pool_of(packages, "abs", "neg", maxModelCache=2) as pool:
        pool.run("neg", X)
        pool.run("abs", X)
        pool.load(packages["relu"])
        assert loaded(pool) == {"abs", "relu"}
        np.testing.assert_array_equal(pool.run("neg", X)["y"], RESULTS["neg"])
        assert loaded(pool) == {"neg", "relu"}
        told = [(event.subject, event.reason) for event in pool.events if event.kind == "model-released"]
    assert told == [("neg", "least recently used"), ("abs", "least recently used")]


def test_byte_budget_holds_for_loads_and_reloads(packages):
    size = max(path.joinpath("fp32.onnx").stat().st_size for path in packages.values())
    with pool_of(packages, "abs", "neg", "relu", maxModelCache=9, maxModelBytes=2 * size) as pool:
        assert loaded(pool) == {"neg", "relu"}
        pool.run("abs", X)
        assert loaded(pool) == {"relu", "abs"}
        assert sum(model.size_bytes for model in pool.models if model.loaded) <= 2 * size


def test_released_model_gives_equal_results_after_it_was_loaded_again(tmp_path):
    graph = conv_classifier()
    images = random_arrays({"image": (3, 3, 8, 8)})["image"]
    path = package_of(tmp_path / "classifier.sdl", {"fp32": graph}, [random_arrays({"image": (1, 3, 8, 8)})]).path
    with pool_of({"tiny": path}, "tiny") as pool:
        before = pool.run("tiny", images)["scores"]
        pool.run("tiny", images[..., ::-1])  # strides that ONNX Runtime cannot read where they lie
        copied = pool["tiny"].copied_bytes
        assert copied == images.nbytes
        assert pool["tiny"].release()
        assert loaded(pool) == set()
        np.testing.assert_array_equal(pool.run("tiny", images)["scores"], before)
        np.testing.assert_allclose(before, run_directly(graph, {"image": images})["scores"], atol=1e-4)
        assert pool["tiny"].copied_bytes == copied, "what was copied before the release still counts"


def test_pinned_models_stay_and_a_limit_that_cannot_be_kept_is_told_once(packages):
    with pool_of(packages, "abs", "neg", pinned=("abs", "neg"), maxModelCache=2) as pool:
        pool.load(packages["relu"])
        pool.run("relu", X)
        assert loaded(pool) == {"abs", "neg", "relu"}
        wait_for(lambda: "limit-exceeded" in kinds(pool))
        time.sleep(0.05)  # some readings later
        (event,) = (event for event in pool.events if event.kind == "limit-exceeded")
        assert event.reason == "3 models, 2 are allowed: the rest is pinned or busy"
        assert {model.name for model in pool.models if model.pinned} == {"abs", "neg"}


def test_second_way_of_running_is_not_a_second_model(packages, tmp_path):
    both = {"fp32": chain(["Abs"], shape=["N", 4]), "int8": chain(["Abs"], shape=["N", 4])}
    package = package_of(tmp_path / "both.sdl", both, [{"x": X}], name="both")
    with pool_of(packages, "neg", maxModelCache=2, precisionLadder=["int8", "fp32"]) as pool:
        pool.load(package.path)
        pool["both"].switch(precision="fp32")
        pool.run("both", X)
        assert len(pool["both"].lanes) == 2
        assert loaded(pool) == {"neg", "both"}
        assert "model-released" not in kinds(pool)


def test_idle_model_makes_room_though_the_busy_one_was_used_before_it(packages):
    devices = emulated(1500.0, gpu_ms=10.0)
    with pool_of(packages, "abs", "neg", emulate=devices, devicePriorities=["npu", "gpu"], maxModelCache=2) as pool:
        pool["neg"].switch(device="gpu")
        future = pool["abs"].submit(X)
        wait_for(future.running)
        pool.run("neg", X)
        pool.load(packages["relu"])
        assert not pool["abs"].release(), "a call of it runs"
        assert not future.done()
        assert loaded(pool) == {"abs", "relu"}
        np.testing.assert_array_equal(future.result(10)["y"], RESULTS["abs"])


def test_busy_model_is_never_released_under_its_requests(packages):
    """Four callers and three models, of which two fit: every result is the model's own."""
    wrong: list[str] = []

    def call(seed: int) -> None:
        generator = np.random.default_rng(seed)
        for _ in range(60):
            name = str(generator.choice(["abs", "neg", "relu"]))
            x = generator.standard_normal((1, 4)).astype(np.float32)
            expected = {"abs": np.abs(x), "neg": -x, "relu": np.maximum(x, 0)}[name]
            try:
                if not np.array_equal(pool.run(name, x)["y"], expected):
                    wrong.append(f"{name} gave another result")
            except SanderlingError as error:
                wrong.append(str(error))

    with pool_of(packages, "abs", "neg", "relu", maxModelCache=2) as pool:
        callers = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(60)
        assert wrong == []
        assert "model-released" in kinds(pool)
        wait_for(lambda: len(loaded(pool)) <= 2)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (["tensorPool", "models"], ["tensor-pool-released", "model-released"]),
        (["models", "tensorPool"], ["model-released", "model-released", "tensor-pool-released"]),
        (["models"], ["model-released", "model-released"]),
    ],
)
def test_emergency_releases_in_the_policys_order(packages, order, expected):
    gauge = Gauge()
    release = {"threshold": 0.9, "releaseOrder": order}
    with pool_of(packages, "abs", "neg", sensors=gauge, emergencyRelease=release) as pool:
        hold_buffers(pool, "abs")
        gauge.passed(89.9)
        assert kinds(pool) == []
        gauge.passed(95)  # over the threshold by far more than all of it holds
        told = [event for event in pool.events if event.kind in expected]
        if order[0] == "tensorPool":
            assert loaded(pool) == set()
            told = told[:2]
        assert [event.kind for event in told] == expected
        assert told[0].reason == "95 % of the memory is used, the threshold is 90 %"


def test_emergency_leaves_pinned_models_and_what_is_released_answers_again(packages):
    gauge = Gauge()
    with pool_of(packages, "abs", "neg", pinned=("abs",), sensors=gauge) as pool:
        gauge.passed(95)
        assert loaded(pool) == {"abs"}
        assert [event.subject for event in pool.events if event.kind == "model-released"] == ["neg"]
        gauge.passed(10)
        np.testing.assert_array_equal(pool.run("neg", X)["y"], RESULTS["neg"])


def test_readings_that_waver_around_the_threshold_are_one_emergency(packages):
    gauge = Gauge()
    with pool_of(packages, "abs", pinned=("abs",), sensors=gauge) as pool:
        for used in (91, 89.5, 91, 89.5, 91):
            gauge.passed(used)
        assert kinds(pool) == ["memory-short"]
        assert "nothing can be released" in pool.events[0].reason
        gauge.passed(80)
        assert kinds(pool) == ["memory-short", "memory-recovered"]
        gauge.passed(95)
        assert kinds(pool) == ["memory-short", "memory-recovered", "memory-short"]


def test_memory_that_cannot_be_read_releases_nothing(packages):
    gauge = Gauge()
    gauge.used_bytes = None
    with pool_of(packages, "abs", sensors=gauge) as pool:
        time.sleep(0.05)
        assert (loaded(pool), kinds(pool)) == ({"abs"}, [])


def hold_buffers(pool: Pool, name: str) -> None:
    """Let the tensor pool keep a buffer: rows of several callers are joined in it."""
    for _ in range(50):
        for future in [pool[name].submit(X) for _ in range(8)]:
            future.result(10)
        if pool[name].pooled_bytes:
            return
    raise AssertionError("no batch was ever made")


def test_run_all_gives_every_model_the_same_memory(packages, monkeypatch):
    seen: list[np.ndarray] = []
    whole = OnnxRuntimeExecutable.run

    def watched(self, feeds, outputs=None):
        seen.append(feeds["x"])
        return whole(self, feeds, outputs)

    monkeypatch.setattr(OnnxRuntimeExecutable, "run", watched)
    with pool_of(packages, "abs", "neg", "relu") as pool:
        results = pool.run_all(["abs", "neg", "relu"], X)
        assert sum(pool[name].copied_bytes for name in results) == 0
    assert list(results) == ["abs", "neg", "relu"]
    for name, outputs in results.items():
        np.testing.assert_array_equal(outputs["y"], RESULTS[name])
    assert len(seen) == 3
    assert all(np.shares_memory(array, X) for array in seen)


def emulated(call_ms: float, *, gpu_ms: float | None = None) -> EmulatedDevices:
    times_ms = {"npu": call_ms, "gpu": gpu_ms or call_ms}
    entries = {device: {"latency_ms": {1: time_ms}} for device, time_ms in times_ms.items()}
    return EmulatedDevices(LatencyTable(source="test", models={"any": entries}), "any")


def test_run_all_uses_several_devices_at_once(packages):
    with pool_of(packages, "abs", "neg", emulate=emulated(300.0), devicePriorities=["npu", "gpu"]) as pool:
        pool["neg"].switch(device="gpu")
        started_s = time.monotonic()
        results = pool.run_all(["abs", "neg"], X)
        took_s = time.monotonic() - started_s
    assert [outputs.lane for outputs in results.values()] == ["emulated/npu/fp32", "emulated/gpu/fp32"]
    assert 0.3 <= took_s < 0.6, "one after the other takes at least 0.6 s"


def test_one_device_runs_one_model_after_the_other(packages):
    with pool_of(packages, "abs", "neg", emulate=emulated(100.0), devicePriorities=["npu"]) as pool:
        started_s = time.monotonic()
        pool.run_all(["abs", "neg"], X)
        assert time.monotonic() - started_s >= 0.2


def test_failure_of_one_model_is_raised_after_the_others_have_ended(packages):
    with pool_of(packages, "abs", "neg") as pool:
        with pytest.raises(OptionError, match="no model 'nag': loaded are abs, neg"):
            pool.run_all(["abs", "nag"], X)
        with pytest.raises(SanderlingError, match="expected float32"):
            pool.run_all(["abs", "neg"], X.astype(np.float64))
        assert pool["abs"].statistics().waiting == 0


def test_unknown_and_duplicate_names_are_refused(packages):
    with pool_of(packages, "abs") as pool:
        with pytest.raises(OptionError, match="no model 'neg': loaded are abs"):
            pool.run("neg", X)
        with pytest.raises(OptionError, match="has a model 'abs' already: unload it first, or give this one another"):
            pool.load(packages["neg"], name="abs")
        pool.load(packages["abs"], name="other")
        np.testing.assert_array_equal(pool.run("other", X)["y"], RESULTS["abs"])
        with pytest.raises(OptionError, match="loaded are abs, other"):
            pool.unload("neg")


def test_load_that_fails_leaves_the_name_free(packages, tmp_path):
    with pool_of(packages) as pool:
        (tmp_path / "empty.sdl").mkdir()
        with pytest.raises(PackageError):
            pool.load(tmp_path / "empty.sdl", name="abs")
        with pytest.raises(OptionError):
            pool.load(packages["abs"], variant="int4")
        assert pool.models == ()
        pool.load(packages["abs"])


def test_unloading_lets_requests_in_flight_end(packages):
    with pool_of(packages, "abs", emulate=emulated(20.0), devicePriorities=["npu"]) as pool:
        futures = [pool["abs"].submit(X) for _ in range(10)]
        pool.unload("abs")
        for future in futures:
            np.testing.assert_array_equal(future.result(0)["y"], RESULTS["abs"])
        assert pool.models == ()
        with pytest.raises(OptionError, match="loaded are none"):
            pool.run("abs", X)


def test_unloading_does_not_wait_longer_than_it_is_told(packages):
    with pool_of(
        packages, "abs", emulate=emulated(300.0), devicePriorities=["npu"], batchTuning={"maxBatchSize": 1}
    ) as pool:
        futures = [pool["abs"].submit(X) for _ in range(10)]
        pool.unload("abs", drain_s=0.0)
        failed = [future for future in futures if isinstance(future.exception(5), EngineError)]
    assert len(failed) >= 9


def test_session_of_a_model_that_was_unloaded_says_so_and_does_not_touch_its_successor(packages):
    with pool_of(packages, "abs") as pool:
        old = pool["abs"]
        pool.unload("abs")
        new = pool.load(packages["neg"], name="abs")
        old.close()
        with pytest.raises(EngineError, match="the session is closed"):
            _ = old.placement
        np.testing.assert_array_equal(pool.run("abs", X)["y"], RESULTS["neg"])
        assert pool["abs"] is new


def test_session_that_is_closed_by_itself_leaves_the_pool(packages):
    with pool_of(packages, "neg") as pool:
        with pool.load(packages["abs"]) as session:
            session.run(X)
        assert [model.name for model in pool.models] == ["neg"]
        pool.load(packages["abs"])
        assert pool["neg"].conditions is pool.conditions


def test_closed_pool_takes_no_more_and_a_second_close_does_nothing(packages):
    pool = pool_of(packages, "abs")
    session = pool["abs"]
    pool.close()
    pool.close()
    with pytest.raises(EngineError, match="the pool is closed"):
        pool.load(packages["neg"])
    with pytest.raises(EngineError, match="the session is closed"):
        session.run(X)
    assert pool.models == ()


def test_calls_of_several_models_never_use_more_threads_than_there_are_cores(packages, monkeypatch):
    lock, running, most = threading.Lock(), [0], [0]
    whole_load, whole_run = OnnxRuntime.load, OnnxRuntimeExecutable.run

    def load(self, model, options):
        executable = whole_load(self, model, options)
        executable.threads = options.threads or usable_cores()
        return executable

    def run(self, feeds, outputs=None):
        with lock:
            running[0] += self.threads
            most[0] = max(most[0], running[0])
        time.sleep(0.001)
        try:
            return whole_run(self, feeds, outputs)
        finally:
            with lock:
                running[0] -= self.threads

    monkeypatch.setattr(OnnxRuntime, "load", load)
    monkeypatch.setattr(OnnxRuntimeExecutable, "run", run)
    with pool_of(packages, maxModelCache=9) as pool:
        for index, name in enumerate(packages):
            pool.load(packages[name], threads=index % 2)  # every other one on all cores
        callers = [
            threading.Thread(target=lambda name=name: [pool.run(name, X) for _ in range(40)])
            for name in packages
            for _ in range(2)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(60)
    assert most[0] == usable_cores()


def test_model_is_pinned_and_let_go_while_it_is_loaded(packages):
    with pool_of(packages, "abs", "neg", maxModelCache=2) as pool:
        pool.pin("abs")
        pool.load(packages["relu"])
        assert loaded(pool) == {"abs", "relu"}
        pool.pin("abs", pinned=False)
        pool.run("relu", X)
        pool.load(packages["exp"])
        assert loaded(pool) == {"relu", "exp"}
        with pytest.raises(OptionError, match="no model 'other'"):
            pool.pin("other")


def test_excess_counts_what_stays_whatever_is_released(packages):
    with pool_of(packages, "abs", "neg", pinned=["abs"], maxModelBytes=10_000) as pool:
        size_bytes = pool["abs"].size_bytes
        assert pool.excess_bytes(10_000 - size_bytes) == 0
        assert pool.excess_bytes(10_000) == size_bytes
    with pool_of(packages, "abs", pinned=["abs"]) as pool:
        assert pool.excess_bytes(1 << 60) == 0
