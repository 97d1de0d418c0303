"""`sanderling build --task text-generation`, and the commands on what it makes."""

import hashlib
import json
import shutil

import numpy as np
import pytest

from sanderling.api import build_text, load
from sanderling.core.errors import OptionError
from sanderling.measure.text_inspection import read_text_graph
from sanderling.model.package import Package, rewrite_manifest
from sanderling.run.text.base import GREEDY, Message
from sanderling.run.text.loading import load_model, load_text
from tests.language_models import gguf_file, language_folder

PRECISIONS = ("fp32", "fp16", "int8", "int8-blocks", "int8-residual", "int4")
BUILD = ("build", "--task", "text-generation", "-o", "../out/chat.sdl")

pytest.importorskip("onnxruntime_genai")
pytest.importorskip("transformers")


@pytest.fixture
def tiny(tiny_qwen_package, work):
    return shutil.copytree(tiny_qwen_package, work / "tiny.sdl")


@pytest.mark.timeout(1800)  # the first of them builds the package
def test_smollm2_from_its_gguf_knows_the_capital_of_france(smollm2_package):
    package = Package.open(smollm2_package)
    model = load_model(package, package.variant())
    ids = model.encode(model.render([Message("user", "What is the capital of France?")]))
    generation = model.generation(GREEDY, capacity=len(ids) + 16)
    generation.append(ids)

    answer = []
    while (token := generation.next()) not in model.spec.eos_ids:
        answer.append(token)

    assert model.decode(answer) == "The capital of France is Paris."


@pytest.mark.timeout(1800)
def test_smollm2_in_eight_bits_is_inside_its_budget_and_a_quarter_of_the_size(smollm2_package):
    package = Package.open(smollm2_package)
    evidence = json.loads(package.file("evidence.json").read_text())
    variant = package.variant()

    assert variant.id == "int8"
    assert variant.within_budget
    assert variant.accuracy.drop_upper <= 5
    assert variant.size_bytes < 150e6  # FP32 has 540 MB
    assert package.manifest.source.format == "gguf"
    search = evidence["variants"]["int8"]["search"]
    assert 0 < search["guarded"] < 30
    assert all("down_proj" in product for product in search["order"][:5])


def test_every_precision_keeps_hashes_tokenizer_and_golden_vectors(sanderling, tiny):
    package = Package.open(tiny)

    done = sanderling("verify", tiny, "--json")

    assert done.code == 0, done.stderr
    assert [check["name"] for check in done.answer["checks"]] == [
        "hashes", *(f"golden vectors, {name}" for name in PRECISIONS)
    ]  # fmt: skip
    for name in PRECISIONS:
        assert f"variants/{name}/tokenizer.json" in package.manifest.files
        assert f"variants/{name}/chat_template.jinja" in package.manifest.files
    sizes = [package.variant(name).size_bytes for name in ("fp32", "fp16", "int8", "int4")]
    assert sizes == sorted(sizes, reverse=True)


def test_verify_measures_a_text_again_and_refuses_one_that_is_none(sanderling, tiny, work):
    (work / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 4)
    (work / "binary.txt").write_bytes(b"\xff\xfe\xfa words")

    done = sanderling("verify", tiny, "--eval", "text.txt", "--json")

    assert [check["name"] for check in done.answer["checks"] if "perplexity" in check["name"]] == [
        f"perplexity, {name}" for name in PRECISIONS
    ]
    assert "is not UTF-8" in sanderling("verify", tiny, "--eval", "binary.txt").error


def test_verify_fails_where_a_variant_computes_something_else(sanderling, tiny):
    package = Package.open(tiny)
    data = package.file("variants/int8/model.onnx.data")
    content = bytearray(data.read_bytes())
    content[4096:40960] = bytes(36864)
    data.write_bytes(content)
    entry = package.manifest.files["variants/int8/model.onnx.data"]
    changed = entry.model_copy(update={"sha256": hashlib.sha256(content).hexdigest()})
    files = package.manifest.files | {"variants/int8/model.onnx.data": changed}
    rewrite_manifest(package, package.manifest.model_copy(update={"files": files}), tiny)

    done = sanderling("verify", tiny, "--json")

    assert done.code == 1
    assert [check["name"] for check in done.answer["checks"] if not check["passed"]] == ["golden vectors, int8"]


