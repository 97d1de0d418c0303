from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from sanderling.core.errors import OptionError, OutputError
from sanderling.model.graph import read_graph
from sanderling.run.engines import engine, known_engine
from sanderling.run.engines.base import EngineOptions
from sanderling.run.guard.checks import Checks
from sanderling.run.guard.inner import Extremes, rows_of, split, watched_model
from sanderling.run.policy.document import Guard
from tests.models import OPSET, chain, conv_classifier, make_model, random_arrays, run_directly, tensor
from tests.quantized import in_int8
from tests.unit.run.guard.packages import package_of

IMAGES = random_arrays({"image": (5, 3, 8, 8)}, seed=3)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def watch(folder: Path, model: onnx.ModelProto, names: list[str], feeds: dict[str, np.ndarray]):
    """The model's outputs, and what was watched, with ONNX Runtime; the graph is checked, too."""
    package = package_of(folder / "tiny.sdl", {"fp32": model}, [feeds])
    path = watched_model(package, package.variant("fp32"), names)
    read_graph(path)
    executable = engine("onnxruntime").load(path, EngineOptions(threads=1))
    try:
        return split(executable.run(feeds))
    finally:
        executable.close()


def expected(array: np.ndarray) -> Extremes:
    rows = array.astype(np.float32).reshape(len(array) if array.ndim else 1, -1)
    return Extremes(rows.min(axis=1), rows.max(axis=1), np.abs(rows).sum(axis=1))


def assert_equal(found: Extremes, wanted: Extremes) -> None:
    for part, other in zip(found, wanted, strict=True):
        assert part.dtype == np.float32
        np.testing.assert_allclose(part, other, rtol=1e-5)


def opened(model: onnx.ModelProto, *names: str) -> onnx.ModelProto:
    """The graph with inner tensors as outputs, of whatever type they have."""
    copy = onnx.shape_inference.infer_shapes(model)
    copy.graph.output.extend(value for value in copy.graph.value_info if value.name in names)
    return copy


@pytest.mark.parametrize("opset", range(13, 22))
def test_each_row_is_reduced_to_its_extremes_and_its_absolute_sum(tmp_path, opset):
    model = conv_classifier(opset=opset)
    names = ["conv", "relu", "flat", "scores"]
    outputs, inner = watch(tmp_path, model, names, IMAGES)
    wanted = run_directly(opened(model, *names), IMAGES)
    np.testing.assert_allclose(outputs["scores"], wanted["scores"], rtol=1e-5, atol=1e-5)
    assert outputs.keys() == {"scores"}
    assert list(inner) == names
    for name in names:
        assert_equal(inner[name], expected(wanted[name]))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
@pytest.mark.parametrize("shape", [(), (6,), (2, 3), (2, 3, 1, 2)])
@pytest.mark.parametrize("opset", [13, 18])
def test_every_rank_and_dtype_of_numbers_is_watched(tmp_path, dtype, shape, opset):
    model = chain(["Neg", "Abs"], shape=shape, dtype=dtype, opset=opset)
    x = np.asarray(np.random.default_rng(0).integers(-9, 9, shape), dtype)
    outputs, inner = watch(tmp_path, model, ["t1"], {"x": x})
    assert_equal(inner["t1"], expected(-x))
    np.testing.assert_array_equal(outputs["y"], np.abs(x))


def test_half_values_are_summed_beyond_what_halves_hold(tmp_path):
    model = chain(["Neg", "Abs"], shape=("N", 100), dtype="float16")
    _, inner = watch(tmp_path, model, ["t1"], {"x": np.full((2, 100), 60000, np.float16)})
    np.testing.assert_allclose(inner["t1"].l1, 6e6, rtol=1e-3)


