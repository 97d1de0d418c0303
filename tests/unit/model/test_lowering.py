"""Each pass against ONNX Runtime: the lowered graph computes the same, in opset 13, or for Ascend in 18 at most."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import helper

from sanderling.core.errors import ModelError, OptionError
from sanderling.model.graph import opset_of
from sanderling.model.lowering import TARGETS, lower
from tests.models import conv_classifier, make_model, random_arrays, run_directly, tensor, with_constant_nodes

IMAGE, ROW = ("N", 3, 8, 8), ("N", 4)
RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def one(operator, shape=ROW, output=ROW, *, weights=None, inputs=None, opset=18, **attributes) -> onnx.ModelProto:
    """A graph of one node, whose inputs are ``x`` and the weights unless named."""
    names = inputs or ["x", *(weights or {})]
    node = helper.make_node(operator, names, ["y"], "the_node", **attributes)
    return make_model([node], [tensor("x", shape)], [tensor("y", output)], weights, opset=opset)


def operators(model: onnx.ModelProto) -> Counter:
    return Counter(node.op_type for node in model.graph.node)


def attributes_of(model: onnx.ModelProto, operator: str) -> dict:
    node = next(node for node in model.graph.node if node.op_type == operator)
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}


AVERAGE = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
CASES = {
    "HardSwish": one("HardSwish"),
    "HardSigmoid of another slope": one("HardSigmoid", alpha=0.3, beta=0.4),
    "HardSigmoid of slope 1/6": one("HardSigmoid", alpha=1 / 6, beta=0.5),
    "Gelu": one("Gelu", opset=20),
    "Gelu by tanh": one("Gelu", opset=20, approximate="tanh"),
    "Mish": one("Mish"),
    "Elu": one("Elu", alpha=0.7),
    "Celu": one("Celu", alpha=0.7),
    "Selu": one("Selu"),
    "PRelu": one("PRelu", IMAGE, IMAGE, weights={"slope": normal(3, 1, 1)}),
    "Clip with a bound close to 0": one("Clip", weights={"least": np.array(1e-9, np.float32)}),
    "Clip between bounds close to 0": one(
        "Clip", weights={"least": np.array(-1e-5, np.float32), "most": np.array(1, np.float32)}
    ),
    "LayerNormalization": one("LayerNormalization", weights={"scale": normal(4), "bias": normal(4)}),
    "LayerNormalization of several axes": one(
        "LayerNormalization", IMAGE, IMAGE, weights={"scale": normal(3, 8, 8)}, axis=1, epsilon=1e-3
    ),
    "Gemm with factors": one("Gemm", ROW, ("N", 3), weights={"w": normal(4, 3), "b": normal(3)}, alpha=0.5, beta=2.0),
    "Gemm transposed": one("Gemm", (4, 2), (2, 3), weights={"w": normal(3, 4)}, transA=1, transB=1),
    "ReduceMean with axes as an input": one(
        "ReduceMean", IMAGE, ("N", 3), weights={"a": np.array([2, -1])}, keepdims=0
    ),
    "ReduceMax of all axes": one("ReduceMax", ROW, (), keepdims=0),
    "ReduceSum of all axes": one("ReduceSum", ROW, (1, 1)),
    "ReduceSum without axes that does nothing": one("ReduceSum", noop_with_empty_axes=1),
    "Softmax counted from the end": one("Softmax", axis=-2),
    "what follows a reduction": make_model(
        [
            helper.make_node("ReduceMean", ["x", "axes"], ["mean"], "mean", keepdims=0),
            helper.make_node("Softmax", ["mean"], ["soft"], "softmax", axis=-1),
            helper.make_node("Shape", ["soft"], ["size"], "shape", end=1),
            helper.make_node("Concat", ["size", "rest"], ["shape"], "concat", axis=0),
            helper.make_node("Reshape", ["soft", "shape"], ["y"], "reshape"),
        ],
        [tensor("x", IMAGE)],
        [tensor("y", ["N", 3, 1])],
        {"axes": np.array([2, 3]), "rest": np.array([3, 1])},
    ),
    "what follows a LayerNormalization": make_model(
        [
            helper.make_node("LayerNormalization", ["x", "scale"], ["normal"], "norm"),
            helper.make_node("Softmax", ["normal"], ["y"], "softmax", axis=-2),
        ],
        [tensor("x", IMAGE)],
        [tensor("y", IMAGE)],
        {"scale": normal(8)},
    ),
    "Split by number": make_model(
        [helper.make_node("Split", ["x"], ["y", "z"], "split", axis=1, num_outputs=2)],
        [tensor("x", ["N", 5])],
        [tensor("y", ["N", 3]), tensor("z", ["N", 2])],
    ),
    "Split by sizes": make_model(
        [helper.make_node("Split", ["x", "sizes"], ["y", "z"], "split", axis=-1)],
        [tensor("x", ROW)],
        [tensor("y", ["N", 1]), tensor("z", ["N", 3])],
        {"sizes": np.array([1, 3])},
    ),
    "Shape of some axes": make_model(
        [
            helper.make_node("Shape", ["x"], ["size"], "shape", start=1, end=3),
            helper.make_node("Cast", ["size"], ["y"], "cast", to=onnx.TensorProto.FLOAT),
        ],
        [tensor("x", IMAGE)],
        [tensor("y", [2])],
    ),
    "Reshape by its own size": make_model(
        [
            helper.make_node("Shape", ["x"], ["size"], "shape", end=1),
            helper.make_node("Concat", ["size", "rest"], ["shape"], "concat", axis=0),
            helper.make_node("Reshape", ["x", "shape"], ["y"], "reshape", allowzero=1),
        ],
        [tensor("x", IMAGE)],
        [tensor("y", ["N", 192])],
        {"rest": np.array([-1])},
    ),
    "Conv without attributes": one("Conv", IMAGE, ("N", 2, 6, 6), weights={"w": normal(2, 3, 3, 3)}),
    "Conv padded to the same size": one(
        "Conv", IMAGE, ("N", 2, 4, 4), weights={"w": normal(2, 3, 3, 3)}, strides=[2, 2], auto_pad="SAME_LOWER"
    ),
    "Conv padded at the end": one(
        "Conv", IMAGE, ("N", 2, 4, 4), weights={"w": normal(2, 3, 3, 3)}, strides=[2, 2], auto_pad="SAME_UPPER"
    ),
    "ConvTranspose": one("ConvTranspose", IMAGE, ("N", 2, 16, 16), weights={"w": normal(3, 2, 2, 2)}, strides=[2, 2]),
    "MaxPool with dilations of 1": one(
        "MaxPool", IMAGE, ("N", 3, 3, 3), kernel_shape=[3, 3], strides=[2, 2], dilations=[1, 1]
    ),
    "AveragePool that counts its pads": one("AveragePool", IMAGE, ("N", 3, 4, 4), count_include_pad=1, **AVERAGE),
    "AveragePool that does not": one("AveragePool", IMAGE, ("N", 3, 4, 4), **AVERAGE),
    "a classifier of opset 9": conv_classifier(opset=9),
    "a classifier of opset 21": conv_classifier(opset=21),
    "a classifier with Constant nodes": with_constant_nodes(conv_classifier()),
}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_lowered_graph_computes_the_same(case, rows):
    model = CASES[case]
    before = model.SerializeToString()
    lowered = lower(model, "mindspore")
    onnx.checker.check_model(lowered, full_check=True)
    assert opset_of(lowered) == 13
    assert model.SerializeToString() == before
    shapes = {
        value.name: [dim.dim_value or rows for dim in value.type.tensor_type.shape.dim] for value in model.graph.input
    }
    feeds = random_arrays(shapes, seed=rows)
    expected, outputs = run_directly(model, feeds), run_directly(lowered, feeds)
    assert list(outputs) == list(expected)
    for name, array in outputs.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("case", "gone"),
    [
        ("HardSwish", "HardSwish"),
        ("HardSigmoid of another slope", "HardSigmoid"),
        ("Gelu", "Gelu"),
        ("Elu", "Elu"),
        ("PRelu", "PRelu"),
        ("Clip with a bound close to 0", "Clip"),
        ("LayerNormalization", "LayerNormalization"),
        ("Split by number", "Split"),
        ("Reshape by its own size", "Shape"),
        ("a classifier with Constant nodes", "Constant"),
    ],
)
def test_operator_is_gone_after_lowering(case, gone):
    assert gone not in operators(lower(CASES[case], "mindspore"))


def test_hard_sigmoid_that_the_target_has_is_kept():
    assert operators(lower(CASES["HardSigmoid of slope 1/6"], "mindspore")) == {"HardSigmoid": 1}


def test_convolution_says_strides_dilations_pads_and_kernel():
    written = attributes_of(lower(CASES["Conv without attributes"], "mindspore"), "Conv")
    assert written == {"strides": [1, 1], "dilations": [1, 1], "pads": [0, 0, 0, 0], "kernel_shape": [3, 3]}


def test_pooling_loses_its_dilations():
    assert "dilations" not in attributes_of(lower(CASES["MaxPool with dilations of 1"], "mindspore"), "MaxPool")


def test_nodes_weights_and_inputs_that_nothing_reads_are_dropped():
    nodes = [helper.make_node("Neg", ["x"], ["y"], "neg"), helper.make_node("Neg", ["z"], ["unread"], "other")]
    model = make_model(nodes, [tensor("z", ROW), tensor("x", ROW)], [tensor("y", ROW)], {"w": normal(2)})
    lowered = lower(model, "mindspore")
    assert [value.name for value in lowered.graph.input] == ["x"]
    assert operators(lowered) == {"Neg": 1}
    assert not lowered.graph.initializer


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (one("GridSample", IMAGE, ("N", 3, 2, 2), weights={"g": normal(1, 2, 2, 2)}), r"GridSample \('the_node'\).*16"),
        (
            one("MaxPool", IMAGE, ("N", 3, 4, 4), kernel_shape=[3, 3], dilations=[2, 2]),
            r"MaxPool \('the_node'\).*dilated",
        ),
        (one("Cast", opset=19, to=1, saturate=0), r"Cast \('the_node'\).*'saturate'"),
        (one("Frobnicate"), r"Frobnicate \('the_node'\).*no such operator"),
        (one("Reshape", (0, 4), (0, 2), weights={"s": np.array([0, 2])}, allowzero=1), r"Reshape .*empty"),
        (one("Split", ("N", "M"), ("N", 2), num_outputs=1, axis=1), r"Split \('the_node'\).*no fixed size"),
    ],
    ids=["new operator", "dilated pooling", "new attribute", "unknown", "empty", "unknown size"],
)
def test_what_has_no_exact_form_is_refused_by_name(model, told):
    with pytest.raises(ModelError, match=told):
        lower(model, "mindspore")


def test_operator_of_a_foreign_domain_is_refused_by_name():
    node = helper.make_node("Frobnicate", ["x"], ["y"], "frob", domain="com.acme")
    model = make_model([node], [tensor("x", ROW)], [tensor("y", ROW)], domains={"com.acme": 1})
    with pytest.raises(ModelError, match=r"Frobnicate \('frob'\).*'com.acme'"):
        lower(model, "mindspore")


def test_axes_that_are_computed_are_refused():
    nodes = [
        helper.make_node("Cast", ["z"], ["axes"], "cast", to=onnx.TensorProto.INT64),
        helper.make_node("ReduceMean", ["x", "axes"], ["y"], "mean"),
    ]
    model = make_model(nodes, [tensor("x", ROW), tensor("z", [1])], [tensor("y", ["N", 1])])
    with pytest.raises(ModelError, match=r"ReduceMean \('mean'\).*computed while the graph runs"):
        lower(model, "mindspore")


def test_unknown_target_is_told_with_the_known():
    with pytest.raises(OptionError, match=rf"unknown target 'warp': available are {next(iter(TARGETS))}"):
        lower(conv_classifier(), "warp")


ASCEND = {
    "Gelu": one("Gelu", opset=20),
    "Mish": one("Mish"),
    "Relu of a newer opset": one("Relu", opset=22),
    "ReduceL1": one("ReduceL1", output=("N", 1), weights={"axes": np.array([1], np.int64)}),
    "ReduceL2": one("ReduceL2", output=("N",), weights={"axes": np.array([-1], np.int64)}, keepdims=0),
    "ReduceL2 of everything": one("ReduceL2", output=(1, 1)),
    "ReduceL2 of an older opset": one("ReduceL2", output=("N", 1), opset=17, axes=[1]),
}


@pytest.mark.parametrize("case", ASCEND)
def test_graph_for_ascend_computes_the_same_in_opset_18_or_older(case):
    feeds = {"x": random_arrays({"x": (3, 4)}, seed=4)["x"]}
    lowered = lower(ASCEND[case], "ascend")
    onnx.checker.check_model(lowered)
    assert opset_of(lowered) <= 18
    assert {"Gelu", "Mish"}.isdisjoint(operators(lowered))
    assert opset_of(lowered) < 18 or {"ReduceL1", "ReduceL2"}.isdisjoint(operators(lowered))
    want, got = run_directly(ASCEND[case], feeds)["y"], run_directly(lowered, feeds)["y"]
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_what_ascend_knows_stays_for_it():
    assert operators(lower(CASES["HardSwish"], "ascend")) == {"HardSwish": 1}
