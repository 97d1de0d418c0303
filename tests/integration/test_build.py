"""Whole builds of tiny networks, from every kind of source to a package that runs and verifies."""

import json
import re
import subprocess
from html.parser import HTMLParser

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from PIL import Image
from safetensors.torch import save_file

from sanderling.api import build, load, verify
from sanderling.core.errors import ModelError, OptionError, TensorError
from sanderling.measure.verify import VerifyResult
from sanderling.model.package import Package, file_entries, write_manifest
from tests.integration.conftest import COMMAND, TIMEOUT_S, write_samples
from tests.models import (
    conv_classifier,
    make_model,
    random_arrays,
    run_directly,
    save,
    sum_and_difference,
    tensor,
)

NETS = """
import torch


class Small(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, width, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(width)
        self.head = torch.nn.Linear(width, 4)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def small(width=8):
    return Small(width)
"""
VOID_ELEMENTS = {"meta", "br", "hr", "img", "input", "link"}
QUICK = {"repeats": 3}


@pytest.fixture
def nets(work, monkeypatch, forget_modules):  # noqa: ARG001
    (work / "small_nets.py").write_text(NETS)
    monkeypatch.syspath_prepend(str(work))
    import small_nets

    return small_nets


@pytest.fixture
def net(nets):
    """A seeded module with BatchNorm statistics that are not those of a fresh one."""
    torch.manual_seed(3)
    module = nets.small()
    module.norm.running_mean.normal_()
    module.norm.running_var.uniform_(0.5, 2.0)
    return module.eval()


def random_images(count, seed=9):
    return random_arrays({"x": (count, 3, 8, 8)}, seed=seed)["x"]


def top1(scores):
    return scores.argmax(axis=1)


def kinds(result):
    return [event.kind for event in result.evidence.events]


def variant_of(result, identifier):
    return result.manifest.variant(identifier)


# From ONNX


def test_onnx_becomes_three_variants_that_verify(built):
    assert [variant.id for variant in built.manifest.variants] == ["fp32", "fp16", "int8"]
    assert built.manifest.files.keys() == {
        "model.fp32.onnx",
        "model.fp16.onnx",
        "model.int8.onnx",
        "golden.npz",
        "evidence.json",
        "report.html",
    }
    verified = verify(built.path)
    assert verified.passed
    assert [check.name for check in verified.checks] == [
        "hashes",
        "golden vectors, fp32",
        "golden vectors, fp16",
        "golden vectors, int8",
    ]


def test_variants_answer_like_the_source(built):
    images = random_arrays({"image": (5, 3, 8, 8)}, seed=4)
    expected = run_directly(built.path.parent / "classifier.onnx", images)["scores"]

    for variant, tolerance in [("fp32", 1e-4), ("fp16", 1e-2), ("int8", 5e-2)]:
        with load(built.path, variant=variant) as session:
            got = session.run(images)["scores"]
        assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max(), variant


@pytest.mark.parametrize("variant", ["fp32", "fp16", "int8"])
def test_every_variant_is_valid_onnx(built, variant):
    onnx.checker.check_model(str(built.path / f"model.{variant}.onnx"), full_check=True)


def test_int8_weights_are_quantised_per_channel(built):
    graph = onnx.load(built.path / "model.int8.onnx").graph
    scales = {weight.name: list(weight.dims) for weight in graph.initializer if weight.name.endswith("_scale")}

    assert [8] in scales.values()
    assert any(weight.data_type == onnx.TensorProto.INT8 for weight in graph.initializer)


def test_four_ways_to_calibrate_are_tried_and_the_best_is_kept(built):
    tried = built.evidence.quantization.candidates

    assert {candidate.method for candidate in tried} == {"minmax", "percentile", "entropy", "mse"}
    kept = [candidate for candidate in tried if candidate.kept]
    assert [candidate.sqnr_db for candidate in kept] == [max(candidate.sqnr_db for candidate in tried)]


def test_batch_norm_is_fused_and_said_so(built):
    assert "BatchNormalization" in built.evidence.cost_before.operators
    assert "BatchNormalization" not in built.evidence.cost_after.operators
    assert any(record.kept and record.operators.get("BatchNormalization") == -1 for record in built.evidence.passes)