def test_bits_are_watched_as_zeros_and_ones(tmp_path):
    nodes = [helper.make_node("Greater", ["x", "x"], ["more"]), helper.make_node("Not", ["more"], ["y"])]
    model = make_model(nodes, [tensor("x", ["N", 2])], [tensor("y", ["N", 2], "bool")])
    _, inner = watch(tmp_path, model, ["more", "y"], {"x": np.zeros((3, 2), np.float32)})
    np.testing.assert_array_equal(inner["more"].high, [0, 0, 0])
    np.testing.assert_array_equal(inner["y"].l1, [2, 2, 2])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 50, 99])
def test_nan_and_infinity_inside_are_found_although_the_output_hides_them(tmp_path, value, place):
    # 1 / (1 + e^-t), and then NaN's comparison: the output is always 0 or 1.
    nodes = [
        helper.make_node("Identity", ["x"], ["t"], "t"),
        helper.make_node("Greater", ["t", "zero"], ["more"], "more"),
        helper.make_node("Cast", ["more"], ["y"], "y", to=onnx.TensorProto.FLOAT),
    ]
    shape = ["N", 100]
    model = make_model(nodes, [tensor("x", shape)], [tensor("y", shape)], {"zero": np.float32(0)})
    good = random_arrays({"x": (3, 100)})["x"]
    package = package_of(tmp_path / "tiny.sdl", {"fp32": model}, [{"x": good[:1]}])
    executable = engine("onnxruntime").load(watched_model(package, package.variant(), ["t"]), EngineOptions(threads=1))
    checks = Checks.of(Guard(inner_tensors=("t",)), package, package.manifest.outputs)
    checks.learn([split(executable.run(package.golden().call(0)))[1]])
    bad = good.copy()
    bad[1, place] = value
    outputs, inner = split(executable.run({"x": bad}))
    assert np.isfinite(outputs["y"]).all()
    assert checks.fault(*split(executable.run({"x": good}))) is None
    fault = checks.fault(outputs, inner)
    assert fault[:2] == ("inner", "t")
    assert "1 of 3 rows" in fault.reason
    assert "the first is 1" in fault.reason
    assert [checks.fault(outputs, rows_of(inner, row, 1, batch=3)) is None for row in range(3)] == [True, False, True]


def test_flipped_exponent_bit_in_a_weight_is_found(tmp_path):
    model = conv_classifier()
    package = package_of(tmp_path / "good.sdl", {"fp32": model}, [{"image": row[None]} for row in IMAGES["image"]])
    checks = Checks.of(Guard(), package, package.manifest.outputs)
    watched = watched_model(package, package.variant(), ["conv"])
    executable = engine("onnxruntime").load(watched, EngineOptions(threads=1))
    checks.learn([split(executable.run(package.golden().call(index)))[1] for index in range(5)])
    weight = next(item for item in model.graph.initializer if item.name == "conv_weight")
    values = numpy_helper.to_array(weight).copy()
    values.flat[np.abs(values).argmax()] *= 2.0**16  # one bit of its exponent
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    flipped = package_of(tmp_path / "bad.sdl", {"fp32": model}, [IMAGES])
    bad = engine("onnxruntime").load(watched_model(flipped, flipped.variant(), ["conv"]), EngineOptions(threads=1))
    others = random_arrays({"image": (50, 3, 8, 8)}, seed=9)
    assert checks.fault(*split(executable.run(others))) is None
    outputs, inner = split(bad.run(others))
    assert np.isfinite(outputs["scores"]).all()
    assert checks.fault(outputs, inner)[:2] == ("inner", "conv")


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "litert"])
@pytest.mark.parametrize("batch", ["N", 3])
def test_engines_show_nan_in_the_row_that_holds_it_whatever_their_minimum_does(tmp_path, name, batch):
    if not known_engine(name).availability().installed:
        pytest.skip(f"{name} is not installed")
    good = random_arrays({"image": (3, 3, 8, 8)})
    package = package_of(tmp_path / "tiny.sdl", {"fp32": conv_classifier(batch=batch)}, [good])
    path = watched_model(package, package.variant(), ["conv", "flat"])
    executable = known_engine(name).load(path, EngineOptions(threads=1))
    assert {spec.shape for spec in executable.outputs if "__watched_" in spec.name} == {(batch,)}
    checks = Checks.of(Guard(), package, package.manifest.outputs)
    checks.learn([split(executable.run(good))[1]])
    assert checks.fault(*split(executable.run(good))) is None
    good["image"][1, 2, 7, 7] = np.nan
    outputs, inner = split(executable.run(good))
    executable.close()
    np.testing.assert_array_equal(np.isnan(inner["conv"].l1), [False, True, False])
    assert checks.fault({"scores": np.zeros_like(outputs["scores"])}, inner)[:2] == ("inner", "conv")


