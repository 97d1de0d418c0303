"""What is wrong with branches is told before anything is exported."""

import dataclasses

import pytest

from sanderling.core.errors import ModelError, WeightsError
from sanderling.core.files import sha256_of
from sanderling.model.multimodal import QUESTIONS
from tests.branched_models import WORDS, answering_branches

torch = pytest.importorskip("torch")

from sanderling.workshop.multimodal.branches import check_model  # noqa: E402 - it needs torch's modules
from sanderling.workshop.multimodal.options import MultimodalBuildOptions  # noqa: E402
from sanderling.workshop.multimodal.source import load_model, try_branches, write_tokenizer  # noqa: E402

FACTORY = "tests.branched_models:answering_branches"


def changed(branch: int, **fields):
    model = answering_branches()
    branches = list(model.branches)
    branches[branch] = dataclasses.replace(branches[branch], **fields)
    return dataclasses.replace(model, branches=tuple(branches))


def test_branches_that_fit_are_taken():
    try_branches(answering_branches(), "x")


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        (lambda: answering_branches(width=13), "branch 'vision' gives vision: float32"),
        (lambda: answering_branches(answers=7), "gives 7 scores: there are 4 answers"),
        (lambda: changed(0, inputs=("pixels=1,1,16,16",)), "branch 'vision' does not run on pixels"),
        (lambda: changed(0, module=torch.nn.Identity()), "returns torch.float32"),
        (lambda: changed(2, takes={"picture": "vision", "question": "audio"}), "takes from 'audio'"),
        (lambda: changed(2, takes={"picture": "vision"}), "it takes picture"),
    ],
)
def test_what_does_not_fit_is_told(model, fault):
    with pytest.raises(ModelError, match=fault):
        try_branches(model(), "x")


@pytest.mark.parametrize(
    ("branch", "fields", "fault"),
    [(0, {"preprocess": None}, "no preprocess"), (1, {"tokenizer": None}, "no tokenizer")],
)
def test_a_branch_without_what_its_kind_needs_is_refused(branch, fields, fault):
    with pytest.raises(ModelError, match=fault):
        check_model(changed(branch, **fields), QUESTIONS, "x")


def test_a_list_of_words_becomes_a_tokenizer(tmp_path):
    from sanderling.run.text.tokenizer import read_tokenizer

    branch = answering_branches().branches[1]
    spec = write_tokenizer(branch, 8, tmp_path, "words.json")
    tokenizer = read_tokenizer(tmp_path / spec.file)
    assert (spec.longest, spec.unknown, spec.lower) == (8, 1, True)
    assert [WORDS[token] for token in tokenizer.encode("is there a red??").ids] == ["is", "there", "a", "red", "?", "?"]
    before = sha256_of(tmp_path / "words.json")
    write_tokenizer(branch, 8, tmp_path, "words.json")
    assert sha256_of(tmp_path / "words.json") == before


@pytest.mark.parametrize("words", [("a",), ("a", "b", "a")])
def test_words_that_are_no_vocabulary_are_refused(tmp_path, words):
    branch = dataclasses.replace(answering_branches().branches[1], tokenizer=words)
    with pytest.raises(ModelError, match="distinct words"):
        write_tokenizer(branch, 8, tmp_path, "words.json")


def test_a_checkpoint_with_strange_or_missing_keys_is_refused(tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "w.safetensors"
    options = MultimodalBuildOptions(FACTORY, tmp_path / "x.sdl", QUESTIONS, weights=path)
    save_file({"audio.weight": torch.zeros(1)}, path)
    with pytest.raises(WeightsError, match=r"the key 'audio\.weight'"):
        load_model(options)
    save_file({"vision.0.weight": torch.zeros(1)}, path)
    with pytest.raises(WeightsError, match="of branch 'vision' do not fit"):
        load_model(options)
