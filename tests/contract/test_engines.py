"""One suite that every engine runs. A new engine needs no test of its own to be held to the contract."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import onnx
import pytest
from onnx import helper

from sanderling.core.errors import EngineError, ModelError, OptionError
from sanderling.core.precision import Precision
from sanderling.run.engines import engine, engine_names, known_engine
from sanderling.run.engines.base import DeviceInfo, Engine, EngineOptions, Executable, Optimization
from tests.models import conv_classifier, make_model, random_arrays, run_directly, save, sum_and_difference, tensor

THREADS = 8
ONE = EngineOptions(threads=1)


def computes(tested: Engine) -> bool:
    """Whether the engine's numbers mean anything; otherwise only shapes and dtypes are checked."""
    return tested.name != "null"


@pytest.fixture(params=engine_names())
def tested(request: pytest.FixtureRequest) -> Engine:
    found = known_engine(request.param)
    state = found.availability()
    if not state.installed:
        pytest.skip(f"{request.param} is not installed: {state.hint}")
    return found


def loaded(tested: Engine, model: onnx.ModelProto, options: EngineOptions = ONE) -> Executable:
    return tested.load(model.SerializeToString(), options)


def images(rows: int = 1, *, seed: int = 0) -> dict[str, np.ndarray]:
    return random_arrays({"image": (rows, 3, 8, 8)}, seed=seed)


def assert_right(tested: Engine, model: onnx.ModelProto, feeds: dict, outputs: dict[str, np.ndarray]) -> None:
    expected = run_directly(model, feeds)
    assert outputs.keys() == expected.keys()
    for name, array in outputs.items():
        assert isinstance(array, np.ndarray)
        assert (array.dtype, array.shape) == (expected[name].dtype, expected[name].shape)
        if computes(tested):
            np.testing.assert_allclose(array, expected[name], rtol=1e-3, atol=1e-4)


def test_every_engine_is_found_by_its_file():
    assert {"null", "onnxruntime"} <= set(engine_names())


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
        assert Precision.FP32 in device.precisions
        assert device.memory_bytes is None or device.memory_bytes > 0


def test_model_is_loaded_from_a_path(tested, tmp_path):
    executable = tested.load(save(conv_classifier(), tmp_path / "model.onnx"), ONE)
    assert_right(tested, conv_classifier(), images(), executable.run(images()))
    executable.close()


def test_model_is_loaded_from_bytes(tested):
    executable = loaded(tested, conv_classifier())
    assert_right(tested, conv_classifier(), images(), executable.run(images()))
    executable.close()


