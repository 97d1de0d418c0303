"""One suite that every engine runs. A new engine needs no test of its own to be held to the contract.

What an engine cannot do it says in its devices (precisions, arithmetic), and is held to what it says: an engine that
takes only INT8 gets the INT8 form of the same small graphs, and one that cannot compute exactly is allowed the error of
its arithmetic. A graph that it cannot run right it refuses.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import numpy as np
import onnx
import pytest
from onnx import helper

from sanderling.core.errors import EngineError, ModelError, OptionError
from sanderling.core.files import cache_folder
from sanderling.core.precision import Precision
from sanderling.run.engines import engine, engine_names, known_engine
from sanderling.run.engines.base import (
    Compute,
    DeviceInfo,
    DeviceKind,
    Engine,
    EngineOptions,
    Executable,
    Optimization,
)
from sanderling.workshop.quantize.weight_only import to_weight_only
from tests.installing import install_mindspore
from tests.models import (
    chain,
    conv_classifier,
    make_model,
    random_arrays,
    run_directly,
    save,
    sum_and_difference,
    tensor,
)
from tests.quantized import in_int8, step_of

THREADS = 8
TOLERANCES = {Compute.EXACT: 1e-5, Compute.BF16: 3e-2, Compute.FP16: 3e-2}  # of the largest output


def computes(tested: Engine) -> bool:
    """Whether the engine's numbers mean anything; otherwise only shapes and dtypes are checked."""
    return tested.name != "null"


def takes(tested: Engine, precision: Precision) -> bool:
    """Whether the engine's first device takes variants of that precision."""
    return precision in tested.devices()[0].precisions


def takes_everything(tested: Engine) -> bool:
    """Whether the engine's first device takes variants of every precision, and computes them as they say."""
    first = tested.devices()[0]
    return set(Precision) <= set(first.precisions) and Compute.EXACT in first.computes


def on(device: DeviceInfo) -> EngineOptions:
    """One thread, in the arithmetic that the device offers first."""
    return EngineOptions(device=device.device, threads=1, compute=device.computes[0])


def on_first(tested: Engine, **others) -> EngineOptions:
    return replace(on(tested.devices()[0]), **others)


def form_for(device: DeviceInfo, model: onnx.ModelProto) -> onnx.ModelProto:
    """A float graph in a form that the device takes: as it is, or in INT8 where it has such a form."""
    returned = {value.name for value in model.graph.output}
    if Precision.FP32 in device.precisions or not returned.isdisjoint(value.name for value in model.graph.input):
        return model
    shapes = {value.name: sizes_of(value, rows=64) for value in model.graph.input}
    return in_int8(model, random_arrays(shapes, seed=99))


def taken(tested: Engine, model: onnx.ModelProto) -> onnx.ModelProto:
    return form_for(tested.devices()[0], model)


def sizes_of(value: onnx.ValueInfoProto, *, rows: int = 3) -> list[int]:
    """Shape of an input with ``rows`` rows, and 5 along an axis called M."""
    return [dim.dim_value or {"N": rows, "M": 5}[dim.dim_param] for dim in value.type.tensor_type.shape.dim]


@pytest.fixture(params=engine_names())
def tested(request: pytest.FixtureRequest) -> Engine:
    found = known_engine(request.param)
    if request.param == "mindspore":
        install_mindspore()
    state = found.availability()
    if not state.installed:
        pytest.skip(f"{request.param} is not installed: {state.hint}")
    return found


@pytest.fixture
def classifier(tested: Engine) -> onnx.ModelProto:
    return taken(tested, conv_classifier())


def loaded(tested: Engine, model: onnx.ModelProto, options: EngineOptions | None = None) -> Executable:
    return tested.load(model.SerializeToString(), options or on_first(tested))


def save_with_data_outside(model: onnx.ModelProto, path: Path) -> None:
    """Write the graph to ``path`` and its weights to ``w.bin`` beside it; the model given stays whole."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    onnx.save(copy, path, save_as_external_data=True, location="w.bin", size_threshold=0)


def images(rows: int = 1, *, seed: int = 0) -> dict[str, np.ndarray]:
    return random_arrays({"image": (rows, 3, 8, 8)}, seed=seed)


def assert_right(tested: Engine, model: onnx.ModelProto, feeds: dict, outputs: dict[str, np.ndarray]) -> None:
    expected = run_directly(model, feeds)
    assert outputs.keys() == expected.keys()
    for name, array in outputs.items():
        assert isinstance(array, np.ndarray)
        assert (array.dtype, array.shape) == (expected[name].dtype, expected[name].shape)
        if computes(tested):
            assert_close(array, expected[name], step_of(model, name), tested.devices()[0].computes[0])


def assert_close(array: np.ndarray, expected: np.ndarray, step: float, compute: Compute) -> None:
    """Equal but for the arithmetic's error, or for one quantisation step where there are steps."""
    largest = np.abs(expected, dtype=np.float64, casting="unsafe").max(initial=0)
    np.testing.assert_allclose(array, expected, rtol=0, atol=1.02 * step or TOLERANCES[compute] * largest)


