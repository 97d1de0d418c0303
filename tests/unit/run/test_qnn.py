"""What is particular to Qualcomm's NPU; the rest is in the contract suite."""

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import onnx
import pytest
from onnx import helper

from sanderling.core.errors import EngineError, ModelError
from sanderling.core.precision import Precision
from sanderling.run.engines import known_engine
from sanderling.run.engines.base import DeviceKind, EngineOptions, Fidelity
from sanderling.run.engines.qnn_ import _check_integer, _round_first
from tests.models import conv_classifier, make_model, random_arrays, run_directly, save, tensor
from tests.quantized import in_int8

QNN = known_engine("qnn")
needs_qnn = pytest.mark.skipif(find_spec("onnxruntime_qnn") is None, reason="qnn is not installed")


def images(rows=1, *, seed=0):
    return random_arrays({"image": (rows, 3, 8, 8)}, seed=seed)


@pytest.fixture(scope="module")
def classifier():
    return in_int8(conv_classifier(), images(64, seed=99))


def two_nodes(*operator, weights=None, shape=("N", 3, 8, 8), **attributes):
    """Neg, then the operator on its result ``n``; in INT8."""
    name, *inputs = operator
    nodes = [
        helper.make_node("Neg", ["x"], ["n"], "neg"),
        helper.make_node(name, ["n", *inputs], ["y"], name.lower(), **attributes),
    ]
    model = make_model(nodes, [tensor("x", shape)], [tensor("y", [None] * len(shape))], weights)
    return in_int8(model, random_arrays({"x": (8, *shape[1:])}, seed=99))


def bounded(operator, bounds, *, zero, scale=0.05):
    """``x`` (N,) to ``y`` (N,): an operator on float, then rounding to eight bits and back."""
    weights = {"scale": np.float32(scale), "zero": np.uint8(zero), **bounds}
    nodes = [
        helper.make_node(operator, ["x", *bounds], ["bounded"], "bound"),
        helper.make_node("QuantizeLinear", ["bounded", "scale", "zero"], ["q"], "quantize"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], "dequantize"),
    ]
    return make_model(nodes, [tensor("x", ["N"])], [tensor("y", ["N"])], weights)


@pytest.mark.parametrize("zero", [0, 1, 128, 255])
@pytest.mark.parametrize(
    ("operator", "bounds"),
    [
        ("Relu", {}),
        ("Clip", {"low": np.float32(0), "high": np.float32(6)}),
        ("Clip", {"low": np.float32(-0.33), "high": np.float32(1.024)}),
        ("Clip", {"low": np.float32(-100), "high": np.float32(100)}),
    ],
)
def test_rounding_before_a_bound_gives_the_same_bits(operator, bounds, zero):
    model = bounded(operator, bounds, zero=zero)
    rewritten = bounded(operator, bounds, zero=zero)
    _round_first(rewritten)
    assert [node.op_type for node in rewritten.graph.node].count("QuantizeLinear") == 2
    onnx.checker.check_model(rewritten)
    ties = np.arange(-300, 300, dtype=np.float32) * np.float32(0.025)
    edges = np.array([-np.inf, np.inf, -0.0, 0.0, -0.33, 1.024, 6], np.float32)
    x = np.concatenate([ties, np.nextafter(ties, 9), np.nextafter(ties, -9), edges, random_arrays({"x": (5000,)})["x"]])
    np.testing.assert_array_equal(run_directly(rewritten, {"x": x})["y"], run_directly(model, {"x": x})["y"])


