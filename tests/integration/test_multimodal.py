"""From branches in PyTorch, and from folders of CLIP and SigLIP, to packages that are asked and searched."""

from __future__ import annotations

import json

import numpy as np
import pytest

import sanderling as sdl
from sanderling.core.errors import ModelError
from sanderling.model.multimodal import MATCHING, QUESTIONS
from sanderling.model.package import Package
from sanderling.run.branches import Branches
from sanderling.tasks.matching import Matcher
from tests.branched_models import ANSWERS, WORDS, answering_branches, clip_folder, picture, questions_csv

torch = pytest.importorskip("torch")
FACTORY = "tests.branched_models:answering_branches"
QUESTION = "what color is the"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("branches")


@pytest.fixture(scope="module")
def asked(folder):
    return questions_csv(folder / "data")


@pytest.fixture(scope="module")
def built(folder, asked):
    return sdl.build_multimodal(
        FACTORY, folder / "vqa.sdl", task=QUESTIONS, calibration=asked, budget="top1=100", repeats=2, threads=1
    )


def test_each_branch_is_a_package_with_its_own_proof(built):
    spec = built.manifest.multimodal
    assert [(branch.name, branch.modality) for branch in spec.branches] == [
        ("vision", "picture"),
        ("text", "text"),
        ("fusion", "fusion"),
    ]
    for branch in spec.branches:
        each = Package.open(built.path / branch.folder)
        assert {"fp32", "int8"} <= {variant.id for variant in each.manifest.variants}
        assert (built.path / branch.folder / "report.html").is_file()
    assert spec.variants["fp32"] == {"vision": "fp32", "text": "fp32", "fusion": "fp32"}
    assert spec.variants["int8"] == {"vision": "int8", "text": "int8", "fusion": "int8"}
    assert built.manifest.labels == ANSWERS


def test_the_whole_is_judged_by_its_answers_on_pictures_that_were_held_out(built):
    int8 = built.manifest.variant("int8")
    assert int8.accuracy.metric == "top1"
    assert int8.accuracy.samples == 9  # three pictures of twelve, three questions each
    assert "held out" in built.evidence.evaluation_data
    assert int8.within_budget
    assert built.evidence.variants["int8"].again is not None


def test_answers_are_those_of_the_modules(built, folder):
    model = answering_branches()
    seen = picture(folder / "seen.png", seed=99, size=16)
    from PIL import Image

    pixels = torch.from_numpy(np.asarray(Image.open(seen), np.float32).transpose(2, 0, 1)[None] / 255)
    ids = [WORDS.index(word) for word in QUESTION.split()]
    ids = torch.tensor([ids + [0] * (8 - len(ids))])
    with torch.no_grad():
        vision, text, fusion = (branch.module for branch in model.branches)
        expected = torch.softmax(fusion(vision(pixels), text(ids)), 1)[0].numpy()
    from sanderling.tasks.multimodal import Answerer

    with Answerer(built.path, variant="fp32") as answerer:
        answers = answerer.ask(seen, [QUESTION], top=4)[0].answers
    got = {label.index: label.probability for label in answers}
    assert np.allclose([got[index] for index in range(4)], expected, atol=1e-4)


def test_verify_measures_the_answers_again(built, asked):
    result = sdl.verify(built.path, evaluation=asked)
    assert result.passed
    assert any("36 samples" in check.detail for check in result.checks)


def test_ask_prints_one_object(built, folder, sanderling_here):
    seen = picture(folder / "shown.png", seed=3)
    done = sanderling_here("ask", built.path, seen, QUESTION, "is there a red ?", "--top", "2", "--json")
    assert done.code == 0, done.stderr
    assert [answer["question"] for answer in done.answer["answers"]] == [QUESTION, "is there a red ?"]
    assert all(len(answer["answers"]) == 2 for answer in done.answer["answers"])
    assert sanderling_here("ask", built.path, seen, "is it purple").stderr.count("unknown-words") == 1


def test_a_zip_and_weights_of_a_checkpoint_make_the_same_model(built, tmp_path):
    from safetensors.torch import save_file

    model = answering_branches(seed=0)
    state = {
        f"{branch.name}.{key}": value for branch in model.branches for key, value in branch.module.state_dict().items()
    }
    save_file(state, tmp_path / "weights.safetensors")
    result = sdl.build_multimodal(
        FACTORY,
        tmp_path / "vqa.sdl.zip",
        task=QUESTIONS,
        weights=tmp_path / "weights.safetensors",
        factory_arguments={"seed": 5},
        precision="fp32",
        repeats=1,
    )
    assert [event.kind for event in result.evidence.events][:1] == ["no-data"]
    call = built.manifest and Package.open(built.path).golden().call(0)
    with sdl.load(result.path) as zipped, sdl.load(built.path, variant="fp32") as own:
        assert np.allclose(next(iter(zipped.run(call).values())), next(iter(own.run(call).values())), atol=1e-5)