def test_bench_tells_speeds_perplexity_and_memory(sanderling, tiny, work):
    (work / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 4)

    answer = sanderling("bench", tiny, "--variant", "int8", "--repeats", 20, "--text", "text.txt", "--json").answer

    (variant,) = answer["variants"]
    assert variant["id"] == "int8"
    assert min(variant[key] for key in ("prefill_tokens_per_s", "decode_tokens_per_s", "ttft_ms")) > 0
    assert variant["inter_token_ms"].keys() == {"p50", "p95", "p99"}
    assert variant["perplexity"]["text.txt"] > 1
    assert variant["peak_rss_bytes"] > 10e6


def test_inspect_tells_operators_and_the_language_model(sanderling, tiny):
    answer = sanderling("inspect", tiny, "--json").answer

    assert answer["text"]["architecture"] == "qwen2"
    assert answer["text"]["context_length"] == 512
    assert answer["macs"] > 0
    assert answer["findings"] == []
    assert "qwen2" in sanderling("inspect", tiny).stdout


def test_products_of_every_precision_are_found(tiny):
    package = Package.open(tiny)
    graphs = {variant.id: read_text_graph(package.file(variant.file)) for variant in package.manifest.variants}

    assert graphs.keys() == set(PRECISIONS)
    assert len({graph.parameters for graph in graphs.values()}) == 1
    assert graphs["fp16"].weight_bytes < graphs["fp32"].weight_bytes


@pytest.mark.parametrize(("name", "form"), [("int8-blocks", "blocks-8"), ("int8-residual", "residual-8")])
def test_every_product_is_computed_in_blocks_without_a_search(tiny, name, form):
    measured = json.loads(Package.open(tiny).file("evidence.json").read_text())["variants"][name]

    assert measured["forms"].keys() == {form}
    assert measured["search"] is None
    assert measured["overall"]["percent"] < 1


def test_four_bits_of_a_file_of_four_bits_lose_nothing_more(tmp_path):
    folder = on_levels(language_folder(tmp_path / "llama", "llama"))

    result = build_text(folder, tmp_path / "llama.sdl", precision="fp32,int4", threads=1)

    measured = result.evidence.variants["int4"]
    package = Package.open(result.path)
    four, whole = (read_text_graph(package.file(package.variant(name).file)) for name in ("int4", "fp32"))
    assert measured.forms == {"offsets-4": 10, "blocks-8": 1}
    assert abs(measured.overall.percent) < 0.1
    assert four.parameters == whole.parameters


@pytest.mark.parametrize("command", ["doctor", "bisect --engine onnxruntime", "bench --batch 2"])
def test_commands_for_other_models_refuse_a_language_model(sanderling, tiny, command):
    name, *options = command.split()

    assert "a language model" in sanderling(name, tiny, *options).error


def test_load_refuses_a_language_model(tiny):
    with pytest.raises(OptionError, match="is a language model"):
        load(tiny)


def test_a_report_says_what_was_chosen_and_measured(tiny):
    report = Package.open(tiny).file("report.html").read_text()

    for told in (
        "A language model, built from",
        "Perplexity by text",
        "How the products of int8 were chosen",
        "PyTorch",
    ):
        assert told in report