def test_rounding_is_moved_before_a_chain_of_operators_without_changing_a_bit():
    """As exporters write the mean over an image: ReduceMean, Reshape, QuantizeLinear."""
    weights = {"axes": np.array([2, 3]), "shape": np.array([-1, 3]), "scale": np.float32(0.02), "zero": np.uint8(120)}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["pooled"], "pool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Transpose", ["pooled"], ["turned"], "turn", perm=[0, 1, 3, 2]),
        helper.make_node("QuantizeLinear", ["turned", "scale", "zero"], ["a"], "quantize_a"),
        helper.make_node("DequantizeLinear", ["a", "scale", "zero"], ["b"], "dequantize_a"),
        helper.make_node("ReduceMean", ["b", "axes"], ["mean"], "mean", keepdims=1),
        helper.make_node("Reshape", ["mean", "shape"], ["flat"], "flatten"),
        helper.make_node("Relu", ["flat"], ["positive"], "relu"),
        helper.make_node("QuantizeLinear", ["positive", "scale", "zero"], ["c"], "quantize_c"),
        helper.make_node("DequantizeLinear", ["c", "scale", "zero"], ["y"], "dequantize_c"),
    ]
    model = make_model(nodes, [tensor("x", ["N", 3, 8, 8])], [tensor("y", ["N", 3])], weights)
    rewritten = onnx.ModelProto()
    rewritten.CopyFrom(model)
    _round_first(rewritten)
    _check_integer(rewritten)
    onnx.checker.check_model(rewritten)
    feeds = random_arrays({"x": (64, 3, 8, 8)})
    np.testing.assert_array_equal(run_directly(rewritten, feeds)["y"], run_directly(model, feeds)["y"])
    with pytest.raises(ModelError, match=r"MaxPool .* computes 'x' in float32"):
        _check_integer(model)


def test_scales_of_channels_stay_where_the_channels_are():
    weights = {"scale": np.array([0.1, 0.2, 0.3], np.float32), "zero": np.zeros(3, np.uint8)}
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"], "turn", perm=[1, 0]),
        helper.make_node("QuantizeLinear", ["turned", "scale", "zero"], ["q"], "quantize", axis=1),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], "dequantize", axis=1),
    ]
    model = make_model(nodes, [tensor("x", [3, "N"])], [tensor("y", ["N", 3])], weights)
    before = model.SerializeToString()
    _round_first(model)
    assert model.SerializeToString() == before


def test_pooling_that_returns_positions_is_left_alone():
    """Of values that round to the same, another may come first."""
    weights = {"scale": np.float32(0.1), "zero": np.uint8(0)}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["pooled", "places"], "pool", kernel_shape=[2, 2]),
        helper.make_node("QuantizeLinear", ["pooled", "scale", "zero"], ["q"], "quantize"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], "dequantize"),
    ]
    outputs = [tensor("y", ["N", 1, 3, 3]), tensor("places", ["N", 1, 3, 3], "int64")]
    model = make_model(nodes, [tensor("x", ["N", 1, 4, 4])], outputs, weights)
    before = model.SerializeToString()
    _round_first(model)
    assert model.SerializeToString() == before


def test_operator_whose_float_result_is_returned_is_left_alone():
    model = bounded("Relu", {}, zero=0)
    model.graph.output.append(tensor("bounded", ["N"]))
    before = model.SerializeToString()
    _round_first(model)
    assert model.SerializeToString() == before


def test_float_graph_is_refused_with_its_operator_and_dtype():
    with pytest.raises(ModelError, match=r"Conv \('conv'\) computes 'image' in float32.*INT8 variant"):
        _check_integer(conv_classifier())


def test_one_float_operator_among_integers_is_refused_by_name(classifier):
    model = onnx.ModelProto()
    model.CopyFrom(classifier)
    model.graph.node.append(helper.make_node("Softmax", ["scores"], ["shares"], "softmax"))
    del model.graph.output[:]
    model.graph.output.append(tensor("shares", ["N", 4]))
    with pytest.raises(ModelError, match=r"Softmax \('softmax'\) computes 'shares' in float32"):
        _check_integer(model)
    _check_integer(classifier)


def test_float_weight_of_an_integer_operator_is_refused(classifier):
    model = onnx.ModelProto()
    model.CopyFrom(classifier)
    conv = next(node for node in model.graph.node if node.op_type == "Conv")
    conv.input[1] = "float_weight"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((8, 3, 3, 3), np.float32), "float_weight"))
    with pytest.raises(ModelError, match=r"Conv .* computes 'float_weight' in float32"):
        _check_integer(model)


