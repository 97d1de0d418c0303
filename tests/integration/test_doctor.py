"""Seeded faults, each found by its name; and healthy models, in which nothing is found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import sanderling
from sanderling.api import build
from sanderling.measure.doctor import operators
from tests.models import conv_classifier, make_model, save, tensor
from tests.pictures import MEAN, STD, color_classifier, imagenet, smooth_pictures, tinted_pictures

PICTURES = smooth_pictures(160)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A classifier of pictures, made for ImageNet's normalisation, with three variants."""
    folder = tmp_path_factory.mktemp("doctor")
    np.savez(folder / "pictures.npz", image=PICTURES)
    source = save(conv_classifier(size=32), folder / "net.onnx")
    preprocess = json.dumps({"mean": MEAN.tolist(), "std": STD.tolist(), "resize": "none"}, default=float)
    options = {"calibration": folder / "pictures.npz", "preprocess": preprocess, "repeats": 2}
    return build(source, folder / "net.sdl", budget="agreement=100", **options).path


@pytest.fixture(autouse=True)
def _two_engines(monkeypatch):
    """Every installed engine is asked in a process of its own; two are enough here."""
    monkeypatch.setattr(operators, "engine_names", lambda: ("null", "onnxruntime", "openvino"))


@pytest.fixture
def captured(tmp_path):
    """Write what an application fed, and return the file."""

    def write(values: np.ndarray, **arrays: np.ndarray) -> Path:
        np.savez(tmp_path / "captured.npz", image=np.ascontiguousarray(values, np.float32), **arrays)
        return tmp_path / "captured.npz"

    return write


def faults(found: sanderling.measure.doctor.Diagnosis) -> set[str]:
    return {finding.kind for finding in found.findings if finding.severity == "fault"}


def levels() -> np.ndarray:
    """0 … 1, shape (N, H, W, 3)."""
    return PICTURES.astype(np.float32) / np.float32(255)


def first(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array.transpose(0, 3, 1, 2))


def test_right_inputs_have_no_fault(package, captured):
    found = sanderling.doctor(package, data=captured(imagenet(PICTURES)))
    assert found.healthy
    assert faults(found) == set()


def test_channels_swapped_before_the_normalisation_are_found(package, captured):
    found = sanderling.doctor(package, data=captured(imagenet(PICTURES[..., ::-1])))
    assert faults(found) == {"input-channel-order"}
    assert "with their channels reversed" in found.named("input-channel-order")[0].evidence


def test_channels_swapped_after_the_normalisation_are_found(package, captured):
    found = sanderling.doctor(package, data=captured(imagenet(PICTURES)[:, ::-1]))
    assert faults(found) == {"input-channel-order"}
    assert "opposite order" in found.named("input-channel-order")[0].evidence


def test_swapped_channels_of_other_pictures_are_found_by_labels(tmp_path, captured):
    pictures, labels = tinted_pictures(90)
    model = save(color_classifier(), tmp_path / "colors.onnx")
    right = sanderling.doctor(model, data=captured(imagenet(pictures), labels=labels), preprocess="imagenet")
    assert faults(right) == set()
    swapped = captured(imagenet(pictures[..., ::-1]), labels=labels)
    found = sanderling.doctor(model, data=swapped, preprocess="imagenet")
    assert faults(found) == {"input-channel-order"}
    assert found.findings[0].numbers["top1_other"] > found.findings[0].numbers["top1"] + 0.5


def test_missing_division_by_255_is_found(package, captured):
    for values in (255 * levels(), (255 * levels() - MEAN) / STD):
        found = sanderling.doctor(package, data=captured(first(values)))
        assert faults(found) == {"input-scale"}
        assert "the division by 255 is missing" in found.named("input-scale")[0].evidence


def test_division_by_255_done_twice_is_found(package, captured):
    found = sanderling.doctor(package, data=captured(first((levels() / 255 - MEAN) / STD)))
    assert faults(found) == {"input-scale"}
    assert "twice" in found.named("input-scale")[0].evidence


def test_missing_division_is_found_in_pictures_resampled_in_float(package, captured):
    blurred = (levels() + np.roll(levels(), 1, axis=1)) / 2 * np.float32(0.999)
    found = sanderling.doctor(package, data=captured(first((255 * blurred - MEAN) / STD)))
    assert faults(found) == {"input-scale"}


def test_nhwc_array_for_an_nchw_model_is_found(package, captured):
    found = sanderling.doctor(package, data=captured((levels() - MEAN) / STD))
    assert faults(found) == {"input-layout"}
    assert "the data is NHWC" in found.named("input-layout")[0].evidence