def test_rows_without_values_are_watched(tmp_path):
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"], "places"),
        helper.make_node("Cast", ["places"], ["y"], "cast", to=onnx.TensorProto.FLOAT),
    ]
    model = make_model(nodes, [tensor("x", [2, 3])], [tensor("y", [2, "found"])])
    _, inner = watch(tmp_path, model, ["places"], {"x": np.zeros((2, 3), np.float32)})
    assert (inner["places"].low > inner["places"].high).all()
    np.testing.assert_array_equal(inner["places"].l1, [0, 0])


def test_rounded_tensor_is_watched_as_its_readers_see_it_and_the_kernels_stay_fused(tmp_path):
    quantized = in_int8(conv_classifier(), IMAGES)
    graphs = {"fp32": conv_classifier(), "int8": quantized}
    package = package_of(tmp_path / "tiny.sdl", graphs, [IMAGES])
    path = watched_model(package, package.variant("int8"), ["relu"])
    outputs, inner = split(run_directly(path, IMAGES, optimized=True))
    plain = run_directly(quantized, IMAGES, optimized=True)
    np.testing.assert_array_equal(outputs["scores"], plain["scores"])
    assert fused_kernels(path, tmp_path) == fused_kernels(package.file("int8.onnx"), tmp_path) > 0
    wanted = expected(run_directly(opened(conv_classifier(), "relu"), IMAGES)["relu"])
    for part, other in zip(inner["relu"], wanted, strict=True):
        np.testing.assert_allclose(part, other, rtol=0.1, atol=0.1)