def test_external_data_is_read(work, out):
    onnx.save(conv_classifier(), work / "net.onnx", save_as_external_data=True, location="net.data", size_threshold=0)

    result = build(work / "net.onnx", out / "model.sdl", precision="fp32", **QUICK)

    images = random_arrays({"image": (1, 3, 8, 8)})
    with load(result.path, variant="fp32") as session:
        np.testing.assert_allclose(
            session.run(images)["scores"], run_directly(conv_classifier(), images)["scores"], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize(("dynamic", "shape"), [((), (1, 3, 8, 8)), (("batch",), ("batch", 3, 8, 8))])
def test_batch_is_dynamic_only_when_asked(work, out, dynamic, shape):
    source = save(conv_classifier(batch=1), work / "net.onnx")

    result = build(source, out / "model.sdl", dynamic=dynamic, precision="fp32", **QUICK)

    images = random_arrays({"image": (3, 3, 8, 8)})["image"]
    with load(result.path) as session:
        assert session.inputs[0].shape == shape
        if dynamic:
            rows = np.concatenate([session.run(images[row : row + 1])["scores"] for row in range(3)])
            np.testing.assert_allclose(session.run(images)["scores"], rows, rtol=1e-4, atol=1e-5)
        else:
            with pytest.raises(TensorError, match="axis 0 must be 1"):
                session.run(images)


def test_dynamic_height_and_width_are_fixed_by_the_input_option(work, out):
    shape = ["N", 3, "height", "width"]
    source = save(
        make_model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", shape)], [tensor("y", shape)]),
        work / "n.onnx",
    )

    result = build(source, out / "model.sdl", inputs=["x=1,3,6,7"], precision="fp32", **QUICK)

    assert result.manifest.inputs[0].shape == (1, 3, 6, 7)
    with load(result.path) as session:
        assert session.run(np.ones((1, 3, 6, 7), np.float32))["y"].shape == (1, 3, 6, 7)


def test_old_opset_is_raised_so_that_int8_can_be_made(work, out, calibration):
    source = save(conv_classifier(opset=11), work / "net.onnx")

    result = build(source, out / "model.sdl", calibration=calibration, precision="int8", **QUICK)

    assert [variant.id for variant in result.manifest.variants] == ["fp32", "int8"]
    assert verify(result.path).passed


def test_operators_that_overflow_in_fp16_stay_fp32_and_are_named(work, out):
    weights = {"large": np.float32(1e5), "small": np.float32(1e-5)}
    nodes = [
        helper.make_node("Mul", ["x", "large"], ["much"], "widen"),
        helper.make_node("Mul", ["much", "small"], ["back"], "narrow"),
        helper.make_node("Tanh", ["back"], ["y"], "squash"),
    ]
    source = save(make_model(nodes, [tensor("x", [1, 8])], [tensor("y", [1, 8])], weights), work / "net.onnx")
    np.savez(work / "data.npz", x=random_arrays({"x": (40, 8)})["x"])

    result = build(source, out / "model.sdl", calibration=work / "data.npz", precision="fp16", **QUICK)

    named = [event.subject for event in result.evidence.events if event.kind == "kept-fp32"]
    assert named == list(variant_of(result, "fp16").float_nodes)
    assert "widen" in named
    assert "squash" not in named
    assert variant_of(result, "fp16").accuracy.value > 0.999


# From PyTorch


@pytest.mark.parametrize("dynamic", [(), ("batch",)])
def test_factory_with_safetensors_answers_like_the_module(work, out, net, dynamic):
    save_file(net.state_dict(), work / "net.safetensors")

    result = build(
        "small_nets:small",
        out / "model.sdl",
        weights=work / "net.safetensors",
        inputs=["x=1,3,8,8"],
        dynamic=dynamic,
        precision="fp32",
        **QUICK,
    )

    assert result.manifest.source.format == "torch.module"
    assert result.evidence.export.batch_sizes == ((1, 3) if dynamic else (1,))
    assert result.evidence.export.inputs_tried >= 3
    for count in (1, 5) if dynamic else (1,):
        images = random_images(count)
        with load(result.path, variant="fp32") as session, torch.no_grad():
            (got,) = session.run(images).values()
            np.testing.assert_allclose(got, net(torch.from_numpy(images)).numpy(), rtol=1e-3, atol=1e-5)


def test_factory_takes_arguments_and_a_checkpoint_in_a_training_state(work, out, nets):
    torch.manual_seed(5)
    module = nets.small(width=6).eval()
    torch.save({"state_dict": module.state_dict(), "epoch": 3}, work / "net.pth")

    result = build(
        "small_nets:small",
        out / "model.sdl",
        weights=work / "net.pth",
        factory_arguments={"width": 6},
        inputs=["x=1,3,8,8"],
        precision="fp32",
        **QUICK,
    )

    images = random_images(1)
    with load(result.path) as session, torch.no_grad():
        (got,) = session.run(images).values()
        np.testing.assert_allclose(got, module(torch.from_numpy(images)).numpy(), rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("nets")
def test_factory_without_weights_is_seeded(out):
    options = {"inputs": ["x=1,3,8,8"], "precision": "fp32", **QUICK}
    first, again, other = (
        build("small_nets:small", out / f"{number}.sdl", seed=seed, **options) for number, seed in enumerate((1, 1, 2))
    )

    files = [result.manifest.files["model.fp32.onnx"].sha256 for result in (first, again, other)]
    assert files[0] == files[1]
    assert files[0] != files[2]


def test_export_archive_answers_like_the_module(work, out, net):
    torch.export.save(torch.export.export(net, (torch.zeros(1, 3, 8, 8),)), work / "net.pt2")

    result = build(work / "net.pt2", out / "model.sdl", inputs=["x=1,3,8,8"], precision="fp32", **QUICK)

    assert result.manifest.source.format == "torch.export"
    images = random_images(1)
    with load(result.path) as session, torch.no_grad():
        (got,) = session.run(images).values()
        np.testing.assert_allclose(got, net(torch.from_numpy(images)).numpy(), rtol=1e-3, atol=1e-5)


def test_export_archive_with_a_dynamic_batch_keeps_it_when_asked(work, out, net):
    program = torch.export.export(net, (torch.zeros(2, 3, 8, 8),), dynamic_shapes=({0: torch.export.Dim("n")},))
    torch.export.save(program, work / "net.pt2")

    result = build(
        work / "net.pt2", out / "model.sdl", inputs=["x=1,3,8,8"], dynamic=["batch"], precision="fp32", **QUICK
    )

    assert result.manifest.inputs[0].shape == ("batch", 3, 8, 8)
    with load(result.path) as session:
        (got,) = session.run(random_images(4)).values()
        assert got.shape == (4, 4)


def test_dynamic_batch_of_an_archive_with_a_fixed_one_is_refused(work, out, net):
    torch.export.save(torch.export.export(net, (torch.zeros(1, 3, 8, 8),)), work / "net.pt2")

    with pytest.raises(OptionError, match="exported with a fixed batch"):
        build(work / "net.pt2", out / "model.sdl", inputs=["x=1,3,8,8"], dynamic=["batch"])


def test_archive_with_another_shape_than_the_input_is_refused(work, out, net):
    torch.export.save(torch.export.export(net, (torch.zeros(1, 3, 8, 8),)), work / "net.pt2")

    with pytest.raises((ModelError, OptionError), match="8"):
        build(work / "net.pt2", out / "model.sdl", inputs=["x=1,3,9,9"])
    assert list(out.iterdir()) == []


def test_pickled_module_is_built_when_it_is_trusted(work, out, net):
    torch.save(net, work / "net.pt")

    result = build(
        work / "net.pt", out / "model.sdl", inputs=["x=1,3,8,8"], trust_pickle=True, precision="fp32", **QUICK
    )

    assert result.manifest.source.format == "torch.pickle"
    assert verify(result.path).passed


def test_module_is_exported_in_eval_mode(work, out, nets):
    torch.manual_seed(0)
    module = nets.small().train()
    torch.save(module, work / "net.pt")

    result = build(work / "net.pt", out / "m.sdl", inputs=["x=1,3,8,8"], trust_pickle=True, precision="fp32", **QUICK)

    images = random_images(1)
    with load(result.path) as session, torch.no_grad():
        (got,) = session.run(images).values()
        np.testing.assert_allclose(got, module.eval()(torch.from_numpy(images)).numpy(), rtol=1e-3, atol=1e-5)


# Data of other kinds


def test_model_that_is_no_classifier_is_judged_by_cosine(work, out):
    weights = {"w": random_arrays({"w": (2, 3, 3, 3)})["w"]}
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1, 1, 1, 1])]
    shapes = [tensor("x", [1, 3, 8, 8])], [tensor("y", [1, 2, 8, 8])]
    source = save(make_model(nodes, *shapes, weights), work / "net.onnx")
    np.savez(work / "data.npz", x=random_images(120))

    result = build(source, out / "model.sdl", calibration=work / "data.npz", budget="cosine=0.01", **QUICK)

    accuracy = variant_of(result, "int8").accuracy
    assert accuracy.metric == "cosine"
    assert 0.99 < accuracy.value < 1.0
    assert accuracy.drop == pytest.approx(1 - accuracy.value)
    assert accuracy.drop <= accuracy.drop_upper <= 0.01
    assert accuracy.sqnr_db["y"] > 20
    assert variant_of(result, "int8").within_budget