def assert_right_or_refused(tested: Engine, model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> None:
    """An engine may not take a graph, but never runs it wrong."""
    try:
        executable = loaded(tested, model)
    except ModelError:
        assert not takes_everything(tested), "an engine that takes every precision takes these graphs too"
        return
    assert_right(tested, model, dict(feeds), executable.run(feeds))
    assert_right_in_callers_arrays(tested, model, dict(feeds), executable)
    executable.close()


def assert_right_in_callers_arrays(
    tested: Engine, model: onnx.ModelProto, feeds: dict[str, np.ndarray], executable: Executable
) -> None:
    outputs = unwritten(run_directly(model, feeds))
    found = executable.run(feeds, outputs)
    assert list(found) == [spec.name for spec in executable.outputs]
    assert all(found[name] is outputs[name] for name in found)
    assert_right(tested, model, feeds, found)


def unwritten(results: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays for such results, full of what no graph here returns."""
    return {name: np.full(array.shape, 77, array.dtype) for name, array in results.items()}


def test_every_engine_is_found_by_its_file():
    assert {"litert", "mindspore", "ncnn", "null", "onnxruntime", "openvino", "qnn", "rknn"} <= set(engine_names())


@pytest.mark.parametrize("name", engine_names())
def test_engines_file_is_imported_without_what_it_runs_on(name):
    program = f"import sys, sanderling.run.engines.{name}_; print(*{{key.partition('.')[0] for key in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    heavy = {
        "ai_edge_litert",
        "flatbuffers",
        "ncnn",
        "onnx",
        "onnxruntime",
        "onnxruntime_qnn",
        "openvino",
        "pnnx",
        "rknn",
        "torch",
    }
    assert set(done.stdout.split()) & heavy == set()


@pytest.mark.parametrize("name", engine_names())
def test_availability_says_version_or_how_to_install(name):
    found = known_engine(name)
    state = found.availability()
    assert found.name == name
    assert state.version if state.installed else state.hint


def test_unknown_engine_is_told_with_the_available_ones():
    with pytest.raises(OptionError, match=r"unknown engine 'warp': available are .*onnxruntime"):
        engine("warp")


def test_installed_engine_is_given_by_its_name(tested):
    assert engine(tested.name) is tested


def test_installed_engine_reaches_a_device(tested):
    devices = tested.devices()
    assert devices
    for device in devices:
        assert isinstance(device, DeviceInfo)
        assert device.engine == tested.name
        assert device.device
        assert device.description
        assert device.precisions
        assert device.computes
        assert device.memory_bytes is None or device.memory_bytes > 0


def test_model_is_loaded_from_a_path(tested, classifier, tmp_path):
    executable = tested.load(save(classifier, tmp_path / "model.onnx"), on_first(tested))
    assert_right(tested, classifier, images(), executable.run(images()))
    executable.close()


def test_model_is_loaded_from_bytes(tested, classifier):
    executable = loaded(tested, classifier)
    assert_right(tested, classifier, images(), executable.run(images()))
    executable.close()


def test_external_data_beside_the_model_is_found(tested, classifier, tmp_path):
    save_with_data_outside(classifier, tmp_path / "model.onnx")
    executable = tested.load(tmp_path / "model.onnx", on_first(tested))
    assert_right(tested, classifier, images(), executable.run(images()))
    executable.close()


def test_inputs_and_outputs_are_described_as_the_graph_has_them(tested, classifier):
    executable = loaded(tested, classifier)
    assert [str(spec) for spec in executable.inputs] == ["image: float32[N, 3, 8, 8]"]
    assert [str(spec) for spec in executable.outputs] == ["scores: float32[N, 4]"]
    executable.close()


def test_all_outputs_are_returned_in_the_graphs_order(tested):
    model = taken(tested, sum_and_difference())
    executable = loaded(tested, model)
    feeds = random_arrays({"a": (2, 3), "b": (2, 3)})
    outputs = executable.run(feeds)
    assert list(outputs) == [spec.name for spec in executable.outputs] == ["sum", "difference"]
    assert_right(tested, model, feeds, outputs)
    executable.close()


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int64", "int32", "int8", "uint8", "bool"])
def test_dtypes_are_kept_or_refused_by_name(tested, dtype):
    node = helper.make_node("Concat", ["x", "x"], ["y"], "twice", axis=1)
    model = make_model([node], [tensor("x", [1, 4], dtype)], [tensor("y", [1, 8], dtype)])
    if dtype == "float32":
        model = taken(tested, model)
    try:
        executable = loaded(tested, model)
    except ModelError as error:
        told = str(error)
        assert dtype != "float32", told
        assert not takes_everything(tested), told
        assert re.search(rf"{tested.name} does not take .*{dtype}", told)
        return
    feeds = {"x": np.array([[1, 0, 1, 1]]).astype(dtype)}
    assert (executable.inputs[0].dtype, executable.outputs[0].dtype) == (dtype, dtype)
    assert_right(tested, model, feeds, executable.run(feeds))
    assert_right_in_callers_arrays(tested, model, feeds, executable)
    executable.close()


def test_both_numpy_types_of_64_bits_are_taken(tested):
    """ONNX Runtime returns the one that others do not make."""
    model = make_model(
        [helper.make_node("Neg", ["x"], ["y"], "neg")], [tensor("x", [3], "int64")], [tensor("y", [3], "int64")]
    )
    try:
        executable = loaded(tested, model)
    except ModelError:
        assert not takes_everything(tested)
        return
    for kind in "lq":
        feeds, outputs = {"x": np.arange(3).astype(kind)}, {"y": np.empty(3, kind)}
        assert_right(tested, model, feeds, executable.run(feeds))
        assert_right(tested, model, feeds, executable.run(feeds, outputs))
    executable.close()


def test_scalars_are_run_right_or_refused(tested):
    model = make_model([helper.make_node("Neg", ["x"], ["y"], "neg")], [tensor("x", [])], [tensor("y", [])])
    assert_right_or_refused(tested, taken(tested, model), {"x": np.array(2, np.float32)})


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_dynamic_batch_takes_any_number_of_rows(tested, classifier, rows):
    executable = loaded(tested, classifier)
    assert_right(tested, classifier, images(rows), executable.run(images(rows)))
    executable.close()


@pytest.mark.parametrize("optimization", Optimization)
@pytest.mark.parametrize("lean", [False, True])
def test_options_do_not_change_the_results(tested, classifier, optimization, lean):
    executable = loaded(tested, classifier, on_first(tested, threads=2, optimization=optimization, lean=lean))
    assert_right(tested, classifier, images(3), executable.run(images(3)))
    executable.close()


def test_same_input_gives_the_same_output_again(tested, classifier):
    executable = loaded(tested, classifier)
    first, second = executable.run(images(2))["scores"], executable.run(images(2))["scores"]
    np.testing.assert_array_equal(first, second)
    executable.close()


def test_result_is_the_callers_own(tested, classifier):
    executable = loaded(tested, classifier)
    first = executable.run(images(2))["scores"]
    kept = first.copy()
    executable.run(images(2, seed=1))
    np.testing.assert_array_equal(first, kept)
    executable.close()
    np.testing.assert_array_equal(first, kept)


def test_inputs_are_not_changed(tested, classifier):
    executable = loaded(tested, classifier)
    feeds = images(2)
    executable.run(feeds)
    np.testing.assert_array_equal(feeds["image"], images(2)["image"])
    executable.close()


def test_closing_twice_is_harmless(tested, classifier):
    executable = loaded(tested, classifier)
    executable.close()
    executable.close()


def test_running_after_close_is_an_engine_error(tested, classifier):
    executable = loaded(tested, classifier)
    executable.close()
    with pytest.raises(EngineError, match=rf"{tested.name}.*closed"):
        executable.run(images())


def test_closing_one_leaves_another_running(tested, classifier):
    first, second = loaded(tested, classifier), loaded(tested, classifier)
    first.close()
    assert_right(tested, classifier, images(), second.run(images()))
    second.close()


@pytest.mark.parametrize("data", [b"", b"garbage" * 50, conv_classifier().SerializeToString()[:-400]], ids=len)
def test_bytes_that_are_no_model_are_a_model_error(tested, tmp_path, data):
    (tmp_path / "bad.onnx").write_bytes(data)
    for source in (data, tmp_path / "bad.onnx"):
        with pytest.raises(ModelError, match=tested.name):
            tested.load(source, on_first(tested))


def test_missing_file_is_a_model_error(tested, tmp_path):
    with pytest.raises(ModelError, match=tested.name):
        tested.load(tmp_path / "nowhere.onnx", on_first(tested))


@pytest.mark.parametrize("domain", ["com.acme", ""], ids=["foreign", "default"])
def test_operator_that_is_not_known_is_a_model_error_that_names_it(tested, domain):
    if not computes(tested):
        pytest.skip(f"{tested.name} takes any operator, as it computes none")
    node = helper.make_node("Frobnicate", ["x"], ["y"], "frob", domain=domain)
    domains = {domain: 1} if domain else {}
    model = make_model([node], [tensor("x", [1, 4])], [tensor("y", [1, 4])], domains=domains)
    with pytest.raises(ModelError, match="Frobnicate"):
        loaded(tested, model)


def test_graph_whose_types_contradict_each_other_is_a_model_error(tested):
    if not computes(tested):
        pytest.skip(f"{tested.name} does not look inside the graph")
    node = helper.make_node("Relu", ["x"], ["y"], "relu")
    model = make_model([node], [tensor("x", [1, 4], "float64")], [tensor("y", [1, 4], "int32")])
    with pytest.raises(ModelError, match=tested.name):
        loaded(tested, model)


_CONTRADICTIONS = {  # graphs that the feeds below fit, and whose shapes do not fit each other inside
    "Reshape": make_model(
        [helper.make_node("Reshape", ["a", "shape"], ["y"], "reshape"), helper.make_node("Neg", ["b"], ["z"], "neg")],
        [tensor("a", ["K"]), tensor("b", ["L"])],
        [tensor("y", [2, 3]), tensor("z", ["L"])],
        {"shape": np.array([2, 3])},
    ),
    "Add": make_model(
        [helper.make_node("Add", ["a", "b"], ["y"], "add")],
        [tensor("a", ["K"]), tensor("b", ["L"])],
        [tensor("y", ["M"])],
    ),
}


@pytest.mark.parametrize("threads", [0, 1, 2])
@pytest.mark.parametrize("case", _CONTRADICTIONS)
def test_failure_while_running_is_an_engine_error(tested, case, threads):
    if not computes(tested):
        pytest.skip(f"{tested.name} computes nothing that could fail")
    model, options = _CONTRADICTIONS[case], on_first(tested, threads=threads)
    try:
        executable = loaded(tested, model, options)
    except ModelError:
        assert not takes_everything(tested)
        return
    for _ in range(2):
        with pytest.raises(EngineError, match=tested.name):
            executable.run(random_arrays({"a": (5,), "b": (4,)}))
    feeds = random_arrays({"a": (6,), "b": (6,)})
    assert_right(tested, model, feeds, executable.run(feeds))
    executable.close()


def test_threads_get_their_own_results(tested, classifier):
    executable = loaded(tested, classifier)
    barrier = Barrier(THREADS)

    def work(seed: int) -> list[dict[str, np.ndarray]]:
        barrier.wait()
        return [executable.run(images(1 + seed % 3, seed=seed)) for _ in range(20)]

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(work, range(THREADS)))
    for seed, repeats in enumerate(results):
        for outputs in repeats:
            assert_right(tested, classifier, images(1 + seed % 3, seed=seed), outputs)
    executable.close()


def test_close_while_others_run_gives_results_or_engine_errors(tested, classifier):
    executable = loaded(tested, classifier)
    barrier = Barrier(THREADS)

    def work(seed: int) -> set[str]:
        barrier.wait()
        if seed == 0:
            executable.close()
        seen = set()
        for _ in range(50):
            try:
                seen.add(str(executable.run(images())["scores"].shape))
            except EngineError:
                seen.add("closed")
        return seen

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(work, range(THREADS)))
    assert set().union(*results) <= {"(1, 4)", "closed"}
    assert results[0] == {"closed"}


def test_placement_tells_where_the_graph_runs(tested):
    for device in tested.devices():
        executable = loaded(tested, form_for(device, conv_classifier()), on(device))
        placement = executable.placement
        assert placement.device == device.device
        assert sum(placement.kinds.values()) == pytest.approx(1)
        assert all(0 < share <= 1 for share in placement.kinds.values())
        assert (placement.kinds[device.kind] == 1) or placement.fell_back or placement.detail
        executable.close()


def test_no_device_named_means_the_first(tested, classifier):
    executable = loaded(tested, classifier)
    assert executable.placement.device == tested.devices()[0].device
    executable.close()


@pytest.mark.parametrize("name", ["warp:0", "gpu:99", "CPU "])
def test_unknown_device_is_an_option_error_that_names_the_known(tested, classifier, name):
    first = tested.devices()[0].device
    with pytest.raises(OptionError, match=rf"'{tested.name}' has no device '{name}': .*{first}"):
        loaded(tested, classifier, on_first(tested, device=name))


@pytest.mark.parametrize("compute", Compute)
def test_arithmetic_is_used_where_offered_and_refused_elsewhere(tested, compute):
    for device in tested.devices():
        model, options = form_for(device, conv_classifier()), replace(on(device), compute=compute)
        if compute not in device.computes:
            with pytest.raises(OptionError, match=rf"{tested.name} .*{compute}.*available are .*{device.computes[0]}"):
                loaded(tested, model, options)
            continue
        executable = loaded(tested, model, options)
        outputs, expected = executable.run(images(2))["scores"], run_directly(model, images(2))["scores"]
        assert outputs.dtype == np.float32
        if computes(tested):
            assert_close(outputs, expected, step_of(model, "scores"), compute)
        executable.close()


def quantized_conv() -> onnx.ModelProto:
    """``image`` (N, 3, 8, 8) to ``y`` (N, 4, 8, 8): Conv and Relu between QuantizeLinear and DequantizeLinear."""
    generator = np.random.default_rng(0)
    weights = {
        "x_scale": np.float32(0.03),
        "y_scale": np.float32(0.05),
        "zero": np.uint8(128),
        "weight": generator.integers(-127, 128, (4, 3, 3, 3), np.int8),
        "weight_scale": generator.uniform(0.001, 0.004, 4).astype(np.float32),
        "weight_zero": np.zeros(4, np.int8),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["image", "x_scale", "zero"], ["xq"], "xq"),
        helper.make_node("DequantizeLinear", ["xq", "x_scale", "zero"], ["xd"], "xd"),
        helper.make_node("DequantizeLinear", ["weight", "weight_scale", "weight_zero"], ["wd"], "wd", axis=0),
        helper.make_node("Conv", ["xd", "wd"], ["conv"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["relu"], "relu"),
        helper.make_node("QuantizeLinear", ["relu", "y_scale", "zero"], ["yq"], "yq"),
        helper.make_node("DequantizeLinear", ["yq", "y_scale", "zero"], ["y"], "yd"),
    ]
    return make_model(nodes, [tensor("image", ["N", 3, 8, 8])], [tensor("y", ["N", 4, 8, 8])], weights)


def test_int8_variant_agrees_where_taken_and_is_refused_elsewhere(tested):
    model = quantized_conv()
    if not takes(tested, Precision.INT8):
        with pytest.raises(ModelError, match=rf"{tested.name} does not take .*QuantizeLinear.*FP32"):
            loaded(tested, model)
        return
    executable = loaded(tested, model)
    outputs, expected = executable.run(images(3))["y"], run_directly(model, images(3))["y"]
    assert (outputs.shape, outputs.dtype) == (expected.shape, expected.dtype)
    if computes(tested):
        assert np.ptp(expected) > 2
        np.testing.assert_allclose(outputs, expected, atol=0.051)  # one step: a tie may be rounded either way
        fixed_point = tested.devices()[0].kind is DeviceKind.NPU  # rounds sums a little differently
        assert np.mean(np.abs(outputs - expected) > 0.026) < (0.1 if fixed_point else 0.01)
    executable.close()


def embedded_product(name: str) -> onnx.ModelProto:
    """``ids`` (N, 5), or from ``x`` (N, 5, 64) on, to ``y`` (N, 5, 32): a table and a product."""
    weights = random_arrays({"table": (20, 64), "weight": (64, 32)})
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"], "embed"),
        helper.make_node("MatMul", ["x", "weight"], ["y"], "product"),
    ]
    if name == "x":
        nodes, weights = nodes[1:], {"weight": weights["weight"]}
    given = tensor("x", ["N", 5, 64]) if name == "x" else tensor("ids", ["N", 5], "int64")
    return make_model(nodes, [given], [tensor("y", ["N", 5, 32])], weights)


@pytest.mark.parametrize(("bits", "precision"), [(8, Precision.INT8_WEIGHTS), (4, Precision.INT4_WEIGHTS)])
def test_weights_in_few_bits_agree_where_taken_and_are_refused_elsewhere(tested, bits, precision):
    if not takes(tested, precision):
        with pytest.raises(ModelError, match=rf"{tested.name} does not take .*MatMulNBits"):
            loaded(tested, to_weight_only(embedded_product("x"), bits=bits))
        return
    small = to_weight_only(embedded_product("ids"), bits=bits)
    executable = loaded(tested, small)
    feeds = {"ids": np.arange(15).reshape(3, 5)}
    outputs, expected = executable.run(feeds)["y"], run_directly(small, feeds)["y"]
    assert (outputs.shape, outputs.dtype) == (expected.shape, expected.dtype)
    if computes(tested):
        np.testing.assert_allclose(outputs, expected, atol=0.02 * np.abs(expected).max())  # inputs may be in 8 bits
    executable.close()


def test_fp16_variant_agrees_where_taken_and_is_refused_elsewhere(tested):
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float16)
    nodes = [
        helper.make_node("Cast", ["image"], ["half"], "in", to=onnx.TensorProto.FLOAT16),
        helper.make_node("Conv", ["half", "weight"], ["conv"], "conv"),
        helper.make_node("Cast", ["conv"], ["y"], "out", to=onnx.TensorProto.FLOAT),
    ]
    model = make_model(nodes, [tensor("image", ["N", 3, 8, 8])], [tensor("y", ["N", 4, 6, 6])], {"weight": weight})
    if not takes(tested, Precision.FP16):
        with pytest.raises(
            ModelError, match=rf"(?i){tested.name} does not take .*({'|'.join(tested.devices()[0].precisions)})"
        ):
            loaded(tested, model)
        return
    executable = loaded(tested, model)
    outputs, expected = executable.run(images(3))["y"], run_directly(model, images(3))["y"]
    assert (outputs.shape, outputs.dtype) == (expected.shape, expected.dtype)
    if computes(tested):
        np.testing.assert_allclose(outputs, expected, atol=0.02)
    executable.close()


def contents(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.rglob("*") if file.is_file()}


def test_second_load_takes_what_the_first_kept(tested, classifier, tmp_path):
    options = on_first(tested, cache=tmp_path / "made" / "here")
    loaded(tested, classifier, options).close()
    kept = contents(tmp_path)
    executable = loaded(tested, classifier, options)
    assert contents(tmp_path) == kept
    assert [str(spec) for spec in executable.inputs] == ["image: float32[N, 3, 8, 8]"]
    assert_right(tested, classifier, images(3), executable.run(images(3)))
    executable.close()


def test_graph_from_the_cache_runs_when_its_file_is_gone(tested, tmp_path):
    model = taken(tested, conv_classifier())
    options = on_first(tested, threads=1, cache=tmp_path / "cache")
    loaded(tested, model, options).close()
    executable = loaded(tested, model, options)
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    gc.collect()
    others = [np.full(1 << 16, 7, np.uint8) for _ in range(64)]  # takes up memory that was given back
    assert_right(tested, model, images(3), executable.run(images(3)))
    assert len(others) == 64
    executable.close()


def test_cached_graph_is_never_another_one(tested, tmp_path):
    for seed in (0, 1):
        for threads in (1, 2):
            model = taken(tested, conv_classifier(seed=seed))
            executable = loaded(tested, model, on_first(tested, threads=threads, cache=tmp_path))
            assert_right(tested, model, images(2), executable.run(images(2)))
            executable.close()


def test_external_weights_that_changed_are_not_taken_from_the_cache(tested, tmp_path):
    for seed in (0, 1):
        model = taken(tested, conv_classifier(seed=seed))
        (tmp_path / "w.bin").unlink(missing_ok=True)
        save_with_data_outside(model, tmp_path / "model.onnx")
        executable = tested.load(tmp_path / "model.onnx", on_first(tested, cache=tmp_path / "cache"))
        assert_right(tested, model, images(), executable.run(images()))
        executable.close()


def flipped(data: bytes) -> bytes:
    """The same length, with 32 bytes in the middle altered: what a worn flash gives back."""
    middle = len(data) // 2
    return data[:middle] + bytes(byte ^ 0x55 for byte in data[middle : middle + 32]) + data[middle + 32 :]


@pytest.mark.parametrize(
    "damage",
    [lambda _: b"", lambda data: data[: len(data) // 2], lambda _: b"garbage" * 50, flipped],
    ids=["empty", "cut", "garbage", "flipped"],
)
def test_damaged_cache_is_made_again(tested, classifier, tmp_path, damage):
    options = on_first(tested, cache=tmp_path)
    loaded(tested, classifier, options).close()
    for file in contents(tmp_path):
        file.write_bytes(damage(file.read_bytes()))
    damaged = contents(tmp_path)
    executable = loaded(tested, classifier, options)
    assert_right(tested, classifier, images(3), executable.run(images(3)))
    executable.close()
    repaired = contents(tmp_path)
    assert repaired.keys() >= damaged.keys()  # more where every number of rows is compiled for
    assert all(repaired[file] != damaged[file] for file in damaged)


def test_cache_that_cannot_be_written_costs_time_only_and_is_told(tested, classifier, tmp_path):
    loaded(tested, classifier, on_first(tested, cache=tmp_path)).close()
    keeps = bool(contents(tmp_path))
    (tmp_path / "file").write_text("no folder")
    executable = loaded(tested, classifier, on_first(tested, cache=tmp_path / "file"))
    assert_right(tested, classifier, images(), executable.run(images()))
    assert ("not cached" in executable.placement.detail) == keeps
    executable.close()


class FullDisk(io.FileIO):
    """A file on a disk that has room for 16 more bytes."""

    def write(self, data) -> int:
        if self.tell() + len(data) <= 16:
            return super().write(data)
        super().write(bytes(data)[: 16 - self.tell()])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fileno(self) -> int:
        raise io.UnsupportedOperation("a disk that is full takes no shortcuts, such as sendfile")


@pytest.fixture
def full(monkeypatch, tmp_path) -> Path:
    """A folder for a cache whose disk is full."""
    folder, plain = tmp_path / "full", open
    folder.mkdir()

    def limited(file, mode="r", *arguments, **settings):
        if not isinstance(file, int) and Path(file).is_relative_to(folder) and set(mode) & set("wax+"):
            raw = FullDisk(file, mode.replace("b", "").replace("t", ""))
            return raw if "b" in mode else io.TextIOWrapper(raw, write_through=True)
        return plain(file, mode, *arguments, **settings)

    monkeypatch.setattr(io, "open", limited)
    monkeypatch.setattr("builtins.open", limited)
    return folder


def test_full_disk_while_caching_costs_time_only_and_is_told(tested, classifier, tmp_path, full):
    loaded(tested, classifier, on_first(tested, cache=tmp_path / "roomy")).close()
    keeps = bool(contents(tmp_path / "roomy")) if (tmp_path / "roomy").exists() else False
    executable = loaded(tested, classifier, on_first(tested, cache=full))
    assert_right(tested, classifier, images(), executable.run(images()))
    told = re.search(r"not cached: .*No space left on device; nothing was kept", executable.placement.detail)
    assert bool(told) == keeps
    assert list(full.iterdir()) == []
    executable.close()


def test_nothing_is_left_beside_the_model(tested, classifier, tmp_path):
    path = save(classifier, tmp_path / "model.onnx")
    tested.load(path, on_first(tested)).close()
    assert list(tmp_path.iterdir()) == [path]


_WATCHED = """
import sys
def watch(event, arguments):
    if event.startswith("socket.") and event != "socket.__new__":
        with open(sys.argv[3], "a") as log: print(event, arguments, file=log)
        raise ConnectionError(event)
sys.addaudithook(watch)
import numpy
from pathlib import Path
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions
tested = engine(sys.argv[1])
options = EngineOptions(threads=1, compute=tested.devices()[0].computes[0])
executable = tested.load(Path(sys.argv[2]), options)
executable.run({"image": numpy.ones((1, 3, 8, 8), "float32")})
executable.close()
"""


def test_nothing_is_reported_to_the_engines_maker(tested, classifier, tmp_path):
    """No address is looked up, and neither the home nor the folder for temporary files keeps anything."""
    home, temporary, log = tmp_path / "home", tmp_path / "temporary", tmp_path / "log"
    home.mkdir()
    temporary.mkdir()
    automated = ("CI", "TF_BUILD", "JENKINS_URL", "ORT_DISABLE_TELEMETRY")  # where makers ask for no reports
    environment = {key: value for key, value in os.environ.items() if key not in automated}
    environment |= {"HOME": str(home), "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["SANDERLING_CACHE"] = str(cache_folder())  # where engines are that were installed on request
    model = save(classifier, tmp_path / "model.onnx")
    command = [sys.executable, "-c", _WATCHED, tested.name, str(model), str(log)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert not log.exists()
    assert [*home.iterdir(), *temporary.iterdir()] == []


def test_inputs_in_any_memory_layout_are_read_right(tested, classifier):
    executable = loaded(tested, classifier)
    plain = images(3)["image"]
    read_only = plain.copy()
    read_only.flags.writeable = False
    for array in (np.asfortranarray(plain), plain[::-1], plain[:, :, ::-1], read_only):
        assert_right(tested, classifier, {"image": array}, executable.run({"image": array}))
    executable.close()


def test_first_operator_does_not_write_into_the_callers_array(tested):
    model = taken(tested, chain(["Relu", "Neg"], shape=("N", 64)))
    executable = loaded(tested, model)
    feeds = random_arrays({"x": (5, 64)})
    assert_right(tested, model, random_arrays({"x": (5, 64)}), executable.run(feeds))
    np.testing.assert_array_equal(feeds["x"], random_arrays({"x": (5, 64)})["x"])
    executable.close()


def test_names_and_order_of_inputs_and_outputs_are_the_graphs(tested):
    """Two inputs of one shape in an order that is not theirs of use; outputs inside the graph, and renamed."""
    nodes = [
        helper.make_node("Sub", ["second", "first"], ["inner"], "sub"),
        helper.make_node("Relu", ["inner"], ["hidden"], "relu"),
        helper.make_node("Neg", ["hidden"], ["last"], "neg"),
    ]
    inputs = [tensor(name, ["N", 4]) for name in ("first", "second")]
    outputs = [tensor(name, ["N", 4]) for name in ("last", "inner", "hidden")]
    model = taken(tested, make_model(nodes, inputs, outputs))
    executable = loaded(tested, model)
    feeds = random_arrays({"second": (3, 4), "first": (3, 4)})
    assert [spec.name for spec in executable.inputs] == ["first", "second"]
    results = executable.run(feeds)
    assert list(results) == ["last", "inner", "hidden"]
    assert_right(tested, model, feeds, results)
    executable.close()


def one_input(*nodes: onnx.NodeProto, shape=("N", 4), output=("N", 4), weights=None) -> onnx.ModelProto:
    return make_model(list(nodes), [tensor("x", shape)], [tensor("y", output)], weights)


_FIRST = {"axes": np.array([0])}
_POINTWISE = {"weight": np.random.default_rng(0).standard_normal((3, 3, 1, 1)).astype(np.float32)}
_CONV = helper.make_node("Conv", ["x", "weight"], ["h"], "conv")
_MEAN_OFF = [
    helper.make_node("ReduceMean", ["h", "axes"], ["mean"], "mean", keepdims=1),
    helper.make_node("Sub", ["h", "mean"], ["y"], "sub"),
]
ODD_GRAPHS = {
    "rows share a softmax": one_input(helper.make_node("Softmax", ["x"], ["y"], "softmax", axis=0)),
    "rows share a softmax, counted from the end": one_input(helper.make_node("Softmax", ["x"], ["y"], "s", axis=-2)),
    "rows share a mean": one_input(helper.make_node("Identity", ["x"], ["h"]), *_MEAN_OFF, weights=_FIRST),
    "rows share a mean after a convolution": one_input(
        _CONV, *_MEAN_OFF, shape=("N", 3, 8, 8), output=("N", 3, 8, 8), weights={**_FIRST, **_POINTWISE}
    ),
    "mean of the only row": one_input(
        _CONV, *_MEAN_OFF, shape=(1, 3, 8, 8), output=(1, 3, 8, 8), weights={**_FIRST, **_POINTWISE}
    ),
    "mean of everything": one_input(
        helper.make_node("ReduceMean", ["x"], ["mean"], "mean", keepdims=0),
        helper.make_node("Sub", ["x", "mean"], ["y"], "sub"),
    ),
    "sum of the rows": one_input(
        helper.make_node("ReduceSum", ["x", "axes"], ["y"], "sum", keepdims=0), output=(4,), weights=_FIRST
    ),
    "rows meet rows": one_input(
        helper.make_node("Transpose", ["x"], ["t"], "t", perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["y"], "matmul"),
        output=("N", "N"),
    ),
    "rows meet rows in one operator": one_input(
        helper.make_node("Einsum", ["x", "x"], ["y"], "einsum", equation="ij,kj->ik"), output=("N", "N")
    ),
    "rows become columns": one_input(helper.make_node("Transpose", ["x"], ["y"], "t", perm=[1, 0]), output=(4, "N")),
    "rows are cut": one_input(
        helper.make_node("Reshape", ["x", "shape"], ["y"], "r"), output=("M", 2), weights={"shape": np.array([-1, 2])}
    ),
    "rows are joined": one_input(
        helper.make_node("Reshape", ["x", "shape"], ["y"], "r"), output=(1, "M"), weights={"shape": np.array([1, -1])}
    ),
    "rows are doubled": one_input(helper.make_node("Concat", ["x", "x"], ["y"], "c", axis=0), output=("M", 4)),
    "rows are counted": one_input(
        helper.make_node("Shape", ["x"], ["shape"], "shape"),
        helper.make_node("Cast", ["shape"], ["sizes"], "cast", to=onnx.TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["sizes"], ["most"], "max", keepdims=0),
        helper.make_node("Mul", ["x", "most"], ["y"], "mul"),
    ),
    "rows are summed up": one_input(
        helper.make_node("CumSum", ["x", "axis"], ["y"], "cumsum"), weights={"axis": np.array(0)}
    ),
    "a batch of three": one_input(
        helper.make_node("Conv", ["x", "weight"], ["y"]), shape=(3, 3, 8, 8), output=(3, 3, 8, 8), weights=_POINTWISE
    ),
    "no batch axis": one_input(helper.make_node("Neg", ["x"], ["y"], "neg"), shape=(5,), output=(5,)),
    "six axes": one_input(
        helper.make_node("Neg", ["x"], ["y"], "neg"), shape=("N", 2, 2, 2, 2, 3), output=("N", 2, 2, 2, 2, 3)
    ),
    "two dynamic axes": one_input(helper.make_node("Neg", ["x"], ["y"], "neg"), shape=("N", "M"), output=("N", "M")),
    "an input that nothing reads": make_model(
        [helper.make_node("Neg", ["x"], ["y"], "neg")],
        [tensor("z", ["N", 4]), tensor("x", ["N", 4])],
        [tensor("y", ["N", 4])],
    ),
    "an output that is a weight": make_model(
        [helper.make_node("Identity", ["w"], ["z"], "i"), helper.make_node("Neg", ["x"], ["y"], "neg")],
        [tensor("x", ["N", 4])],
        [tensor("z", [2]), tensor("y", ["N", 4])],
        {"w": np.ones(2, np.float32)},
    ),
    "an output that is an input": make_model(
        [helper.make_node("Neg", ["x"], ["y"], "neg")],
        [tensor("x", ["N", 4])],
        [tensor("x", ["N", 4]), tensor("y", ["N", 4])],
    ),
    "only an identity": chain(["Identity"], shape=("N", 4)),
    "flattened by its own size": one_input(
        helper.make_node("Shape", ["x"], ["size"], "shape", end=1),
        helper.make_node("Concat", ["size", "rest"], ["shape"], "concat", axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["flat"], "reshape"),
        helper.make_node("Softmax", ["flat"], ["y"], "softmax", axis=1),
        shape=("N", 3, 2, 2),
        output=("N", 12),
        weights={"rest": np.array([-1])},
    ),
}


@pytest.mark.parametrize("case", ODD_GRAPHS)
def test_graph_is_run_right_or_refused(tested, case):
    if not computes(tested):
        pytest.skip(f"{tested.name} knows no shapes that nodes compute")
    model = ODD_GRAPHS[case]
    shapes = {value.name: sizes_of(value) for value in model.graph.input}
    assert_right_or_refused(tested, taken(tested, model), random_arrays(shapes))


def test_batch_without_rows_gives_results_without_rows(tested, classifier):
    executable = loaded(tested, classifier)
    try:
        outputs = executable.run(images(0))
        executable.run(images(0), {"scores": np.empty((0, 4), np.float32)})
    except EngineError:
        return
    assert outputs["scores"].shape == (0, 4)


@pytest.mark.parametrize("rows", [1, 3])
def test_results_are_written_to_the_callers_arrays(tested, classifier, rows):
    executable = loaded(tested, classifier)
    outputs = {"scores": np.full((rows, 4), 77, np.float32)}
    found = executable.run(images(rows), outputs)
    assert found["scores"] is outputs["scores"]
    assert_right(tested, classifier, images(rows), outputs)
    np.testing.assert_array_equal(outputs["scores"], executable.run(images(rows))["scores"])
    executable.close()


def test_all_outputs_are_written_to_the_callers_arrays(tested):
    model = taken(tested, sum_and_difference())
    executable = loaded(tested, model)
    feeds = random_arrays({"a": (2, 3), "b": (2, 3)})
    assert_right_in_callers_arrays(tested, model, feeds, executable)
    executable.close()


@pytest.mark.parametrize("given", [1, 2, 4, 9])
def test_array_of_another_shape_than_the_result_is_an_engine_error(tested, classifier, given):
    executable = loaded(tested, classifier)
    around = np.full(99, 77, np.float32)
    scores = around[33 : 33 + 4 * given].reshape(given, 4)
    for _ in range(2):
        with pytest.raises(EngineError, match=rf"{tested.name}.*'scores'.*\b{given}\b"):
            executable.run(images(3), {"scores": scores})
    assert (np.delete(around, np.s_[33 : 33 + 4 * given]) == 77).all()
    assert_right(tested, classifier, images(3), executable.run(images(3)))
    assert_right_in_callers_arrays(tested, classifier, images(3), executable)
    executable.close()


def test_callers_arrays_are_left_alone_after_the_call(tested, classifier):
    executable = loaded(tested, classifier)
    outputs = {"scores": np.empty((2, 4), np.float32)}
    executable.run(images(2), outputs)
    kept = outputs["scores"].copy()
    executable.run(images(2, seed=1))
    executable.run(images(2, seed=2), {"scores": np.empty((2, 4), np.float32)})
    np.testing.assert_array_equal(outputs["scores"], kept)
    executable.close()
    np.testing.assert_array_equal(outputs["scores"], kept)


def test_callers_arrays_are_not_kept_alive(tested, classifier):
    executable = loaded(tested, classifier)
    for bound in (False, True):
        feeds, outputs = images(2), {"scores": np.empty((2, 4), np.float32)}
        alive = [weakref.ref(feeds["image"]), weakref.ref(outputs["scores"])]
        executable.run(feeds, outputs if bound else None)
        del feeds, outputs
        gc.collect()
        assert [reference() for reference in alive] == [None, None]
    executable.close()


IN_PLACE = {"null", "onnxruntime", "openvino", "qnn"}  # engines that read and write the caller's memory


def test_bytes_that_are_copied_are_counted(tested, classifier):
    """What Python allocates during a call shows copies that the counter would not tell of."""
    executable = loaded(tested, classifier)
    feeds, outputs = images(64), {"scores": np.empty((64, 4), np.float32)}
    executable.run(feeds, outputs)
    before = executable.copied_bytes
    tracemalloc.start()
    executable.run(feeds, outputs)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    copied = executable.copied_bytes - before
    assert most < copied + feeds["image"].nbytes // 2
    assert (copied == 0) == (tested.name in IN_PLACE)
    assert copied == 0 or copied >= feeds["image"].nbytes
    executable.close()


@pytest.mark.parametrize("layout", ["Fortran", "reversed", "every second", "read-only"])
def test_inputs_in_any_memory_layout_are_read_right_into_the_callers_arrays(tested, classifier, layout):
    executable = loaded(tested, classifier)
    plain = images(6)["image"]
    array = {
        "Fortran": np.asfortranarray(plain),
        "reversed": plain[:, :, ::-1],
        "every second": plain[::2],
        "read-only": np.frombuffer(plain.tobytes(), np.float32).reshape(plain.shape),
    }[layout]
    before = executable.copied_bytes
    outputs = {"scores": np.empty((len(array), 4), np.float32)}
    assert_right(tested, classifier, {"image": array}, executable.run({"image": array}, outputs))
    if tested.name != "null" and layout != "read-only":
        assert executable.copied_bytes - before >= array.nbytes
    executable.close()


def test_threads_get_their_own_results_in_their_own_arrays(tested, classifier):
    executable = loaded(tested, classifier)
    barrier = Barrier(THREADS)

    def work(seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
        rows = 1 + seed % 3
        barrier.wait()
        found = []
        for _ in range(20):
            outputs = {"scores": np.empty((rows, 4), np.float32)}
            executable.run(images(rows, seed=seed), outputs)
            found.append((outputs["scores"], executable.run(images(rows, seed=seed))["scores"]))
        return found

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(work, range(THREADS)))
    for seed, pairs in enumerate(results):
        for arrays in pairs:
            for scores in arrays:
                assert_right(tested, classifier, images(1 + seed % 3, seed=seed), {"scores": scores})
    executable.close()


def test_output_whose_shape_its_values_decide_fits_its_array_or_is_an_engine_error(tested):
    if not computes(tested):
        pytest.skip(f"{tested.name} knows no shapes that nodes compute")
    model = make_model(
        [helper.make_node("NonZero", ["x"], ["y"], "found")], [tensor("x", [4])], [tensor("y", [1, "found"], "int64")]
    )
    try:
        executable = loaded(tested, model)
    except ModelError:
        assert not takes_everything(tested)
        return
    for values in ([0, 3, 0, 1], [1, 1, 1, 0], [0, 0, 0, 2]):
        feeds = {"x": np.array(values, np.float32)}
        outputs = {"y": np.full((1, 2), 77)}
        if np.count_nonzero(values) == 2:
            assert executable.run(feeds, outputs)["y"].tolist() == [[1, 3]]
            continue
        with pytest.raises(EngineError, match=tested.name):
            executable.run(feeds, outputs)
    executable.close()
