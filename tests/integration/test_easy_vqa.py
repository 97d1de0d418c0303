"""The network for easy-VQA with its trained weights, and the commands that the README shows, on its test set."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
easy_vqa = pytest.importorskip("easy_vqa", reason="pip install --no-deps -r requirements-models.txt")

from benchmarks.zoo.easy_vqa_data import normalize, read_answers, read_questions, to_ids, words  # noqa: E402
from benchmarks.zoo.train_vqa import measure_accuracy  # noqa: E402
from benchmarks.zoo.training import read_records  # noqa: E402
from benchmarks.zoo.vqa import WEIGHTS, vqa_net  # noqa: E402
from sanderling.api import build_multimodal  # noqa: E402
from sanderling.model.multimodal import QUESTIONS  # noqa: E402
from sanderling.tasks.multimodal import Answerer, Reading  # noqa: E402

ASKED = 100


@pytest.fixture(scope="module")
def data():
    return read_questions("test")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    path = tmp_path_factory.mktemp("easy") / "vqa.sdl"
    factory = "benchmarks.zoo.vqa:vqa_branches"
    return build_multimodal(factory, path, task=QUESTIONS, precision="fp32", repeats=1).path


@pytest.fixture(scope="module")
def net():
    from safetensors.torch import load_file

    net = vqa_net()
    net.load_state_dict(load_file(WEIGHTS))
    return net


def test_committed_weights_answer_the_test_set_as_well_as_their_record_says(net, data):
    assert WEIGHTS.stat().st_size <= 3_000_000
    assert measure_accuracy(net, data) == pytest.approx(read_records()["vqa"]["test_accuracy"], abs=2e-3)


def test_questions_from_files_are_answered_as_by_the_module(package, net, data):
    rows = np.random.default_rng(0).choice(len(data.texts), ASKED, replace=False)
    with torch.no_grad():
        seen = net.vision(torch.from_numpy(normalize(data.images[data.pictures[rows]])))
        expected = net.fusion(seen, net.text(torch.from_numpy(data.ids[rows]))).argmax(1).numpy()
    with Answerer(package) as answerer:
        got = [
            answerer.ask(data.files[data.pictures[row]], [data.texts[row]], top=1)[0].answers[0].index for row in rows
        ]
    assert np.array_equal(got, expected)


def test_the_package_splits_questions_as_the_training_did(package, data):
    from sanderling.model.package import Package

    reading = Reading(Package.open(package))
    for text in {*data.texts[:300]}:
        assert np.array_equal(reading.text(text).feeds()["ids"][0], to_ids(text))


def test_the_command_of_the_readme_answers_a_real_picture(package, data, sanderling_here):
    row = data.texts.index(next(text for text in data.texts if "color" in text))
    done = sanderling_here("ask", package, data.files[data.pictures[row]], data.texts[row], "--json")
    assert done.answer["answers"][0]["answers"][0]["label"] == read_answers()[data.answers[row]]


def test_the_vocabulary_is_that_of_the_weights():
    from safetensors.torch import load_file

    assert len(load_file(WEIGHTS)["text.embedding.weight"]) == len(words())