def test_sources_that_are_no_branches_are_refused_and_leave_nothing(refused_here, out, work):
    table = questions_csv(work / "data", pictures=4)
    build = ("build", "-o", out / "x.sdl", "--task", QUESTIONS, "--precision", "fp32", "--repeats", "1")
    for arguments, says in (
        (("nowhere",), "does not exist"),
        (("tests.nowhere:factory",), "cannot be imported"),
        (("tests.branched_models:nothing",), "names no function"),
        (("tests.branched_models:no_model",), "returned a int: expected"),
        (("tests.branched_models:no_branches",), "needs one branch of each of fusion, picture, text: got none"),
        ((FACTORY, "--factory-args", '{"width": 13}'), "'vision' gives"),
        ((FACTORY, "--input", "x=1"), "--input cannot be used with --task"),
        ((FACTORY, "--budget", "map=1"), "give top1=1 or agreement=2"),
        ((FACTORY, "--precision", "fp16"), "branches are built in fp32 and int8"),
        ((FACTORY, "--calibration", work / "none.csv"), "does not exist"),
        ((FACTORY, "--weights", work / "none.safetensors"), "none.safetensors do not exist"),
    ):
        refused_here(*build, *arguments, says=says)
    table.write_text("picture,question,answer\n0.png,what,purple\n")
    refused_here(*build, FACTORY, "--eval", table, says="the answer 'purple', which the model cannot give")


def test_scores_without_an_answer_each_are_refused(refused_here, out):
    arguments = ("build", FACTORY, "-o", out / "x.sdl", "--task", QUESTIONS, "--precision", "fp32", "--repeats", "1")
    refused_here(*arguments, "--factory-args", '{"answers": 7}', says="gives 7 scores: there are 4 answers")


@pytest.mark.parametrize("kind", ["clip", pytest.param("siglip", marks=pytest.mark.drill)])
def test_towers_score_pictures_as_transformers_does(kind, folder, asked, monkeypatch, tmp_path):
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path))
    source = clip_folder(folder / kind, kind)
    package = sdl.build_multimodal(source, folder / f"{kind}.sdl", task=MATCHING, precision="fp32", repeats=1).path
    with Matcher(package) as matcher:
        library = matcher.read(asked.parent)
        found = matcher.match(library, "is there a red ?", top=12)
        pixels = torch.from_numpy(np.concatenate([_pixels(matcher, file) for file in library.files]))
    expected = _scores(transformers, source, pixels, kind)
    got = {match.file: match.score for match in found}
    assert np.allclose([got[str(file)] for file in library.files], expected, atol=1e-5)


def _pixels(matcher, file):
    return matcher._reading.picture(file).feeds()["pixels"]


def _scores(transformers, source, pixels, kind):
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(source / "tokenizer.json")).encode("is there a red ?").ids
    mask = torch.tensor([[1] * len(ids) + [0] * (8 - len(ids))])
    padded = torch.tensor([ids + [0] * (8 - len(ids))])
    model = transformers.AutoModel.from_pretrained(source).eval()
    with torch.no_grad():
        logits = model(
            input_ids=padded, pixel_values=pixels, attention_mask=mask if kind == "clip" else None
        ).logits_per_text[0]
    return (torch.softmax(logits, 0) if kind == "clip" else torch.sigmoid(logits)).numpy()


def test_match_prints_one_object_and_saves_a_page(folder, asked, sanderling_here, out):
    package = folder / "clip.sdl"
    if not package.exists():
        pytest.skip("the package of the test before is missing")
    arguments = ("match", package, asked.parent, "a red", "--top", "3", "--save", out / "found.html", "--json")
    first, again = sanderling_here(*arguments), sanderling_here(*arguments)
    assert (first.answer["computed"], again.answer["computed"]) == (12, 0)
    assert [match["file"] for match in first.answer["matches"]] == [match["file"] for match in again.answer["matches"]]
    assert (out / "found.html").read_text().count("<img") == 3
    assert sanderling_here("match", package, asked.parent, "a", "--save", out / "x.png").code == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("tokenizer.json", "has no tokenizer.json"),
        ("config.json", "has no config.json"),
        ("preprocessor_config.json", "has no preprocessor_config.json"),
        ("model.safetensors", "cannot be loaded"),
    ],
)
def test_a_folder_that_lacks_something_is_refused(folder, tmp_path, change, says):
    import shutil

    source = folder / "clip" if (folder / "clip").exists() else clip_folder(folder / "clip")
    copy = shutil.copytree(source, tmp_path / "clip")
    (copy / change).unlink()
    with pytest.raises(ModelError, match=says):
        sdl.build_multimodal(copy, tmp_path / "x.sdl", task=MATCHING, precision="fp32")
    assert not (tmp_path / "x.sdl").exists()


def test_a_model_of_another_type_is_refused(tmp_path):
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert/config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ModelError, match="type 'bert': available are clip, siglip"):
        sdl.build_multimodal(tmp_path / "bert", tmp_path / "x.sdl", task=MATCHING)


def test_branches_on_different_lanes_run_at_once(built):
    with Branches(Package.open(built.path)) as branches:
        assert {name: session.lane.split("/")[0] for name, session in branches.sessions.items()} == dict.fromkeys(
            branches.sessions, "onnxruntime"
        )
        assert branches.events == []
