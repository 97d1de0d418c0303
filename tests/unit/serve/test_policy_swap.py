"""Models follow another policy from one request to the next, and no request is lost."""

from __future__ import annotations

import shutil
import threading
import time

import numpy as np
import pytest

from sanderling.core.errors import PackageError, SanderlingError
from sanderling.run.policy.document import Policy, parse_policy
from sanderling.run.pool import Pool
from sanderling.run.session import open_sessions
from sanderling.run.text import pooled
from sanderling.run.text.base import Sampling
from sanderling.serve.data_plane import DataPlane
from sanderling.serve.errors import ConflictError
from sanderling.serve.policy_swap import swap_policy
from sanderling.serve.server import warm
from tests.alphabet_package import alphabet_package
from tests.models import conv_classifier, random_arrays, run_directly
from tests.text_models import AlphabetModel
from tests.unit.serve.packages import classifier_package

FEEDS = random_arrays({"image": (1, 3, 8, 8)}, seed=3)
SCORES = run_directly(conv_classifier(), FEEDS)["scores"]


def batches_of(rows: int) -> Policy:
    return parse_policy(f'{{"batchTuning": {{"maxBatchSize": {rows}}}}}')


@pytest.fixture
def package(tmp_path):
    return classifier_package(tmp_path / "tiny.sdl")


@pytest.fixture
def plane(package):
    plane = DataPlane(Pool(batches_of(2)))
    plane.add(plane.pool.load(package.path, name="tiny:1", pinned=True), name="tiny")
    plane.add(plane.pool.load(package.path, name="tiny:2"), name="tiny", version="2")
    plane.set_canary("tiny", "2", 0.5)
    yield plane
    plane.pool.close()


def swap(plane: DataPlane, policy: Policy) -> Pool:
    """The pool that it had before."""
    old = plane.pool
    swap_policy(plane, policy, threads=1, warm=warm)
    return old


def run(plane: DataPlane) -> np.ndarray:
    return plane.submit(plane.model("tiny"), FEEDS).result(20)["scores"]


def test_everything_follows_the_new_policy_and_nothing_else_changes(plane):
    run(plane)
    counted = plane.model("tiny", "1").statistics
    swap(plane, batches_of(8)).close()
    assert [model.session.policy.batch_tuning.max_batch_size for model in plane.models] == [8, 8]
    assert (plane.default_version("tiny"), plane.canary("tiny")) == ("1", ("2", 0.5))
    assert plane.model("tiny", "1").statistics is counted
    assert [(model.name, model.pinned) for model in plane.pool.models] == [("tiny:1", True), ("tiny:2", False)]
    np.testing.assert_allclose(run(plane), SCORES, atol=1e-4)


def test_no_request_is_lost_in_swaps_under_load(plane):
    failed: list[BaseException] = []
    done, ending = [0] * 4, threading.Event()

    def load(index: int) -> None:
        while not ending.is_set():
            try:
                np.testing.assert_allclose(run(plane), SCORES, atol=1e-4)
                done[index] += 1
            except BaseException as error:  # noqa: BLE001
                failed.append(error)

    threads = [threading.Thread(target=load, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    try:
        for rows in (1, 8, 3):
            before = sum(done)
            swap(plane, batches_of(rows)).close()
            while sum(done) < before + 40 and not failed:
                ending.wait(0.01)
    finally:
        ending.set()
        for thread in threads:
            thread.join(20)
    assert failed == []


@pytest.mark.parametrize("text", ['{"devicePriorities": ["tpu"]}', '{"devicePriorities": ["npu"]}'])
def test_a_policy_that_cannot_be_followed_changes_nothing(plane, text):
    before = plane.pool, plane.models
    with pytest.raises(SanderlingError):
        swap(plane, parse_policy(text))
    assert (plane.pool, plane.models) == before
    np.testing.assert_allclose(run(plane), SCORES, atol=1e-4)


def test_a_package_that_is_another_one_by_now_is_not_taken(plane, package):
    shutil.rmtree(package.path)
    classifier_package(package.path, seed=1)
    with pytest.raises(PackageError, match="another package by now"):
        swap(plane, batches_of(8))
    np.testing.assert_allclose(run(plane), SCORES, atol=1e-4)


def test_models_that_come_or_go_meanwhile_are_a_conflict_and_nothing_stays_loaded(plane):
    before, began = open_sessions(), []

    def unload_meanwhile(member, name):
        if not began:
            began.append(plane.remove("tiny", "2"))
        warm(member, name)

    with pytest.raises(ConflictError, match="try again"):
        swap_policy(plane, batches_of(8), threads=1, warm=unload_meanwhile)
    assert set(open_sessions()) <= set(before)
    np.testing.assert_allclose(run(plane), SCORES, atol=1e-4)


def test_a_language_model_follows_as_well_and_ends_what_it_writes(monkeypatch, tmp_path):
    monkeypatch.setattr(pooled, "load_model", lambda *_, **__: AlphabetModel(before=lambda _: time.sleep(0.01)))
    plane = DataPlane(Pool(batches_of(2)))
    plane.add(plane.pool.load_text(alphabet_package(tmp_path / "alphabet.sdl").path), name="alphabet")
    before = plane.model("alphabet").text
    stream = before.start("a", Sampling(temperature=0.0, max_tokens=20))
    old = swap(plane, batches_of(8))
    after = plane.model("alphabet").text
    assert (after is before, after.policy.batch_tuning.max_batch_size) == (False, 8)
    old.close()
    assert stream.result().text == "bcdefghijklmnopqrstu"
    assert after.start("v", Sampling(temperature=0.0, max_tokens=3)).result().text == "wxy"
    plane.pool.close()
