"""The float graph that a quantised one stands for."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import helper

from sanderling.core.errors import ModelError
from sanderling.workshop.quantize.foreign import comparable, dequantized, integer_operators
from tests.models import chain, conv_classifier, make_model, random_arrays, run_directly, tensor


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node if node.op_type != "Identity")


def rounded(
    source: str, made: str, *, scale: str = "scale", zero_point: str = "zero_point", **attributes: int
) -> list[onnx.NodeProto]:
    """Nodes that bring ``source`` to integers and back."""
    return [
        helper.make_node("QuantizeLinear", [source, scale, zero_point], [f"{made}_q"], f"{made}_quantize"),
        helper.make_node(
            "DequantizeLinear", [f"{made}_q", scale, zero_point], [made], f"{made}_dequantize", **attributes
        ),
    ]


def linear(weight_nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], *, opset: int = 21) -> onnx.ModelProto:
    """``x`` (2, 4), rounded, times a weight ``w`` (4, 6) that ``weight_nodes`` make."""
    weights = {"scale": np.float32(0.05), "zero_point": np.uint8(128), **weights}
    nodes = [*rounded("x", "a"), *weight_nodes, helper.make_node("MatMul", ["a", "w"], ["y"], "matmul")]
    return make_model(nodes, [tensor("x", [2, 4])], [tensor("y", [2, 6])], weights, opset=opset)


def within_bounds(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    """The float graph is as close to the quantised one as rounding is."""
    (expected,), (got,) = (list(run_directly(graph, feeds).values()) for graph in (model, dequantized(copied(model))))
    np.testing.assert_allclose(got, expected, atol=0.1 * np.abs(expected).max())
    assert not np.array_equal(got, expected)


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(model.SerializeToString())


QUANTIZED_WEIGHTS = {
    "per tensor, uint8": (
        {},
        np.float32(0.1),
        np.uint8(100),
        np.random.default_rng(0).integers(0, 255, (4, 6), np.uint8),
    ),
    "per channel, int8": (
        {"axis": 1},
        np.linspace(0.01, 0.1, 6, dtype=np.float32),
        np.zeros(6, np.int8),
        np.random.default_rng(1).integers(-127, 127, (4, 6), np.int8),
    ),
    "per block, int8": (
        {"axis": 0, "block_size": 2},
        np.random.default_rng(2).uniform(0.01, 0.1, (2, 6)).astype(np.float32),
        np.random.default_rng(3).integers(-5, 5, (2, 6), np.int8),
        np.random.default_rng(4).integers(-127, 127, (4, 6), np.int8),
    ),
}


@pytest.mark.parametrize("kind", QUANTIZED_WEIGHTS)
def test_weights_become_what_onnxruntime_says_their_integers_stand_for(kind):
    attributes, scale, zero_point, integers = QUANTIZED_WEIGHTS[kind]
    node = helper.make_node("DequantizeLinear", ["w_q", "w_scale", "w_zero"], ["w"], "w_dequantize", **attributes)
    weights = {"w_q": integers, "w_scale": scale, "w_zero": zero_point}
    alone = make_model([node], [tensor("unused", [1])], [tensor("w", [4, 6])], weights, opset=21)

    float_model = dequantized(linear([node], weights))

    (got,) = (onnx.numpy_helper.to_array(weight) for weight in float_model.graph.initializer if weight.name == "w")
    np.testing.assert_allclose(got, run_directly(alone, random_arrays({"unused": (1,)}))["w"], rtol=1e-6)
    assert operators(float_model) == {"Clip": 1, "MatMul": 1}


def test_float_weights_behind_q_and_dq_are_kept_as_they_are():
    weights = {"float_w": random_arrays({"w": (4, 6)})["w"], "s": np.float32(0.5), "z": np.int8(0)}
    model = linear(rounded("float_w", "w", scale="s", zero_point="z"), weights)

    feeds = {"x": np.eye(2, 4, dtype=np.float32)}

    np.testing.assert_allclose(run_directly(dequantized(model), feeds)["y"], weights["float_w"][:2], rtol=1e-6)


@pytest.mark.parametrize(
    ("zero_point", "low", "high"), [(np.uint8(0), 0.0, 5.1), (np.int8(-128), 0.0, 5.1), (np.uint8(51), -1.02, 4.08)]
)
def test_bounds_of_the_integers_stay_where_a_relu_may_have_been_dropped(zero_point, low, high):
    weights = {"scale": np.float32(0.02), "zero_point": zero_point}
    model = make_model(rounded("x", "y"), [tensor("x", [1, 5])], [tensor("y", [1, 5])], weights)

    got = run_directly(dequantized(model), {"x": np.float32([[-9, -0.511, 0.003, 2.005, 9]])})["y"]

    np.testing.assert_allclose(got, [[low, max(low, -0.511), 0.003, 2.005, high]], atol=1e-6)


def test_bounds_that_the_graph_has_already_are_not_repeated():
    weights = {"scale": np.float32(6 / 255), "zero_point": np.uint8(0), "zero": np.float32(0), "six": np.float32(6)}
    nodes = [
        helper.make_node("Clip", ["x", "zero", "six"], ["c"], "clip"),
        *rounded("c", "d"),
        helper.make_node("MaxPool", ["d"], ["p"], "pool", kernel_shape=[2, 2]),
        *rounded("p", "y"),
    ]
    model = make_model(nodes, [tensor("x", [1, 1, 4, 4])], [tensor("y", [1, 1, 3, 3])], weights)

    assert operators(dequantized(model)) == {"Clip": 1, "MaxPool": 1}


def test_pooling_in_integers_becomes_pooling_in_float():
    weights = {"scale": np.float32(0.02), "zero_point": np.uint8(128)}
    first, last = rounded("x", "y")
    pool = helper.make_node("MaxPool", ["y_q"], ["pooled"], "pool", kernel_shape=[2, 2])
    last.input[0] = "pooled"
    model = make_model([first, pool, last], [tensor("x", [1, 1, 4, 4])], [tensor("y", [1, 1, 3, 3])], weights)

    within_bounds(model, random_arrays({"x": (1, 1, 4, 4)}))


@pytest.mark.parametrize("operator", ["ConvInteger", "MatMulInteger", "QLinearConv", "DynamicQuantizeLinear", "QGemm"])
def test_operators_that_compute_in_integers_are_refused_by_name(operator):
    model = chain([operator])

    assert integer_operators(model) == (operator,)
    with pytest.raises(ModelError, match=f"{operator}.*--reference FLOAT.onnx"):
        dequantized(model)


def test_integers_that_no_node_makes_are_refused():
    node = helper.make_node("DequantizeLinear", ["x", "scale"], ["y"], "from_bytes")
    model = make_model([node], [tensor("x", [4], "uint8")], [tensor("y", [4])], {"scale": np.float32(0.1)})

    with pytest.raises(ModelError, match=r"'from_bytes'.*'x'.*--reference"):
        dequantized(model)


def test_scale_that_is_computed_is_refused():
    nodes = [helper.make_node("Abs", ["s"], ["scale"], "abs"), *rounded("x", "y")]
    inputs = [tensor("x", [4]), tensor("s", [])]
    model = make_model(nodes, inputs, [tensor("y", [4])], {"zero_point": np.uint8(0)})

    with pytest.raises(ModelError, match="computes its scale"):
        dequantized(model)


def test_quantised_output_is_refused():
    model = make_model(
        rounded("x", "y")[:1],
        [tensor("x", [4])],
        [tensor("y_q", [4], "uint8")],
        {"scale": np.float32(1), "zero_point": np.uint8(0)},
    )

    with pytest.raises(ModelError, match="output 'y_q' is quantised"):
        dequantized(model)


def test_reference_with_other_inputs_is_refused():
    with pytest.raises(ModelError, match=r"inputs x: float32\[1, 4\].*image"):
        comparable(conv_classifier(), chain(["Relu"]))


def test_outputs_take_the_names_of_the_reference_wherever_they_are_used():
    model, reference = chain(["Relu", "Neg", "Abs"]), chain(["Relu"])
    reference.graph.output[0].name = reference.graph.node[0].output[0] = "t1"

    renamed = comparable(model, reference)

    onnx.checker.check_model(renamed, full_check=True)
    feeds = random_arrays({"x": (1, 4)})
    np.testing.assert_array_equal(run_directly(renamed, feeds)["t1"], run_directly(model, feeds)["y"])