def test_nhwc_memory_called_nchw_is_found(package, captured):
    values = (levels() - MEAN) / STD
    found = sanderling.doctor(package, data=captured(values.reshape(len(values), 3, 32, 32)))
    assert faults(found) == {"input-layout"}
    assert "put in as NHWC and called NCHW" in found.named("input-layout")[0].evidence


@pytest.mark.parametrize(
    ("mean", "std", "says"),
    [
        ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), "'unit 0…1'"),
        ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "'signed -1…1'"),
        ((0.4, 0.456, 0.406), STD, "mean (0.4, 0.456, 0.406)"),
    ],
)
def test_wrong_mean_is_found_with_the_mean_that_was_used(package, captured, mean, std, says):
    values = (levels() - np.float32(mean)) / np.float32(std)
    found = sanderling.doctor(package, data=captured(first(values)))
    assert faults(found) == {"input-normalization"}
    assert says in found.named("input-normalization")[0].evidence


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"color": "bgr"}, "input-channel-order"),
        ({"scale": 1.0}, "input-scale"),
        ({"mean": (0.0, 0.0, 0.0)}, "input-normalization"),
    ],
)
def test_preprocessing_of_an_application_is_compared_with_the_packages(package, change, kind):
    own = sanderling.model.package.Package.open(package).manifest.preprocessing
    given = own.model_copy(update=change).model_dump_json()
    assert faults(sanderling.doctor(package, preprocess=given)) == {kind}


def wide(scale: float) -> onnx.ModelProto:
    """Two matrix products; the inner tensor grows with ``scale``."""
    generator = np.random.default_rng(0)
    weights = {name: generator.standard_normal((4, 4)).astype(np.float32) for name in ("first_w", "second_w")}
    nodes = [
        helper.make_node("MatMul", ["x", "first_w"], ["h"], "first"),
        helper.make_node("MatMul", ["h", "second_w"], ["y"], "second"),
    ]
    weights["first_w"] *= np.float32(scale)
    weights["second_w"] *= np.float32(1 / scale)
    return make_model(nodes, [tensor("x", ["N", 4])], [tensor("y", ["N", 4])], weights)


def test_values_beyond_fp16_are_found(tmp_path):
    model = save(wide(300.0), tmp_path / "wide.onnx")
    np.savez(tmp_path / "large.npz", x=np.full((30, 4), 1000, np.float32))
    np.savez(tmp_path / "small.npz", x=np.ones((30, 4), np.float32))
    warned = sanderling.doctor(model, data=tmp_path / "large.npz")
    assert warned.healthy  # right in FP32
    assert {finding.subject for finding in warned.named("fp16-overflow")} == {"first", "second"}
    assert sanderling.doctor(model, data=tmp_path / "small.npz").named("fp16-overflow") == []
    assert "fp16-overflow" in faults(sanderling.doctor(model, data=tmp_path / "large.npz", targets=["ascend"]))


def test_fp16_variant_that_overflows_on_new_data_has_a_fault(tmp_path):
    model = save(wide(300.0), tmp_path / "wide.onnx")
    for name, value in (("small", 1), ("large", 1000)):
        np.savez(tmp_path / f"{name}.npz", x=np.full((30, 4), value, np.float32) + np.arange(30)[:, None] / 64)
        np.savez(tmp_path / f"{name}.npz", x=np.float32(np.full((30, 4), value) + np.arange(30)[:, None] / 64))
    made = build(model, tmp_path / "m.sdl", calibration=tmp_path / "small.npz", precision="fp32,fp16", repeats=2)
    assert faults(sanderling.doctor(made.path, data=tmp_path / "small.npz")) == set()
    assert "fp16-overflow" in faults(sanderling.doctor(made.path, data=tmp_path / "large.npz"))


