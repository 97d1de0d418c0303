"""INT8 graphs: codes stay codes, and results are within a quantisation step of ONNX Runtime's."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from sanderling.core.errors import ModelError
from sanderling.run.engines import known_engine
from sanderling.run.engines.base import EngineOptions
from sanderling.run.litert.graph import read_fixed
from sanderling.run.litert.lowering import Lowering
from sanderling.run.litert.operators import WRITERS
from sanderling.run.litert.quantization import Quantization, bias_fits, read_quantization, signed
from tests.models import conv_classifier, make_model, random_arrays, run_directly, tensor
from tests.quantized import in_int8, step_of
from tests.unit.run.litert.cases import CONVOLUTIONS, EXACT, PRODUCTS
from tests.unit.run.litert.test_operators import assert_as_onnx_runtime, feeds_for

ENGINE = known_engine("litert")
LAYERS = {**CONVOLUTIONS, **{name: PRODUCTS[name] for name in ("Gemm", "Gemm, turned", "MatMul", "MatMul of a stack")}}
MOVED = (
    "Reshape", "Flatten", "Transpose", "Concat channels", "Split", "Split, uneven", "Slice", "Slice, steps", "Pad",
    "max", "max, padded, after Conv", "mean, padded", "mean of space", "nearest, twice", "linear", "Relu", "Clip to 6",
    "LeakyRelu", "Sigmoid", "HardSwish", "Softmax -1, opset 13", "Add, same", "Add, gate", "Mul, gate", "Sub, same",
    "Add after Conv, same", "Mul after Conv, by channel", "MatMul of stacks",
)  # fmt: skip


def written(model: onnx.ModelProto) -> list:
    """TFLite's operators for a graph of fixed shapes."""
    feeds = feeds_for(model)
    graph = read_fixed(model, {name: array.shape for name, array in feeds.items()}, WRITERS)
    return Lowering(graph).run(WRITERS).used()


def codes_of(model: onnx.ModelProto) -> dict[str, str]:
    """For each TFLite operator, the dtype of its result."""
    return {operation.code: operation.outputs[0].dtype for operation in written(model)}


@pytest.mark.parametrize("case", [*LAYERS, *MOVED])
def test_int8_graph_is_within_a_step_of_onnx_runtime(case):
    model = in_int8(EXACT[case], feeds_for(EXACT[case], seed=1))
    feeds = feeds_for(model, seed=2)
    executable = ENGINE.load(model.SerializeToString(), EngineOptions(threads=1))
    outputs, expected = executable.run(feeds), run_directly(model, feeds)
    for name, array in outputs.items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1.02 * step_of(model, name) or 1e-5)


