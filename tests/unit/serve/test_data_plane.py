from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import CancelledError

import numpy as np
import pytest

from sanderling.core.errors import DeadlineError, OptionError, TensorError
from sanderling.run.pool import Pool
from sanderling.serve.data_plane import DataPlane
from sanderling.serve.errors import ConflictError, NotFoundError, NotReadyError
from tests.engines import ALWAYS, Script, scripted_session, wait_until
from tests.models import random_arrays
from tests.unit.serve.packages import classifier_package

IMAGE = random_arrays({"image": (2, 3, 8, 8)}, seed=3)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return classifier_package(tmp_path_factory.mktemp("package") / "tiny.sdl")


@pytest.fixture
def plane():
    with Pool() as pool:
        plane = DataPlane(pool)
        yield plane
        for model in plane.models:
            model.session.close()


def test_a_request_is_answered_and_told_to_observers(plane, package):
    finished = []
    plane.observers.append(finished.append)
    model = plane.add(scripted_session(package), name="tiny")
    outputs = plane.submit(model, IMAGE).result(10)
    assert outputs["scores"].shape == (2, 4)
    wait_until(lambda: finished)
    (told,) = finished
    assert (told.model, told.version, told.ok, told.error) == ("tiny", "1", True, "")
    assert (told.rows, told.batch_rows, told.batch_requests) == (2, 2, 1)
    assert (told.lane, told.device, told.precision) == ("scripted/npu/fp32", "npu", "fp32")
    assert 0 <= told.queue_ms <= told.total_ms
    assert 0 < told.compute_ms <= told.total_ms


def test_unknown_names_are_told_with_those_that_there_are(plane, package):
    plane.add(scripted_session(package), name="tiny")
    with pytest.raises(NotFoundError, match="unknown model 'huge': available are tiny"):
        plane.model("huge")
    with pytest.raises(NotFoundError, match="no version '2': available are 1"):
        plane.model("tiny", "2")
    with pytest.raises(TensorError, match="no output 'boxes': available are scores"):
        plane.submit(plane.model("tiny"), IMAGE, outputs=["boxes"])


def test_a_version_is_added_once(plane, package):
    session = scripted_session(package)
    plane.add(session, name="tiny", version="7")
    with pytest.raises(ConflictError, match="has a version 7 already"):
        plane.add(session, name="tiny", version="7")


def test_the_default_is_the_first_version_until_another_is_chosen(plane, package):
    for version in ("1", "2"):
        plane.add(scripted_session(package), name="tiny", version=version)
    assert plane.model("tiny").version == "1"
    plane.set_default("tiny", "2")
    assert plane.model("tiny").version == "2"
    assert plane.model("tiny", "1").version == "1"


def test_a_canary_gets_its_share_of_requests_without_a_version(plane, package):
    for version in ("1", "2"):
        plane.add(scripted_session(package), name="tiny", version=version)
    plane.set_canary("tiny", "2", 0.25)
    assert Counter(plane.model("tiny").version for _ in range(400)) == {"1": 300, "2": 100}
    assert plane.model("tiny", "1").version == "1"
    plane.set_canary("tiny", "2", 0)
    assert {plane.model("tiny").version for _ in range(20)} == {"1"}
    with pytest.raises(OptionError, match=r"1\.5: expected 0 to 1"):
        plane.set_canary("tiny", "2", 1.5)


def test_swapping_versions_under_load_loses_no_request(plane, package):
    plane.add(scripted_session(package), name="tiny", version="1")
    stop, failures, answered = threading.Event(), [], [0]

    def ask():
        while not stop.is_set():
            try:
                plane.submit(plane.model("tiny"), IMAGE).result(10)
                answered[0] += 1
            except Exception as error:  # noqa: BLE001
                failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for version in range(2, 8):
        plane.add(scripted_session(package), name="tiny", version=str(version))
        plane.set_default("tiny", str(version))
        plane.remove("tiny", str(version - 1))
    before = answered[0]
    wait_until(lambda: answered[0] > before + 20)
    stop.set()
    for thread in threads:
        thread.join(10)
    assert failures == []


def test_the_version_that_answers_instead_is_told(plane, package):
    first = plane.add(scripted_session(package), name="tiny")
    second = plane.add(scripted_session(package), name="tiny", version="2")
    moved = []
    plane.submit(first, IMAGE, moved=moved.append).result(10)
    assert moved == []
    plane.remove("tiny", "1")
    plane.submit(first, IMAGE, moved=moved.append).result(10)
    assert moved == [second]


def test_a_pinned_request_is_not_answered_by_another_version(plane, package):
    old = plane.add(scripted_session(package), name="tiny", version="1")
    plane.add(scripted_session(package), name="tiny", version="2")
    plane.remove("tiny", "1")
    with pytest.raises(NotFoundError, match="no version '1'"):
        plane.submit(old, IMAGE, pinned=True)
    assert plane.submit(old, IMAGE).result(10)["scores"].shape == (2, 4)


def test_results_are_copied_to_the_buffers_that_there_are(plane, package):
    model = plane.add(scripted_session(package), name="tiny")
    buffer = np.zeros((2, 4), np.float32)
    outputs = plane.submit(model, IMAGE, buffers={"scores": buffer}).result(10)
    assert outputs["scores"] is buffer
    assert buffer.any()


def test_a_cancelled_request_frees_its_place(plane, package):
    script = Script(hangs=ALWAYS)
    model = plane.add(scripted_session(package, {"npu": script}), name="tiny")
    running = plane.submit(model, IMAGE)
    wait_until(lambda: script.rows)
    waiting = plane.submit(model, IMAGE)
    assert plane.pending == 2
    assert waiting.cancel()
    assert plane.pending == 1
    script.release.set()
    running.result(10)
    with pytest.raises(CancelledError):
        waiting.result(0)
    wait_until(lambda: not plane.pending)
    assert model.statistics.cancel.count == 1


def test_a_deadline_that_passed_is_refused_at_once(plane, package):
    model = plane.add(scripted_session(package), name="tiny")
    with pytest.raises(DeadlineError):
        plane.submit(model, IMAGE, deadline_ms=0)
    assert model.statistics.fail.count == 1


def test_a_server_that_shuts_down_takes_nothing_and_is_not_ready(plane, package):
    model = plane.add(scripted_session(package), name="tiny")
    assert plane.is_ready
    plane.is_accepting = False
    assert not plane.is_ready
    with pytest.raises(NotReadyError, match="shuts down"):
        plane.submit(model, IMAGE)


def test_a_model_whose_requests_all_fail_is_not_ready(plane, package):
    script = Script(fails=ALWAYS)
    model = plane.add(scripted_session(package, {"npu": script}), name="tiny")
    for _ in range(3):
        assert plane.submit(model, IMAGE).exception(10) is not None
    wait_until(lambda: not model.is_ready)
    assert not plane.is_ready


def test_statistics_count_calls_and_rows(plane, package):
    model = plane.add(scripted_session(package), name="tiny")
    for _ in range(3):
        plane.submit(model, IMAGE).result(10)
    wait_until(lambda: model.statistics.success.count == 3)
    told = model.statistics.to_json("tiny", "1")
    assert (told["inference_count"], told["execution_count"]) == (6, 3)
    assert told["inference_stats"]["success"]["count"] == 3
    assert told["inference_stats"]["compute_infer"]["ns"] > 0
    assert [(each["batch_size"], each["compute_infer"]["count"]) for each in told["batch_stats"]] == [(2, 3)]