@needs_qnn
def test_emulation_is_told_from_hardware():
    (device,) = QNN.devices()
    assert (device.kind, device.precisions) == (DeviceKind.NPU, (Precision.INT8,))
    assert device.fidelity in (Fidelity.SIMULATOR, Fidelity.HARDWARE)
    assert ("emulated" in device.description) == (device.fidelity is Fidelity.SIMULATOR)


@needs_qnn
def test_everything_is_placed_on_the_npu(classifier):
    executable = QNN.load(classifier.SerializeToString(), EngineOptions())
    assert executable.placement.kinds == {DeviceKind.NPU: 1.0}
    assert executable.placement.fell_back == ()
    executable.close()


@needs_qnn
def test_operator_that_the_npu_does_not_have_is_named():
    with pytest.raises(ModelError, match=r"Erf \('erf'\) does not run on the NPU"):
        QNN.load(two_nodes("Erf").SerializeToString(), EngineOptions())


@needs_qnn
@pytest.mark.parametrize(
    "model",
    [
        two_nodes("AveragePool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
        two_nodes("CumSum", "axis", weights={"axis": np.array(1)}),
        two_nodes("LogSoftmax", axis=0),
        two_nodes("Resize", "", "scales", weights={"scales": np.array([1, 1, 1.5, 1.5], np.float32)}, mode="nearest"),
    ],
    ids=lambda model: model.graph.node[5].op_type,
)
def test_operator_that_the_plugin_computes_wrong_is_refused(model):
    with pytest.raises(ModelError, match="is computed wrong"):
        QNN.load(model.SerializeToString(), EngineOptions())


@needs_qnn
def test_nearest_neighbours_that_are_computed_right_are_taken():
    weights = {"scales": np.array([1, 1, 2, 2], np.float32)}
    settings = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    model = two_nodes("Resize", "", "scales", weights=weights, **settings)
    executable = QNN.load(model.SerializeToString(), EngineOptions())
    feeds = random_arrays({"x": (1, 3, 8, 8)})
    np.testing.assert_allclose(executable.run(feeds)["y"], run_directly(model, feeds)["y"], atol=0.05)
    executable.close()


@needs_qnn
def test_every_number_of_rows_is_compiled_once_and_kept(classifier, tmp_path):
    executable = QNN.load(classifier.SerializeToString(), EngineOptions(cache=tmp_path))
    for rows in (1, 2, 3, 4, 5, 6, 1, 2):
        outputs = executable.run(images(rows))["scores"]
        assert outputs.shape == (rows, 4)
        np.testing.assert_allclose(outputs, run_directly(classifier, images(rows))["scores"], atol=0.06)
    assert len(list(tmp_path.iterdir())) == 6
    executable.close()


@needs_qnn
def test_empty_batch_is_an_engine_error(classifier):
    executable = QNN.load(classifier.SerializeToString(), EngineOptions())
    with pytest.raises(EngineError, match="at least one row"):
        executable.run(images(0))
    executable.close()


_ALONE = """
import sys
from pathlib import Path
import numpy
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions

def plain():
    executable = engine("onnxruntime").load(Path(sys.argv[1]), EngineOptions(threads=1))
    return executable.run({"image": numpy.ones((3, 3, 8, 8), "float32")})["scores"], executable.placement

alone = plain()
engine("qnn").load(Path(sys.argv[1]), EngineOptions()).run({"image": numpy.ones((1, 3, 8, 8), "float32")})
beside = plain()
assert alone[1] == beside[1], beside
assert (alone[0] == beside[0]).all()
"""


@needs_qnn
def test_onnxruntime_is_the_same_beside_it_and_nothing_is_printed(classifier, tmp_path):
    model = save(classifier, tmp_path / "model.onnx")
    command = [sys.executable, "-c", _ALONE, str(model)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