def test_a_gemma_reads_texts_from_their_beginning_and_more_than_its_window(tmp_path):
    folder = language_folder(tmp_path / "gemma", "gemma3_text")
    path = build_text(folder, tmp_path / "gemma.sdl", precision="int8", threads=1).path
    package = Package.open(path)
    model = load_model(package, package.variant())
    spec = package.manifest.text

    ids = model.encode("the quick brown fox " * 6)
    assert spec.adds_bos
    assert ids[0] == spec.bos_id != ids[1]
    assert len(ids) > 32
    assert model.encode(f"<bos>{model.decode(ids)}") == ids
    generation = model.generation(capacity=len(ids) + 1)  # fewer than the window would have
    generation.append(ids)
    assert np.isfinite(generation.logits()).all()
    proof = json.loads(package.file("evidence.json").read_text())["proof"]
    assert proof["relative_error"] < 1e-5


def test_a_zip_is_built_and_generates(tmp_path):
    folder = language_folder(tmp_path / "llama", "llama")
    result = build_text(folder, tmp_path / "llama.sdl.zip", precision="int4", budget="perplexity=3", threads=1)

    session = load_text(result.path)

    assert result.manifest.budget.limit == 3
    assert result.evidence.variants["int4"].search is not None
    assert session is not None
    session.close()


def on_levels(folder):
    """The same model, its products' weights as a GGUF file of the kind Q4_1 holds them."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize, quantize
    from safetensors.numpy import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, weight in tensors.items():
        if "_proj" in name:
            codes = quantize(weight.astype(np.float32), GGMLQuantizationType.Q4_1)
            tensors[name] = dequantize(codes, GGMLQuantizationType.Q4_1)
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


def cut_short(work):
    whole = gguf_file(work / "whole.gguf")
    (work / "cut.gguf").write_bytes(whole.read_bytes()[:-600])
    return "cut.gguf"


def pickled(work):
    folder = work / "pickled"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (folder / "pytorch_model.bin").write_bytes(b"x")
    return folder.name


def configured(text):
    def folder(work):
        (work / "folder").mkdir()
        (work / "folder" / "config.json").write_text(text)
        return "folder"

    return folder


def file_of(data):
    def file(work):
        (work / "file.gguf").write_bytes(data)
        return "file.gguf"

    return file


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (lambda _: "nowhere", ["nowhere", "does not exist"]),
        (cut_short, ["cut.gguf", "cut short"]),
        (file_of(b""), ["is no GGUF file"]),
        (file_of(b"GGUF\x03\0\0\0"), ["cut short"]),
        (lambda work: gguf_file(work / "m.gguf", architecture="mamba").name, ["'mamba'", "available are llama"]),
        (lambda work: gguf_file(work / "m.gguf", tokens=9).name, ["does not match the model", "9 tokens"]),
        (pickled, ["only pickled weights", "expected *.safetensors"]),
        (configured("{"), ["is no JSON"]),
        (configured("[]"), ["is no JSON object"]),
        (configured('{"architectures": ["Mamba"]}'), ["Mamba", "available are LlamaForCausalLM"]),
        (configured('{"architectures": ["LlamaForCausalLM"]}'), ["has no weights"]),
        (
            configured('{"architectures": ["LlamaForCausalLM"], "quantization_config": {"bits": 4}}'),
            ["is quantised already"],
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
def test_a_source_that_cannot_be_built_is_refused(refused, work, source, says):
    refused(*BUILD, source(work), says=says)


def test_a_tokenizer_that_does_not_match_the_vocabulary_is_refused(refused, work):
    language_folder(work / "folder", extra_tokens=100)

    refused(*BUILD, "folder", says=["folder: the tokenizer does not match the model", "the vocabulary has 320 entries"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--budget", "top1=1"), "give perplexity=5"),
        (("--precision", "int2"), "available are fp32, fp16, int8, int8-blocks, int8-residual, int4, gguf, openvino"),
        (("--labels", "imagenet"), "--labels cannot be used with --task text-generation"),
        (("--eval", "nowhere.txt"), "text nowhere.txt cannot be read"),
    ],
)
def test_options_that_mean_nothing_are_refused(refused, options, says):
    refused(*BUILD, "folder", *options, says=says)