def test_model_with_two_inputs_is_calibrated_from_one_file(work, out):
    source = save(sum_and_difference(batch=1), work / "net.onnx")
    np.savez(work / "data.npz", **random_arrays({"a": (120, 3), "b": (120, 3)}))

    result = build(source, out / "model.sdl", calibration=work / "data.npz", **QUICK)

    feeds = random_arrays({"a": (1, 3), "b": (1, 3)}, seed=8)
    assert [spec.name for spec in result.manifest.inputs] == ["a", "b"]
    assert set(variant_of(result, "int8").accuracy.cosine) == {"sum", "difference"}
    with load(result.path, variant="int8") as session:
        got = session.run(feeds)
        np.testing.assert_allclose(got["sum"], feeds["a"] + feeds["b"], atol=0.1)
        np.testing.assert_allclose(got["difference"], feeds["a"] - feeds["b"], atol=0.1)


def token_model():
    weights = random_arrays({"table": (50, 16), "w": (16, 16), "head": (16, 6)})
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["embedded"], "embed"),
        helper.make_node("MatMul", ["embedded", "w"], ["mixed"], "mix"),
        helper.make_node("Relu", ["mixed"], ["active"], "relu"),
        helper.make_node("ReduceMean", ["active", "axes"], ["pooled"], "pool", keepdims=0),
        helper.make_node("MatMul", ["pooled", "head"], ["scores"], "head"),
    ]
    weights["axes"] = np.array([1], np.int64)
    return make_model(nodes, [tensor("ids", [1, 12], "int64")], [tensor("scores", [1, 6])], weights)


