"""Text beside other models in a pool: whose turn it is, and whose memory."""

from __future__ import annotations

import math
import threading

import pytest

from sanderling.core.errors import EngineError, OptionError
from sanderling.run.policy.document import parse_policy
from sanderling.run.pool import Pool
from sanderling.run.text import pooled
from sanderling.run.text.base import Sampling
from tests.alphabet_package import alphabet_package
from tests.engines import wait_until
from tests.models import random_arrays
from tests.text_models import AlphabetModel
from tests.unit.serve.packages import classifier_package

FEW = Sampling(temperature=0, max_tokens=3)
IMAGE = random_arrays({"image": (1, 3, 8, 8)}, seed=1)


@pytest.fixture
def models(monkeypatch):
    """The language models that were loaded, the last one last."""
    loaded = []

    def load(*_, **__):
        loaded.append(AlphabetModel())
        return loaded[-1]

    monkeypatch.setattr(pooled, "load_model", load)
    return loaded


@pytest.fixture
def package(tmp_path, models):  # noqa: ARG001 - loaded instead of the package's
    return alphabet_package(tmp_path / "alphabet.sdl").path


@pytest.fixture
def picture(tmp_path):
    return classifier_package(tmp_path / "tiny.sdl").path


def test_a_pool_holds_pictures_and_text(package, picture, models):
    with Pool() as pool:
        session, text = pool.load(picture), pool.load_text(package)
        assert text.start("v").result().text == "wxyz"
        assert session.run(IMAGE)["scores"].shape == (1, 4)
        assert {model.name for model in pool.models} == {"tiny", "alphabet"}
        assert text.lane == "onnxruntime/cpu/fp32"
        assert pool.runtime.tallies()[0]["completed"] == 6
    assert models[0].is_closed
    with pytest.raises(EngineError, match="session is closed"):
        text.start("a")


def test_each_kind_of_package_is_loaded_its_own_way(package, picture):
    with Pool() as pool:
        with pytest.raises(OptionError, match="package 'alphabet' is a language model"):
            pool.load(package)
        with pytest.raises(OptionError, match="package 'tiny' generates no text"):
            pool.load_text(picture)
        pool.load_text(package)
        with pytest.raises(OptionError, match="model 'alphabet' is a language model"):
            pool["alphabet"]
        with pytest.raises(OptionError, match="the pool has a model 'alphabet' already"):
            pool.load_text(package)
        pool.unload("alphabet")
        assert pool.models == ()


def test_a_request_that_is_due_goes_between_the_steps_of_a_text(package, picture, models):
    with Pool() as pool:
        session, text = pool.load(picture), pool.load_text(package)
        opened, happened = threading.Event(), []

        def before(ids):
            happened.append(len(ids))
            assert opened.wait(10)

        models[0].before = before
        answer = text.start(60 * "a", FEW)
        wait_until(lambda: happened)
        future = session.submit(IMAGE, deadline_ms=900)
        future.add_done_callback(lambda _: happened.append("picture"))
        opened.set()
        answer.result()
        assert happened[0] < 60
        assert happened[1] == "picture"


def test_a_step_takes_no_longer_than_others_can_wait(package, picture):
    policy = parse_policy('{"scheduling": {"timeSlice": 40}}')
    with Pool(policy) as pool:
        session, text = pool.load(picture), pool.load_text(package)
        runtime = pool.runtime
        assert runtime.slice_ms(text.name) == math.inf
        session.run(IMAGE)
        assert runtime.slice_ms(text.name) == 40
        session.run(IMAGE, deadline_ms=5_000)
        assert runtime.slice_ms(text.name) == 40
        session.run(IMAGE, deadline_ms=30)
        assert 0 < runtime.slice_ms(text.name) <= 0.7 * 30
        assert runtime.slice_ms(session.name) == math.inf
        session.close()
        assert runtime.slice_ms(text.name) == math.inf


@pytest.mark.parametrize("threads", [1, 0])
def test_a_step_that_leaves_a_core_free_need_not_be_short(package, picture, monkeypatch, threads):
    for module in ("session", "text.turns"):
        monkeypatch.setattr(f"sanderling.run.{module}.usable_cores", lambda: 2)
    with Pool(parse_policy('{"scheduling": {"timeSlice": 40}}')) as pool:
        session, text = pool.load(picture, threads=1), pool.load_text(package, threads=threads)
        session.run(IMAGE, deadline_ms=30)
        slice_ms = pool.runtime.slice_ms(text.name)
    assert slice_ms == 40 if threads else 0 < slice_ms <= 0.7 * 30


def test_a_text_model_is_released_when_it_is_idle_and_loaded_again_when_asked(package, models):
    with Pool() as pool:
        text = pool.load_text(package)
        opened = threading.Event()
        models[0].before = lambda _: opened.wait(10)
        answer = text.start("v")
        assert not text.release()
        opened.set()
        assert answer.result().text == "wxyz"
        wait_until(text.release)
        assert (text.is_loaded, text.size_bytes, text.pooled_bytes, text.statistics()) == (False, 0, 0, None)
        assert models[0].is_closed
        assert text.start("v").result().text == "wxyz"
        assert len(models) == 2


def test_the_least_used_of_too_many_models_makes_room_for_text(package, picture):
    policy = parse_policy('{"maxModelCache": 1}')
    with Pool(policy) as pool:
        session, text = pool.load(picture), pool.load_text(package)
        assert not session.is_loaded
        wait_until(lambda: not text.is_busy)
        session.run(IMAGE)
        assert not text.is_loaded


def test_kept_sequences_count_as_buffers_that_can_be_dropped(package):
    with Pool() as pool:
        text = pool.load_text(package)
        text.start("abcdef", FEW).result()
        wait_until(lambda: not text.is_busy)
        held = text.pooled_bytes
        assert held > 0
        assert text.clear_buffers() == held
        assert text.pooled_bytes == 0


def test_a_text_model_that_cannot_be_loaded_leaves_no_name_behind(tmp_path, monkeypatch):
    package = alphabet_package(tmp_path / "alphabet.sdl").path

    def fail(*_, **__):
        raise EngineError("no memory")

    with Pool() as pool:
        monkeypatch.setattr(pooled, "load_model", fail)
        with pytest.raises(EngineError, match="no memory"):
            pool.load_text(package)
        monkeypatch.setattr(pooled, "load_model", lambda *_, **__: AlphabetModel())
        assert pool.load_text(package).start("v").result().text == "wxyz"