def transformer(epsilon: float = 1e-12, *, decomposed: bool = False) -> onnx.ModelProto:
    """One block as MiniLM's: ids and mask to (1, 8, 16), a mask of float32's lowest number, LayerNorm, Gelu by Erf."""
    generator = np.random.default_rng(0)
    weights = {
        name: (generator.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        for name, shape in {"table": (30, 16), "q": (16, 16), "k": (16, 16), "v": (16, 16), "up": (16, 32)}.items()
    }
    weights |= {"one": np.float32([1]), "low": np.float32([np.finfo(np.float32).min]), "epsilon": np.float32(epsilon)}
    weights |= {"scale": np.ones(16, np.float32), "shift": np.zeros(16, np.float32)}
    node = helper.make_node
    if decomposed:
        norm = [
            node("ReduceMean", ["sum"], ["mean"], "mean", keepdims=1),
            node("Sub", ["sum", "mean"], ["centred"], "centre"),
            node("Mul", ["centred", "centred"], ["square"], "square"),
            node("ReduceMean", ["square"], ["variance"], "variance", keepdims=1),
            node("Add", ["variance", "epsilon"], ["safe"], "norm"),
            node("Sqrt", ["safe"], ["deviation"], "root"),
            node("Div", ["centred", "deviation"], ["normed"], "divide"),
        ]
    else:
        norm = [node("LayerNormalization", ["sum", "scale", "shift"], ["normed"], "norm", epsilon=epsilon)]
    nodes = [
        node("Gather", ["table", "ids"], ["embedded"], "embed"),
        *(node("MatMul", ["embedded", name], [f"{name}_out"], f"project_{name}") for name in "qkv"),
        node("Transpose", ["k_out"], ["k_turned"], "turn", perm=[0, 2, 1]),
        node("MatMul", ["q_out", "k_turned"], ["scores"], "compare"),
        node("Cast", ["mask"], ["mask_float"], "cast", to=onnx.TensorProto.FLOAT),
        node("Sub", ["one", "mask_float"], ["hidden"], "invert"),
        node("Mul", ["hidden", "low"], ["bias"], "forbid"),
        node("Add", ["scores", "bias"], ["masked"], "add_mask"),
        node("Softmax", ["masked"], ["attention"], "attend", axis=-1),
        node("MatMul", ["attention", "v_out"], ["context"], "mix"),
        node("Add", ["embedded", "context"], ["sum"], "residual"),
        *norm,
        node("MatMul", ["normed", "up"], ["wide"], "feed"),
        node("Erf", ["wide"], ["y"], "gelu"),
    ]
    inputs = [tensor("ids", [1, 8], "int64"), tensor("mask", [1, 8], "int64")]
    return make_model(nodes, inputs, [tensor("y", [1, 8, 32])], weights)


@pytest.mark.parametrize("decomposed", [False, True])
def test_tiny_epsilon_is_found(tmp_path, decomposed):
    model = save(transformer(1e-12, decomposed=decomposed), tmp_path / "block.onnx")
    found = sanderling.doctor(model)
    (finding,) = found.named("fp16-epsilon")
    assert (finding.subject, finding.severity) == ("norm", "warning")
    assert finding.numbers["epsilon"] == pytest.approx(1e-12)
    assert "fp16-epsilon" in faults(sanderling.doctor(model, targets=["ascend"]))
    save(transformer(1e-3, decomposed=decomposed), model)
    assert sanderling.doctor(model).named("fp16-epsilon") == []


def test_transformer_as_minilm_has_no_fault(tmp_path):
    made = build(save(transformer(), tmp_path / "block.onnx"), tmp_path / "block.sdl", repeats=2)
    found = sanderling.doctor(made.path)
    assert faults(found) == set()
    assert found.healthy


def damaged(model: onnx.ModelProto, name: str, change) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    weight = next(entry for entry in copy.graph.initializer if entry.name == name)
    array = numpy_helper.to_array(weight).copy()
    change(array)
    weight.CopyFrom(numpy_helper.from_array(array, name))
    return copy


def flip_exponent(array: np.ndarray) -> None:
    array.reshape(-1).view(np.uint32)[5] ^= 1 << 30


def zero_channel(array: np.ndarray) -> None:
    array[2] = 0


def noise(array: np.ndarray) -> None:
    array[:] = np.random.default_rng(9).standard_normal(array.shape) * 0.3


@pytest.mark.parametrize("change", [flip_exponent, zero_channel, noise])
def test_damaged_weights_are_named_against_the_original(tmp_path, change):
    whole = save(conv_classifier(), tmp_path / "whole.onnx")
    broken = save(damaged(conv_classifier(), "conv_weight", change), tmp_path / "broken.onnx")
    found = sanderling.doctor(broken, against=whole)
    (finding,) = found.named("weights-differ")
    assert (finding.severity, finding.subject) == ("fault", "conv_weight")
    assert found.named("layer-diverges")[0].subject == "conv"
    assert sanderling.doctor(whole, against=whole).named("weights-differ") == []


def test_flipped_bit_is_found_without_an_original(tmp_path):
    broken = save(damaged(conv_classifier(), "conv_weight", flip_exponent), tmp_path / "broken.onnx")
    (finding,) = sanderling.doctor(broken).named("weights-corrupt")
    assert "conv_weight" in finding.subject
    assert finding.severity == "fault"


def test_damaged_weight_in_a_package_is_named(package, tmp_path):
    copy = Path(shutil.copytree(package, tmp_path / "net.sdl"))
    file = copy / "model.fp32.onnx"
    model = onnx.load(file)
    name = next(node.input[1] for node in model.graph.node if node.op_type == "Conv")
    save(damaged(model, name, noise), file)
    found = sanderling.doctor(copy)
    assert {"file-changed", "golden-differs", "weights-differ"} <= faults(found)
    assert [finding.subject for finding in found.named("weights-differ")] == [name]


def test_another_training_is_no_damage(tmp_path):
    one, two = (save(conv_classifier(seed=seed), tmp_path / f"{seed}.onnx") for seed in (1, 2))
    found = sanderling.doctor(one, against=two)
    assert [finding.severity for finding in found.named("weights-differ")] == ["warning"]


def test_data_beyond_int8_ranges_asks_for_another_calibration(tmp_path):
    usual = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
    for name, factor in (("usual", 1), ("large", 4)):
        np.savez(tmp_path / f"{name}.npz", x=np.float32(factor) * usual)
    model = save(wide(1.0), tmp_path / "net.onnx")
    made = build(model, tmp_path / "net.sdl", calibration=tmp_path / "usual.npz", budget="cosine=1", repeats=2)
    assert sanderling.doctor(made.path, data=tmp_path / "usual.npz").named("recalibrate") == []
    (found,) = sanderling.doctor(made.path, data=tmp_path / "large.npz").named("recalibrate")
    assert found.severity == "warning"
    assert found.numbers["share"] > 0.2
    assert sanderling.doctor(made.path, data=tmp_path / "large.npz").named("input-unlike-golden")


def test_leaking_session_is_found_with_the_line_that_opened_it(package):
    kept = []
    with sanderling.leaks() as watch:
        with sanderling.load(package) as closed:
            closed.run(imagenet(PICTURES[:1]))
        kept += [sanderling.load(package, variant="fp32") for _ in range(3)]
    (finding,) = [finding for finding in watch.findings if finding.kind == "session-leak"]
    assert finding.numbers["sessions"] == 3
    assert finding.subject == "net/fp32 on onnxruntime"
    assert __file__ in finding.evidence
    for session in kept:
        session.close()
    with sanderling.leaks() as watch, sanderling.load(package) as session:
        session.run(imagenet(PICTURES[:1]))
    assert watch.findings == ()


def test_load_and_unload_cycles_do_not_grow(package):
    found = sanderling.doctor(package, cycles=12)
    assert found.named("memory-growth") == []
    assert any(check.name == "cycles on onnxruntime" and "does not grow" in check.detail for check in found.checks)


def test_operators_without_a_parser_are_named_for_the_target(package):
    found = sanderling.doctor(package / "model.int8.onnx", targets=["ascend"])
    (entry,) = [entry for entry in found.operators if entry.target == "ascend"]
    assert {"QuantizeLinear", "DequantizeLinear"} <= entry.refused.keys()
    assert "operators-refused" in faults(found)


def test_engine_is_compared_layer_by_layer(package):
    found = sanderling.doctor(package, engines=["openvino"])
    assert any(check.name == "layers on openvino" and check.ran for check in found.checks)
    assert found.healthy


def test_command_prints_findings_and_exits_1_on_a_fault(sanderling_here, package, captured):
    healthy = sanderling_here("doctor", package, "--data", captured(imagenet(PICTURES)), "--json")
    assert (healthy.code, healthy.answer["healthy"]) == (0, True)
    sick = sanderling_here("doctor", package, "--data", captured(255 * imagenet(PICTURES)))
    assert sick.code == 1
    assert "input-scale" in sick.stdout


def test_bad_input_is_refused_in_one_line(refused, package, work):
    np.savez(work / "other.npz", image=np.zeros((4, 5), np.float32))
    np.savez(work / "nan.npz", image=np.full((4, 3, 32, 32), np.nan, np.float32))
    (work / "cut.onnx").write_bytes((package / "model.fp32.onnx").read_bytes()[:200])
    refused("doctor", package, "--target", "abacus", says="unknown target 'abacus': available are ascend")
    refused("doctor", package, "--cycles", "2", says="--cycles 2 is too few")
    refused("doctor", package, "--preprocess", "sepia", says="'sepia' is neither a preset")
    refused("doctor", package, "--data", work / "none.npz", says="does not exist")
    refused("doctor", package, "--data", work / "other.npz", says="expected 4 axes")
    refused("doctor", package, "--data", work / "nan.npz", says="NaN or infinite")
    refused("doctor", package, "--against", work / "none.onnx", says="does not exist")
    refused("doctor", work / "none.onnx", says="does not exist")
    refused("doctor", work / "cut.onnx", says="cut short")
    refused("doctor", work / "none.sdl", says="does not exist")