def test_model_of_int64_tokens_is_built_and_run(work, out):
    source = save(token_model(), work / "net.onnx")
    ids = np.random.default_rng(0).integers(0, 50, (150, 12))
    np.savez(work / "data.npz", ids=ids)

    result = build(source, out / "model.sdl", calibration=work / "data.npz", budget="agreement=20", **QUICK)

    assert [variant.id for variant in result.manifest.variants] == ["fp32", "fp16", "int8"]
    assert result.manifest.inputs[0].dtype == "int64"
    with load(result.path, variant="int8") as session:
        got = session.run(ids[:1])["scores"]
    expected = run_directly(token_model(), {"ids": ids[:1]})["scores"]
    assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()


def test_model_of_tokens_is_built_without_data(work, out):
    result = build(save(token_model(), work / "net.onnx"), out / "model.sdl", **QUICK)

    assert verify(result.path).passed


def test_model_without_data_is_built_without_int8_and_says_why(out, classifier):
    result = build(classifier, out / "model.sdl", **QUICK)

    assert [variant.id for variant in result.manifest.variants] == ["fp32", "fp16"]
    events = {event.kind: event for event in result.evidence.events}
    assert {"no-data", "variant-skipped", "fp16-unproved"} <= events.keys()
    assert events["variant-skipped"].subject == "int8"
    assert "--calibration" in events["variant-skipped"].reason
    assert result.evidence.evaluation_data == "32 random inputs"


@pytest.mark.parametrize(("count", "warned"), [(60, True), (99, True), (100, False)])
def test_fewer_than_100_calibration_samples_are_warned_of(work, out, classifier, count, warned):
    samples = write_samples(work / "data.npz", count)
    evaluation = write_samples(work / "eval.npz", 20, seed=5)

    result = build(classifier, out / "model.sdl", calibration=samples, evaluation=evaluation, **QUICK)

    assert ("few-calibration-samples" in kinds(result)) == warned
    assert result.evidence.quantization.samples == count


def test_held_out_samples_are_no_calibration_samples(built):
    assert re.fullmatch(r"40 samples held out of (.*/)?calibration\.npz", built.evidence.evaluation_data)
    assert built.evidence.quantization.samples == 120
    assert variant_of(built, "int8").accuracy.samples == 40


