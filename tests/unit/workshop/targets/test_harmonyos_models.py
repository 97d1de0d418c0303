"""A package's variants as `.ms`, executed by MindSpore Lite's own runtime; skipped where it cannot be installed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from sanderling.api import build
from sanderling.core.errors import ModelError, OptionError, UnavailableError
from sanderling.core.progress import Silent
from sanderling.core.statistics import relative_error
from sanderling.core.tensor import TensorSpec
from sanderling.model.lowering import drop_unread
from sanderling.model.package import Package
from sanderling.run.mindspore_lite import library
from sanderling.workshop.targets.harmonyos import models
from sanderling.workshop.targets.harmonyos.models import export_models, exportable_variants, read_batches
from sanderling.workshop.targets.ms.checking import refusals
from sanderling.workshop.targets.ms.converter import find_converter
from sanderling.workshop.targets.ms.quantization import kept_weights, own_activations, own_weights
from sanderling.workshop.targets.ms.reader import describe, read
from sanderling.workshop.targets.ms.running import opened
from sanderling.workshop.targets.ms.writing import write_float, write_int8
from tests.installing import install_mindspore
from tests.models import conv_classifier, make_model, random_arrays, run_directly, save, tensor
from tests.quantized import in_int8, step_of
from tests.samples import write_samples
from tests.unit.run.litert.cases import EXACT
from tests.unit.run.litert.test_operators import feeds_for

IMAGE = {"image": (1, 3, 8, 8)}


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    reason = install_mindspore()
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Package:
    """A small classifier with a dynamic number of rows, in FP32, FP16 and INT8."""
    folder = tmp_path_factory.mktemp("package")
    source = save(conv_classifier(size=16), folder / "classifier.onnx")
    samples = write_samples(folder / "calibration.npz", size=16)
    arguments = {"calibration": samples, "budget": "agreement=100", "repeats": 5}
    return Package.open(build(source, folder / "small.sdl", **arguments).path)


@pytest.fixture(scope="module")
def exported(package, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    return folder, export_models(package, folder, progress=Silent(), batches=(2,))


def run(file: Path, outputs: list[TensorSpec], feeds: dict[str, np.ndarray]):
    with opened(file, outputs) as runtime:
        return runtime.run(feeds)


def scores(dtype="float32"):
    return [TensorSpec(name="scores", dtype=dtype, shape=(1, 4))]


def test_every_variant_becomes_a_file(exported):
    folder, made = exported
    names = ["fp32.ms", "fp16.ms", "int8.ms"]
    assert [model.file for model in made.models] == names == list(made.files)
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    assert all(model.description.inputs[0].shape == (2, 3, 16, 16) for model in made.models)


def test_every_number_of_rows_has_a_file(package, tmp_path, monkeypatch):
    converter = find_converter()
    monkeypatch.setattr(models, "find_converter", lambda: converter)
    monkeypatch.setattr(library, "state", lambda: library.State(False))  # writes, and runs nothing
    made = export_models(package, tmp_path, progress=Silent(), variants=["int8"], batches=(1, 3))
    assert [(model.file, model.batch) for model in made.models] == [("int8.ms", 1), ("int8.b3.ms", 3)]
    assert [model.description.inputs[0].shape[0] for model in made.models] == [1, 3]


def test_all_proofs_hold_and_name_the_runtime(exported):
    _, made = exported
    assert all(proof.passed for proof in made.proofs)
    assert sum("golden calls" in proof.what and "MindSpore Lite 2.0.0" in proof.on for proof in made.proofs) == 3
    assert sum("eight-bit weights" in proof.what and proof.value == 1.0 for proof in made.proofs) == 2


def test_files_can_be_resized_to_other_numbers_of_rows(exported):
    _, made = exported
    assert all(model.resizable for model in made.models)


def test_precisions_are_what_the_files_hold(exported):
    _, made = exported
    held = {model.file: model.description for model in made.models}
    assert set(held["fp32.ms"].weight_bytes) <= {"float32", "int32"}
    assert held["fp16.ms"].weight_bytes["float16"] > 0
    assert held["int8.ms"].weight_bytes["int8"] == 8 * 27 + 4 * 8
    assert (held["fp32.ms"].quantized_share, held["int8.ms"].quantized_share) == (0.0, 0.8)  # the mean is float


def test_record_says_what_the_module_needs(exported):
    _, made = exported
    told = made.models[0].to_json()
    assert told["variant"] == told["precision"] == "fp32"
    assert (told["format"], told["batch"], told["resizable"], told["channelsLast"]) == ("ms", 2, True, [])
    assert told["inputs"] == [{"name": "image", "dtype": "float32", "shape": [2, 3, 16, 16]}]


def test_failing_runtime_is_a_failed_proof(package, tmp_path, monkeypatch):
    other = replace(package, manifest=package.manifest.model_copy(update={"golden": _strict(package)}))
    monkeypatch.setattr(models, "write_int8", lambda graph, *rest: write_int8(_disturbed(graph), *rest))
    made = export_models(other, tmp_path, progress=Silent(), variants=["int8"])
    assert {proof.passed for proof in made.proofs if "golden calls" in proof.what} == {False}
    assert {proof.passed for proof in made.proofs if "weights that are the variant's" in proof.what} == {False}


def _strict(package):
    tolerance = dict.fromkeys(package.manifest.golden.tolerance, 1e-6)
    return package.manifest.golden.model_copy(update={"tolerance": tolerance})


def _disturbed(graph):
    """The same graph with other codes in one weight."""
    changed = onnx.ModelProto.FromString(graph.SerializeToString())
    weight = next(t for t in changed.graph.initializer if t.data_type == t.INT8 and len(t.dims) > 1)
    codes = numpy_helper.to_array(weight)
    weight.CopyFrom(numpy_helper.from_array(np.where(codes > 0, codes // 3, 100).astype(np.int8), weight.name))
    return changed


def test_missing_runtime_is_told_as_what_remains(package, tmp_path, monkeypatch):
    converter = find_converter()
    monkeypatch.setattr(models, "find_converter", lambda: converter)
    monkeypatch.setattr(library, "state", lambda: library.State(False, "not here"))
    made = export_models(package, tmp_path, progress=Silent(), variants=["fp32"])
    assert not any("golden" in proof.what for proof in made.proofs)
    assert "no runtime of MindSpore Lite is here" in made.remaining[0]
    assert [model.resizable for model in made.models] == [False]


def test_missing_tflite_writer_is_told_before_anything_is_written(package, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UnavailableError, match="pip install ai-edge-litert"):
        export_models(package, tmp_path, progress=Silent())
    assert list(tmp_path.iterdir()) == []


def test_variant_that_the_runtime_does_not_load_is_refused(package):
    weights = package.variant("int8").model_copy(update={"id": "int8-weights", "precision": "int8-weights"})
    manifest = package.manifest.model_copy(update={"variants": (*package.manifest.variants, weights)})
    other = replace(package, manifest=manifest)
    assert exportable_variants(other, None) == ("fp32", "fp16", "int8")
    with pytest.raises(OptionError, match=r"'int8-weights' is int8-weights, which .* available are fp32, fp16, int8"):
        exportable_variants(other, "int8-weights")


@pytest.mark.parametrize("text", ["", "0", "1,1", "2,x", "65", "-1", "1.5"])
def test_batch_of_another_form_is_refused(text):
    with pytest.raises(OptionError, match="has the wrong form: expected different numbers from 1 to 64"):
        read_batches(text)


def test_batch_of_a_package_with_fixed_rows_is_refused(package, tmp_path):
    fixed = tuple(spec.model_copy(update={"shape": (1, 3, 16, 16)}) for spec in package.manifest.inputs)
    other = replace(package, manifest=package.manifest.model_copy(update={"inputs": fixed}))
    with pytest.raises(OptionError, match="batch 4: package 'small' has 1 rows, which are fixed"):
        export_models(other, tmp_path, progress=Silent(), batches=(4,))
    assert list(tmp_path.iterdir()) == []


def test_float_blocks_stay_float_beside_int8_ones(tmp_path):
    model, feeds = conv_classifier(batch=1), random_arrays(IMAGE)
    mixed = _float_head(in_int8(model, feeds))
    write_int8(mixed, tmp_path / "mixed.ms", IMAGE, find_converter())
    told = describe(read(tmp_path / "mixed.ms"))
    assert 0 < told.quantized_share < 1
    assert (told.weight_bytes["int8"], told.weight_bytes["float32"]) == (8 * 27, (4 * 8 + 4) * 4)
    file = read(tmp_path / "mixed.ms")
    assert (kept_weights(mixed, file), own_weights(mixed, file), own_activations(mixed, file)) == (1, 1, 1)
    got = run(tmp_path / "mixed.ms", scores(), feeds)["scores"]
    assert relative_error(run_directly(mixed, feeds)["scores"], got) < 0.02


def _float_head(model):
    """An INT8 classifier whose Gemm has float weights, and whose output is not rounded."""
    arrays = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    makers = {name: node for node in model.graph.node for name in node.output}
    gemm = next(node for node in model.graph.node if node.op_type == "Gemm")
    for place in (1, 2):
        codes, scale = (arrays[name] for name in makers[gemm.input[place]].input[:2])
        shape = (-1, *[1] * (codes.ndim - 1)) if scale.size > 1 else ()
        value = (codes.astype(np.float32) * scale.reshape(shape)).astype(np.float32)
        gemm.input[place] = f"float_{place}"
        model.graph.initializer.append(numpy_helper.from_array(value, gemm.input[place]))
    kept = [node for node in model.graph.node if "scores" not in "".join((*node.output, *node.input)) or node is gemm]
    gemm.output[0] = "scores"
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return drop_unread(model)


@pytest.mark.parametrize("operator", ["Gelu", "Elu"])
def test_activations_that_tflite_cannot_carry_there_arrive(tmp_path, operator):
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["z"], "fc"),
        helper.make_node("QuantizeLinear", ["z", "scale", "zero"], ["codes"], "q"),
        helper.make_node("DequantizeLinear", ["codes", "scale", "zero"], ["rounded"], "dq"),
        helper.make_node(operator, ["rounded"], ["y"], "bend"),
    ]
    weights = {"w": np.eye(6, dtype=np.float32), "scale": np.float32(0.05), "zero": np.uint8(128)}
    model = make_model(nodes, [tensor("x", [1, 6])], [tensor("y", [1, 6])], weights, opset=20)
    write_int8(model, tmp_path / "bent.ms", {"x": (1, 6)}, find_converter())
    feeds = {"x": np.array([[-3, -1, -0.2, 0.3, 1, 3]], np.float32)}
    got = run(tmp_path / "bent.ms", [TensorSpec(name="y", dtype="float32", shape=(1, 6))], feeds)["y"]
    assert np.abs(got - run_directly(model, feeds)["y"]).max() < 1e-5


def test_int64_goes_in_as_int32_and_comes_back(tmp_path):
    table = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)
    node = helper.make_node("Gather", ["table", "ids"], ["y"], "gather")
    model = make_model([node], [tensor("ids", [1, 3], "int64")], [tensor("y", [1, 3, 4])], {"table": table})
    write_float(model, tmp_path / "table.ms", {"ids": (1, 3)}, find_converter(), half=False)
    assert read(tmp_path / "table.ms").inputs[0].dtype in ("int32", "int64")
    feeds = {"ids": np.array([[7, 0, 3]], np.int64)}
    got = run(tmp_path / "table.ms", [TensorSpec(name="y", dtype="float32", shape=(1, 3, 4))], feeds)["y"]
    assert np.array_equal(got, table[[[7, 0, 3]]])


def test_int8_is_within_a_step_of_the_variant(tmp_path):
    feeds = random_arrays(IMAGE)
    model = in_int8(conv_classifier(batch=1), feeds)
    write_int8(model, tmp_path / "int8.ms", IMAGE, find_converter())
    got = run(tmp_path / "int8.ms", scores(), feeds)["scores"]
    assert np.abs(got - run_directly(model, feeds)["scores"]).max() <= 1.01 * step_of(model, "scores")


@pytest.mark.parametrize(
    "case",
    [
        "Add, gate",
        "Concat channels",
        "MatMul of stacks",
        "Mul, gate",
        "max, padded, after Conv",
        "mean of space",
        "transposed, padded",
    ],
)
def test_operators_in_int8_are_within_a_step_of_onnx_runtime(tmp_path, case):
    model = in_int8(EXACT[case], feeds_for(EXACT[case], seed=1))
    feeds = feeds_for(model, seed=2)  # some of them beyond the range that eight bits cover
    write_int8(model, tmp_path / "case.ms", {name: array.shape for name, array in feeds.items()}, find_converter())
    expected = run_directly(model, feeds)
    outputs = [TensorSpec(name=name, dtype="float32", shape=array.shape) for name, array in expected.items()]
    got = run(tmp_path / "case.ms", outputs, feeds)
    for name, array in expected.items():
        assert np.abs(got[name] - array).max() <= 1.02 * step_of(model, name)


@pytest.mark.parametrize("case", ["groups", "one axis", "depthwise with multiplier"])
def test_int8_operators_that_the_runtime_does_not_take_are_named(case):
    model = in_int8(EXACT[case], feeds_for(EXACT[case]))
    (refused,) = (one for one in refusals(model) if not one.automatic)
    assert (refused.operator, refused.nodes) == ("Conv", ("conv",))


def test_graph_that_has_no_form_writes_nothing(tmp_path):
    node = helper.make_node("Sinh", ["x"], ["y"], "odd")
    with pytest.raises(ModelError):
        write_float(
            make_model([node], [tensor("x", [2])], [tensor("y", [2])]),
            tmp_path / "odd.ms",
            {"x": (2,)},
            find_converter(),
            half=False,
        )
    assert list(tmp_path.iterdir()) == []