@pytest.mark.parametrize("case", LAYERS)
def test_layers_with_weights_are_computed_in_int8(case):
    model = in_int8(EXACT[case], feeds_for(EXACT[case]))
    layers = [op for op in written(model) if op.code in
              ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED")]  # fmt: skip
    assert [op.outputs[0].dtype for op in layers] == ["int8"]
    dtypes = sorted(tensor.dtype for tensor in layers[0].inputs if tensor is not None and tensor.data is not None)
    assert [dtype for dtype in dtypes if dtype != "int32"] == ["int8"]


def test_int8_network_stays_in_codes_from_end_to_end():
    model = in_int8(conv_classifier(batch=2), random_arrays({"image": (2, 3, 8, 8)}))
    dtypes = codes_of(model)
    assert {dtypes[code] for code in ("CONV_2D", "MEAN", "FULLY_CONNECTED", "QUANTIZE")} == {"int8"}
    assert dtypes["DEQUANTIZE"] == "float32"


@pytest.mark.parametrize(
    ("case", "code"),
    [
        ("Add, same", "ADD"),
        ("Mul, gate", "MUL"),
        ("Sub, same", "SUB"),
        ("mean of space", "MEAN"),
        ("max, padded, after Conv", "MAX_POOL_2D"),
        ("Concat channels", "CONCATENATION"),
        ("Pad", "PAD"),
        ("Slice", "SLICE"),
    ],
)
def test_operators_without_weights_are_computed_in_int8(case, code):
    assert codes_of(in_int8(EXACT[case], feeds_for(EXACT[case])))[code] == "int8"


def max_pool_after_relu() -> onnx.ModelProto:
    """A stem as ResNet has it."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], "conv"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("MaxPool", ["r"], ["y"], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    ]
    weights = {"w": np.random.default_rng(0).standard_normal((4, 4, 1, 1)).astype(np.float32)}
    return make_model(nodes, [tensor("x", [1, 4, 8, 8])], [tensor("y", [1, 4, 4, 4])], weights)


def test_max_pool_is_padded_with_zeros_only_where_nothing_is_lower():
    assert "PADV2" not in codes_of(max_pool_after_relu())
    assert codes_of(EXACT["max, padded, after Conv"])["PADV2"] == "float32"
    assert codes_of(in_int8(max_pool_after_relu(), feeds_for(max_pool_after_relu())))["PAD"] == "int8"
    assert_as_onnx_runtime(max_pool_after_relu())


def test_max_pool_of_an_input_is_padded_with_the_lowest_value():
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], "turned", perm=[0, 3, 1, 2]),
        helper.make_node("MaxPool", ["t"], ["y"], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    ]
    model = make_model(nodes, [tensor("x", [1, 8, 8, 4])], [tensor("y", [1, 4, 4, 4])])
    assert codes_of(model)["PADV2"] == "float32"
    assert_as_onnx_runtime(model, {"x": -1 - np.abs(random_arrays({"x": (1, 8, 8, 4)})["x"])})


def test_float_island_is_computed_as_real_numbers():
    feeds = feeds_for(EXACT["Softmax -1, opset 13"])
    dtypes = codes_of(in_int8(EXACT["Softmax -1, opset 13"], feeds))
    assert dtypes["SOFTMAX"] == "float32"
    assert dtypes["CONV_2D"] == "int8"


def test_uint8_codes_become_int8_without_a_change_of_meaning():
    codes = np.arange(256, dtype=np.uint8)
    quantization = read_quantization(np.float32(0.25), np.uint8(131), "uint8", 1, 1)
    np.testing.assert_array_equal(quantization.dequantize(signed(codes)), (np.arange(256) - 131) * np.float32(0.25))


def test_bias_fits_only_the_scale_that_tflite_takes_for_granted():
    inputs, weights = Quantization((0.5,), (3,)), Quantization((0.1, 0.2), (0, 0))
    assert bias_fits(Quantization((0.05, 0.1), (0, 0)), inputs, weights)
    assert not bias_fits(Quantization((0.05, 0.11), (0, 0)), inputs, weights)
    assert not bias_fits(Quantization((0.05, 0.1), (0, 1)), inputs, weights)


def test_bias_of_another_scale_is_computed_as_real_numbers():
    model = in_int8(EXACT["plain"], feeds_for(EXACT["plain"]))
    for initializer in model.graph.initializer:
        if "b_quantized_scale" in initializer.name or initializer.name == "b_scale":
            scale = onnx.numpy_helper.to_array(initializer) * np.float32(1.5)
            initializer.CopyFrom(onnx.numpy_helper.from_array(scale, initializer.name))
    assert codes_of(model)["CONV_2D"] == "float32"


@pytest.mark.parametrize("reader", ["Relu", None])
def test_codes_that_something_else_reads_are_refused_by_name(reader):
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "quantize")]
    if reader:
        nodes.append(helper.make_node(reader, ["q"], ["y"], "reader"))
    last = "y" if reader else "q"
    weights = {"s": np.float32(0.1), "z": np.int8(0)}
    model = make_model(nodes, [tensor("x", [4])], [tensor(last, [4], "int8")], weights)
    with pytest.raises(ModelError, match="quantised"):
        ENGINE.load(model.SerializeToString(), EngineOptions())