def fused_kernels(path: Path, folder: Path) -> int:
    """Number of nodes that ONNX Runtime computes in eight bits."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(folder / "optimized.onnx").graph.node
    return sum(node.op_type in ("QLinearConv", "QGemm", "QLinearGlobalAveragePool") for node in nodes)


def test_external_weights_are_watched_like_inner_ones(tmp_path):
    package = package_of(tmp_path / "tiny.sdl", {"fp32": conv_classifier()}, [IMAGES])
    inner = watched_model(package, package.variant(), ["relu"])
    file = package.path / "fp32.onnx"
    onnx.save(conv_classifier(), file, save_as_external_data=True, location="fp32.data", size_threshold=0)
    entries = package.manifest.files
    files = entries | {"fp32.data": entries["golden.npz"], "fp32.onnx": entries["fp32.onnx"]}
    variant = package.variant().model_copy(update={"external_data": "fp32.data"})
    outer = watched_model(
        type(package)(package.path, package.manifest.model_copy(update={"files": files})), variant, ["relu"]
    )
    assert outer != inner
    for name, array in run_directly(inner, IMAGES).items():
        np.testing.assert_array_equal(run_directly(outer, IMAGES)[name], array)


@pytest.fixture
def package(tmp_path):
    """A classifier in FP32."""
    return package_of(tmp_path / "tiny.sdl", {"fp32": conv_classifier()}, [IMAGES])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("relo", "'relo', which in variant fp32 is no tensor; did you mean 'relu'"),
        ("xyz", "is no tensor; available are conv, bn, relu, pooled, flat, scores"),
        ("image", "'image', which in variant fp32 is no result: name the output of a node"),
        ("conv_weight", "is no result"),
        ("", "is no tensor"),
    ],
)
def test_unknown_tensor_is_told_with_similar_ones(package, cache, name, says):
    with pytest.raises(OptionError) as caught:
        watched_model(package, package.variant(), ["conv", name])
    assert says in str(caught.value)
    assert not cache.exists()


def test_tensor_inside_a_subgraph_is_refused(tmp_path):
    branch = helper.make_graph([helper.make_node("Neg", ["x"], ["inside"])], "branch", [], [tensor("inside", [2])])
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["is_most"], to=onnx.TensorProto.BOOL),
        helper.make_node("If", ["is_most"], ["y"], then_branch=branch, else_branch=branch),
    ]
    nodes[-1].attribute[1].g.node[0].output[0] = "other"
    nodes[-1].attribute[1].g.output[0].name = "other"
    model = make_model(nodes, [tensor("x", [2])], [tensor("y", [2])])
    feeds = {"x": np.ones(2, np.float32)}
    package = package_of(tmp_path / "if.sdl", {"fp32": model}, [feeds])
    with pytest.raises(OptionError, match=r"'inside'.* is inside a subgraph"):
        watched_model(package, package.variant(), ["inside"])
    _, inner = split(run_directly(watched_model(package, package.variant(), ["most", "y"]), feeds))
    np.testing.assert_array_equal(inner["most"].high, [1])
    np.testing.assert_array_equal(inner["y"].high, [-1, -1])


def test_text_is_refused(tmp_path):
    model = chain(["Identity", "Identity"], shape=("N",), opset=OPSET)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.STRING
    package = package_of(tmp_path / "text.sdl", {"fp32": model}, [{"x": np.array(["a"])}])
    with pytest.raises(OptionError, match=r"'y'.* is text"):
        watched_model(package, package.variant(), ["y"])


def test_graph_is_made_once(package):
    first = watched_model(package, package.variant(), ["relu", "conv", "relu"])
    made = first.stat().st_mtime_ns
    assert watched_model(package, package.variant(), ["relu", "conv"]) == first
    assert first.stat().st_mtime_ns == made
    assert watched_model(package, package.variant(), ["relu"]) != first


@pytest.mark.parametrize("damage", ["cut", "altered", "gone", "no hashes"])
def test_damaged_graph_in_the_cache_is_made_again(package, damage):
    path = watched_model(package, package.variant(), ["relu"])
    whole = path.read_bytes()
    if damage == "cut":
        path.write_bytes(whole[:100])
    elif damage == "altered":
        path.write_bytes(whole[:-30] + b"x" + whole[-29:])
    elif damage == "gone":
        path.unlink()
    else:
        (path.parent / "hashes.json").write_text("{")
    assert watched_model(package, package.variant(), ["relu"]).read_bytes() == whole


def test_cache_that_cannot_be_written_is_told(package, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path / "file"))
    with pytest.raises(OutputError, match="set SANDERLING_CACHE"):
        watched_model(package, package.variant(), ["relu"])


def test_rows_of_a_request_are_told_from_what_is_the_whole_batchs():
    batch = Extremes(*np.arange(12, dtype=np.float32).reshape(3, 4))
    other = Extremes(*np.zeros((3, 7), np.float32))
    found = rows_of({"rows": batch, "other": other}, 1, 2, batch=4)
    np.testing.assert_array_equal(found["rows"], [[1, 2], [5, 6], [9, 10]])
    assert found["other"] is other


def test_outputs_are_split_by_what_was_added():
    arrays = {name: np.zeros(1) for name in ["y", "a__watched_low", "a__watched_high", "a__watched_l1", "b__watched_c"]}
    own, inner = split(arrays)
    assert own.keys() == {"y", "b__watched_c"}
    assert inner.keys() == {"a"}
