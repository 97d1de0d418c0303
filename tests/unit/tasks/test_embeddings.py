import numpy as np
import pytest

from sanderling.api import build
from sanderling.core.errors import ContextError, ModelError, OptionError
from sanderling.tasks.embeddings import Embedder
from tests.sentences import LONGEST, WORDS, sentence_model, table, word_tokenizer
from tests.unit.serve.packages import classifier_package


def made(folder, **options):
    source = sentence_model(folder / "sentences.onnx", **options)
    tokenizer = word_tokenizer(folder / "words.json")
    output, asked = folder / "sentences.sdl", {"precision": "fp32", "repeats": 1}
    return build(source, output, task="embeddings", tokenizer=tokenizer, **asked).path


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return made(tmp_path_factory.mktemp("sentences"))


def mean(*words):
    vector = table()[[WORDS.index(word) for word in words]].mean(axis=0)
    return vector / np.linalg.norm(vector)


def test_a_text_has_the_mean_of_its_tokens_alone(package):
    with Embedder(package) as embedder:
        found = embedder.embed(["a small bird", "fish"])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [mean("a", "small", "bird"), mean("fish")], atol=1e-6)


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        ("", OptionError, "is empty"),
        ("bird " * (LONGEST + 1), ContextError, "has 9 tokens: at most 8 are embedded"),
        ("\ud800", OptionError, "not valid Unicode"),
    ],
)
def test_a_text_that_cannot_be_embedded_is_one_clear_error(package, text, error, told):
    with Embedder(package) as embedder, pytest.raises(error, match=told):
        embedder.embed([text])


def test_a_package_of_another_kind_is_refused(tmp_path):
    with pytest.raises(OptionError, match="package 'tiny' embeds no texts: build it with --task embeddings"):
        Embedder(classifier_package(tmp_path / "tiny.sdl").path)


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    source = sentence_model(tmp_path / "sentences.onnx")
    tokenizer = word_tokenizer(tmp_path / "words.json", (*WORDS, "whale"))
    with pytest.raises(ModelError, match="the tokenizer has 9 ids, and the model fails for the last one"):
        build(source, tmp_path / "sentences.sdl", task="embeddings", tokenizer=tokenizer, repeats=1)
    assert not (tmp_path / "sentences.sdl").exists()


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"task": "embeddings"}, OptionError, "expected both, as in --task embeddings --tokenizer"),
        ({"tokenizer": "words.json"}, OptionError, "expected both"),
        ({"task": "poetry", "tokenizer": "words.json"}, OptionError, "unknown task .poetry.: available are"),
        ({"task": "embeddings", "tokenizer": "sentences.onnx"}, ModelError, "is no tokenizer"),
    ],
)
def test_options_that_do_not_go_together_are_refused_before_anything_is_built(tmp_path, options, error, told):
    source = sentence_model(tmp_path / "sentences.onnx")
    word_tokenizer(tmp_path / "words.json")
    given = {key: tmp_path / value if key == "tokenizer" else value for key, value in options.items()}
    with pytest.raises(error, match=told):
        build(source, tmp_path / "sentences.sdl", **given)