def test_single_sample_is_measured_on_itself_and_said_so(work, out, classifier):
    result = build(classifier, out / "m.sdl", calibration=write_samples(work / "data.npz", 1), **QUICK)

    assert "not-held-out" in kinds(result)


def test_labels_give_top1_as_counted_by_hand(work, out, classifier):
    images = random_arrays({"image": (50, 3, 8, 8)}, seed=6)
    labels = top1(run_directly(classifier, images)["scores"])
    labels[:10] = (labels[:10] + 1) % 4
    np.savez(work / "eval.npz", labels=labels, **images)

    result = build(classifier, out / "model.sdl", evaluation=work / "eval.npz", precision="fp32", **QUICK)

    accuracy = variant_of(result, "fp32").accuracy
    assert (accuracy.metric, accuracy.value, accuracy.drop, accuracy.samples) == ("top1", 80.0, 0.0, 50)
    verified = verify(result.path, evaluation=work / "eval.npz")
    assert verified.passed
    assert verified.accuracy["fp32"].value == 80.0


def save_picture(path, shade):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (10, 10), (shade, shade // 2, 255 - shade)).save(path)


def test_labels_come_from_folder_names_and_from_a_column(work, out, classifier):
    (work / "labels.txt").write_text("cat\ndog\nbird\nfish\n")
    for index, name in enumerate(["cat", "bird", "bird", "fish"]):
        save_picture(work / "photos" / name / f"{index}.png", 60 * index)
    (work / "table.csv").write_text(
        "path,label\nphotos/cat/0.png,cat\nphotos/bird/1.png,2\nphotos/bird/2.png,bird\nphotos/fish/3.png,fish\n"
    )
    options = {"preprocess": "unit", "labels": str(work / "labels.txt"), "precision": "fp32", **QUICK}

    by_folder = build(classifier, out / "a.sdl", evaluation=work / "photos", **options)
    by_column = build(classifier, out / "b.sdl", evaluation=work / "table.csv", **options)

    assert variant_of(by_folder, "fp32").accuracy.metric == "top1"
    assert variant_of(by_folder, "fp32").accuracy == variant_of(by_column, "fp32").accuracy


def test_picture_is_classified_with_the_packages_own_labels(sanderling, package, work):
    save_picture(work / "one.png", 200)

    done = sanderling("run", package, "one.png", "--top", "3", "--json")

    assert done.code == 0, done.stderr
    (result,) = done.answer["results"]
    assert result["file"] == "one.png"
    assert {label["label"] for label in result["labels"]} < {"cat", "dog", "bird", "fish"}
    chances = [label["probability"] for label in result["labels"]]
    assert len(chances) == 3
    assert chances == sorted(chances, reverse=True)


def test_arrays_go_in_and_out_as_files(sanderling, package, work):
    images = random_arrays({"image": (2, 3, 8, 8)})
    np.save(work / "in.npy", images["image"])

    done = sanderling("run", package, "in.npy", "--variant", "fp32", "--out", "out.npz", "--json")

    assert done.code == 0, done.stderr
    with np.load(work / "out.npz") as written:
        np.testing.assert_allclose(
            written["scores"], run_directly(conv_classifier(), images)["scores"], rtol=1e-4, atol=1e-5
        )


# Budgets


def test_missed_budget_exits_with_1_and_still_writes_the_fp32_package(sanderling, out, classifier, calibration):
    done = sanderling(
        "build",
        classifier,
        "-o",
        out / "model.sdl",
        "--calibration",
        calibration,
        "--budget",
        "agreement=0",
        "--repeats",
        "3",
        "--json",
    )

    assert done.code == 1
    assert done.answer["chosen"] == "fp32"
    assert [variant["within_budget"] for variant in done.answer["variants"]] == [True, False, False]
    assert "misses it" in done.answer["reason"]
    assert verify(out / "model.sdl").passed


def test_missed_default_budget_is_no_failure(sanderling, out, classifier, calibration):
    done = sanderling(
        "build", classifier, "-o", out / "m.sdl", "--calibration", calibration, "--repeats", "3", "--json"
    )

    assert done.code == 0
    assert done.answer["budget"] == {"metric": "agreement", "limit": 5.0}
    assert done.answer["variants"][2]["within_budget"] is False  # 40 samples cannot prove 5 %


def test_budget_is_held_against_the_upper_bound(out, classifier, calibration):
    for limit in (7.0, 7.5):  # no change in 40 samples leaves up to 7.2 %: 1 - 0.05 ** (1 / 40)
        result = build(
            classifier, out / "m.sdl", calibration=calibration, budget=f"agreement={limit}", precision="fp16", **QUICK
        )
        half = variant_of(result, "fp16")
        assert half.accuracy.drop == 0.0
        assert half.accuracy.drop_upper == pytest.approx(100 * (1 - 0.05 ** (1 / 40)), abs=1e-6)
        assert half.within_budget == (limit == 7.5)
        assert result.budget_missed == (limit == 7.0)


def test_chosen_variant_is_inside_the_budget(built):
    assert variant_of(built, built.manifest.chosen).within_budget
    assert built.evidence.choice.startswith(built.manifest.chosen)


def test_fp32_is_made_even_when_only_int8_is_asked_for(out, classifier, calibration):
    result = build(classifier, out / "model.sdl", calibration=calibration, precision="int8", **QUICK)

    assert [variant.id for variant in result.manifest.variants] == ["fp32", "int8"]


# The same again


def build_with_hash_seed(environment, work, seed, *arguments):
    """Build in a process in which sets of strings are ordered by ``seed``."""
    target = work.parent / "out" / f"{seed}" / "model.sdl"
    target.parent.mkdir()
    subprocess.run(
        [str(COMMAND), "build", *map(str, arguments), "-o", str(target), "--repeats", "3"],
        cwd=work,
        env={**environment, "PYTHONHASHSEED": str(seed)},
        check=True,
        capture_output=True,
        timeout=TIMEOUT_S,
    )
    return target


def assert_same_but_for_measurements(first, second):
    assert sorted(path.name for path in first.iterdir()) == sorted(path.name for path in second.iterdir())
    for name in ("model.fp32.onnx", "model.fp16.onnx", "model.int8.onnx", "golden.npz"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), f"{name} differs"
    measured = {"latency_ms", "memory_bytes"}
    manifests = [Package.open(path).manifest for path in (first, second)]
    proofs = [[variant.model_dump(exclude=measured) for variant in manifest.variants] for manifest in manifests]
    assert proofs[0] == proofs[1]
    rest = [manifest.model_dump(exclude={"variants", "chosen", "files"}) for manifest in manifests]
    assert rest[0] == rest[1]


def test_onnx_built_twice_gives_the_same_package(environment, work, classifier, calibration):
    arguments = (classifier, "--calibration", calibration)

    assert_same_but_for_measurements(*(build_with_hash_seed(environment, work, seed, *arguments) for seed in (1, 2)))


def test_module_built_twice_gives_the_same_package(environment, work, out, net):
    save_file(net.state_dict(), work / "net.safetensors")
    np.savez(work / "x.npz", x=random_images(120))
    source, files = "small_nets:small", {"weights": work / "net.safetensors", "calibration": work / "x.npz"}
    arguments = [text for name, path in files.items() for text in (f"--{name}", path)]

    first = build_with_hash_seed(environment, work, 1, source, "--input", "x=1,3,8,8", *arguments)
    second = build(source, out / "model.sdl", inputs=["x=1,3,8,8"], **files, **QUICK)

    assert_same_but_for_measurements(first, second.path)


def test_build_replaces_an_older_package(out, classifier, calibration):
    old = build(classifier, out / "model.sdl", calibration=calibration, **QUICK)
    assert (old.path / "model.int8.onnx").is_file()

    new = build(classifier, out / "model.sdl", precision="fp32", **QUICK)

    assert [path.name for path in out.iterdir()] == ["model.sdl"]
    assert not (new.path / "model.int8.onnx").exists()
    assert verify(new.path).passed


def test_build_leaves_the_source_and_the_data_alone(sanderling, work, out, classifier, calibration):
    before = classifier.read_bytes(), calibration.read_bytes()

    done = sanderling("build", classifier, "-o", out / "m.sdl", "--calibration", calibration, "--repeats", "3")

    assert done.code == 0
    assert (classifier.read_bytes(), calibration.read_bytes()) == before
    assert sorted(path.name for path in work.iterdir()) == ["calibration.npz", "classifier.onnx"]


# What the command prints


def test_json_carries_what_the_issue_says(sanderling, out, classifier, calibration):
    target = out / "model.sdl"
    options = ("--calibration", calibration, "--budget", "agreement=20", "--repeats", "3")

    done = sanderling("build", classifier, "-o", target, *options, "--json")

    assert done.code == 0
    answer = done.answer
    assert answer["package"] == str(target)
    assert answer["chosen"] in {"fp32", "fp16", "int8"}
    assert answer["budget"] == {"metric": "agreement", "limit": 20.0}
    for variant, precision in zip(answer["variants"], ("fp32", "fp16", "int8"), strict=True):
        assert variant["id"] == variant["precision"] == precision
        assert variant["size_bytes"] == (target / f"model.{precision}.onnx").stat().st_size
        assert 0 < variant["latency_ms"]["p50"] <= variant["latency_ms"]["p95"]
        assert variant["accuracy"].keys() >= {"metric", "value", "drop", "drop_upper"}
        assert variant["memory_bytes"] > 0


def test_people_get_a_table_and_the_places_on_stdout(sanderling, out, classifier):
    done = sanderling("build", classifier, "-o", out / "model.sdl", "--repeats", "3")

    assert done.code == 0
    assert re.search(r"^. fp32 .* inside$", done.stdout, re.MULTILINE)
    assert f"package: {out / 'model.sdl'}\n" in done.stdout
    assert f"{out / 'model.sdl' / 'report.html'}\n" in done.stdout


def test_each_note_is_one_line_however_narrow_the_terminal_is_said_to_be(environment, sanderling, out, classifier):
    environment["COLUMNS"] = "40"

    done = sanderling("build", classifier, "-o", out / "model.sdl", "--repeats", "3")

    notes = [line for line in done.stderr.splitlines() if line.startswith("note: ")]
    assert any(line.endswith("(INT8 needs --calibration DIR|FILE.npz)") for line in notes), done.stderr


def test_bench_measures_every_variant(sanderling, package):
    done = sanderling("bench", package, "--repeats", "5", "--batch", "2", "--json")

    assert done.code == 0, done.stderr
    assert [variant["id"] for variant in done.answer["variants"]] == ["fp32", "fp16", "int8"]
    for variant in done.answer["variants"]:
        latency = variant["latency_ms"]
        assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"]
        assert variant["throughput_per_s"] == pytest.approx(2000 / latency["p50"])
        assert variant["memory_bytes"] > 0


@pytest.mark.parametrize("variant", ["fp32", "int8"])
def test_inspect_reads_the_chosen_variant_of_a_package(sanderling_here, package, variant):
    write_manifest(package, Package.open(package).manifest.model_copy(update={"chosen": variant}))

    done = sanderling_here("inspect", package, "--json")

    assert done.code == 0, done.stderr
    assert done.answer["operators"]["Conv"] == 1


# Zip


def test_zip_runs_and_verifies_like_a_folder(sanderling, work, out, classifier, calibration):
    archive, folder = out / "model.sdl.zip", out / "model.sdl"
    for target in (archive, folder):
        build(classifier, target, calibration=calibration, **QUICK)
    np.save(work / "one.npy", random_images(1))

    zipped, plain = (
        sanderling("run", target, "one.npy", "--variant", "int8", "--json") for target in (archive, folder)
    )

    assert (zipped.code, plain.code) == (0, 0), zipped.stderr
    assert zipped.answer["results"][0]["outputs"] == plain.answer["results"][0]["outputs"]
    assert sanderling("verify", archive).code == 0
    assert sorted(path.name for path in out.iterdir()) == ["model.sdl", "model.sdl.zip"]


# Verify


def test_verify_says_yes_with_exit_code_0(sanderling, package):
    done = sanderling("verify", package, "--json")

    assert done.code == 0
    assert VerifyResult.model_validate(done.answer).passed


@pytest.mark.parametrize("name", ["model.fp32.onnx", "model.int8.onnx", "golden.npz", "evidence.json", "report.html"])
def test_verify_says_no_after_a_byte_is_changed(sanderling_here, package, name):
    data = bytearray((package / name).read_bytes())
    data[len(data) // 2] ^= 1
    (package / name).write_bytes(data)

    done = sanderling_here("verify", package, "--json")

    assert done.code == 1
    assert [(check["name"], check["passed"]) for check in done.answer["checks"]] == [("hashes", False)]
    assert name in done.answer["checks"][0]["detail"]


def test_verify_says_no_with_exit_code_1_after_a_byte_is_changed(sanderling, package):
    with (package / "model.int8.onnx").open("r+b") as stream:
        stream.seek(100)
        stream.write(b"\xff\x00\xff")

    done = sanderling("verify", package)

    assert done.code == 1
    assert "FAILED  hashes: file 'model.int8.onnx'" in done.stdout


def test_verify_says_no_when_the_golden_outputs_no_longer_match(sanderling, package):
    save(conv_classifier(seed=1), package / "model.fp32.onnx")
    manifest = Package.open(package, check_files=False).manifest
    write_manifest(package, manifest.model_copy(update={"files": file_entries(package)}))

    done = sanderling("verify", package, "--json")

    assert done.code == 1
    assert {check["name"]: check["passed"] for check in done.answer["checks"]} == {
        "hashes": True,
        "golden vectors, fp32": False,
        "golden vectors, fp16": True,
        "golden vectors, int8": True,
    }


def test_verify_with_data_holds_the_chosen_variant_to_the_budget(work, package):
    manifest = Package.open(package).manifest.model_copy(update={"chosen": "int8"})
    write_manifest(package, manifest)
    few, many = (write_samples(work / f"{count}.npz", count, seed=2) for count in (4, 400))

    unproved, proved = verify(package, evaluation=few), verify(package, evaluation=many)

    assert proved.passed
    assert proved.accuracy["int8"].samples == 400
    assert not unproved.passed  # 4 samples leave a bound of 53 % at best, and the budget is 20 %


# The report


class Page(HTMLParser):
    """Notes the elements of a page, what it loads from elsewhere, and elements that are not closed in order."""

    def __init__(self):
        super().__init__()
        self.elements, self.loads, self.open, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        attributes = dict(attrs)
        self.loads += [attributes[name] for name in ("src", "href", "xlink:href", "data") if name in attributes]
        self.loads += re.findall(r"url\(([^)]*)\)", attributes.get("style") or "")
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID_ELEMENTS:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            self.loads += re.findall(r"url\(([^)]*)\)|@import", data)
        self.text.append(data)


def read_page(path):
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    return page


def test_report_is_one_whole_page_that_loads_nothing(built):
    page = read_page(built.path / "report.html")

    assert page.open == []
    assert page.loads == []
    assert not {"script", "link", "img", "iframe", "object"} & set(page.elements)


def test_report_shows_pictures_and_every_variant_with_its_numbers(built):
    page = read_page(built.path / "report.html")
    text = " ".join(page.text)

    assert page.elements.count("svg") >= 3
    for variant in built.manifest.variants:
        assert variant.id in text
        assert f"{variant.latency_ms.p50:.2f}" in text
    for title in ("Latency against accuracy", "Size on disk", "Where INT8 differs", "simplified and fused"):
        assert title in text


def test_names_in_a_model_are_text_in_its_report(work, out):
    nasty = "</title></svg><script>alert(1)</script>"
    model = conv_classifier()
    for node in model.graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = nasty if name == "relu" else name
    source = save(model, work / "net.onnx")
    np.savez(work / "data.npz", **random_arrays({"image": (110, 3, 8, 8)}))

    result = build(source, out / "<b>net.sdl", calibration=work / "data.npz", **QUICK)

    page = read_page(result.path / "report.html")
    assert page.open == []
    assert "script" not in page.elements
    assert nasty in "".join(page.text)
    assert result.manifest.name == "<b>net"
    assert "<b>net" in " ".join(page.text)


@pytest.mark.parametrize("name", ["manifest.json", "evidence.json", "report.html"])
def test_package_names_no_folder_of_the_user(built, name):
    assert str(built.path.parent) not in (built.path / name).read_text(encoding="utf-8")


def test_evidence_keeps_the_options_the_machine_and_the_conditions(built):
    evidence = json.loads((built.path / "evidence.json").read_text(encoding="utf-8"))

    assert evidence["options"]["calibration"] == "calibration.npz"
    assert evidence["options"]["budget"] == "agreement=20"
    assert evidence["machine"]["versions"]["onnxruntime"]
    for variant in ("fp32", "fp16", "int8"):
        latency = evidence["variants"][variant]["latency"]
        assert (latency["repeats"], len(latency["samples_ms"])) == (5, 5)