def test_external_data_beside_the_model_is_found(tested, tmp_path):
    onnx.save(
        conv_classifier(), tmp_path / "model.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    executable = tested.load(tmp_path / "model.onnx", ONE)
    assert_right(tested, conv_classifier(), images(), executable.run(images()))
    executable.close()


def test_inputs_and_outputs_are_described_as_the_graph_has_them(tested):
    executable = loaded(tested, conv_classifier())
    assert [str(spec) for spec in executable.inputs] == ["image: float32[N, 3, 8, 8]"]
    assert [str(spec) for spec in executable.outputs] == ["scores: float32[N, 4]"]
    executable.close()


def test_all_outputs_are_returned_in_the_graphs_order(tested):
    executable = loaded(tested, sum_and_difference())
    feeds = random_arrays({"a": (2, 3), "b": (2, 3)})
    outputs = executable.run(feeds)
    assert list(outputs) == [spec.name for spec in executable.outputs] == ["sum", "difference"]
    assert_right(tested, sum_and_difference(), feeds, outputs)
    executable.close()


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int64", "int32", "int8", "uint8", "bool"])
def test_dtypes_are_kept(tested, dtype):
    node = helper.make_node("Identity", ["x"], ["y"], "same")
    model = make_model([node], [tensor("x", [1, 4], dtype)], [tensor("y", [1, 4], dtype)])
    executable = loaded(tested, model)
    feeds = {"x": np.array([[1, 0, 1, 1]]).astype(dtype)}
    assert (executable.inputs[0].dtype, executable.outputs[0].dtype) == (dtype, dtype)
    assert_right(tested, model, feeds, executable.run(feeds))
    executable.close()


def test_scalars_are_taken_and_returned(tested):
    model = make_model([helper.make_node("Neg", ["x"], ["y"], "neg")], [tensor("x", [])], [tensor("y", [])])
    executable = loaded(tested, model)
    feeds = {"x": np.array(2, np.float32)}
    assert executable.inputs[0].shape == ()
    assert_right(tested, model, feeds, executable.run(feeds))
    executable.close()


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_dynamic_batch_takes_any_number_of_rows(tested, rows):
    executable = loaded(tested, conv_classifier())
    assert_right(tested, conv_classifier(), images(rows), executable.run(images(rows)))
    executable.close()


@pytest.mark.parametrize("optimization", Optimization)
@pytest.mark.parametrize("lean", [False, True])
def test_options_do_not_change_the_results(tested, optimization, lean):
    executable = loaded(tested, conv_classifier(), EngineOptions(threads=2, optimization=optimization, lean=lean))
    assert_right(tested, conv_classifier(), images(3), executable.run(images(3)))
    executable.close()


def test_same_input_gives_the_same_output_again(tested):
    executable = loaded(tested, conv_classifier())
    first, second = executable.run(images(2))["scores"], executable.run(images(2))["scores"]
    np.testing.assert_array_equal(first, second)
    executable.close()


def test_result_is_the_callers_own(tested):
    executable = loaded(tested, conv_classifier())
    first = executable.run(images(2))["scores"]
    kept = first.copy()
    executable.run(images(2, seed=1))
    np.testing.assert_array_equal(first, kept)
    executable.close()
    np.testing.assert_array_equal(first, kept)


def test_inputs_are_not_changed(tested):
    executable = loaded(tested, conv_classifier())
    feeds = images(2)
    executable.run(feeds)
    np.testing.assert_array_equal(feeds["image"], images(2)["image"])
    executable.close()


def test_closing_twice_is_harmless(tested):
    executable = loaded(tested, conv_classifier())
    executable.close()
    executable.close()


def test_running_after_close_is_an_engine_error(tested):
    executable = loaded(tested, conv_classifier())
    executable.close()
    with pytest.raises(EngineError, match=rf"{tested.name}.*closed"):
        executable.run(images())


def test_closing_one_leaves_another_running(tested):
    first, second = loaded(tested, conv_classifier()), loaded(tested, conv_classifier())
    first.close()
    assert_right(tested, conv_classifier(), images(), second.run(images()))
    second.close()


@pytest.mark.parametrize("data", [b"", b"garbage" * 50, conv_classifier().SerializeToString()[:-400]], ids=len)
def test_bytes_that_are_no_model_are_a_model_error(tested, tmp_path, data):
    (tmp_path / "bad.onnx").write_bytes(data)
    for source in (data, tmp_path / "bad.onnx"):
        with pytest.raises(ModelError, match=tested.name):
            tested.load(source, ONE)


def test_missing_file_is_a_model_error(tested, tmp_path):
    with pytest.raises(ModelError, match=tested.name):
        tested.load(tmp_path / "nowhere.onnx", ONE)


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


def test_failure_while_running_is_an_engine_error(tested):
    if not computes(tested):
        pytest.skip(f"{tested.name} computes nothing that could fail")
    node = helper.make_node("Gather", ["table", "x"], ["y"], "gather")
    weights = {"table": np.arange(3, dtype=np.float32)}
    model = make_model([node], [tensor("x", [1], "int64")], [tensor("y", [1])], weights)
    executable = loaded(tested, model)
    with pytest.raises(EngineError, match=tested.name):
        executable.run({"x": np.array([7])})  # no such row
    assert executable.run({"x": np.array([2])})["y"] == 2
    executable.close()


def test_threads_get_their_own_results(tested):
    executable = loaded(tested, conv_classifier())
    barrier = Barrier(THREADS)

    def work(seed: int) -> list[dict[str, np.ndarray]]:
        barrier.wait()
        return [executable.run(images(1 + seed % 3, seed=seed)) for _ in range(20)]

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(work, range(THREADS)))
    for seed, repeats in enumerate(results):
        for outputs in repeats:
            assert_right(tested, conv_classifier(), images(1 + seed % 3, seed=seed), outputs)
    executable.close()


def test_close_while_others_run_gives_results_or_engine_errors(tested):
    executable = loaded(tested, conv_classifier())
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
