from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from sanderling.workshop.quantize.blocks import Block, find_blocks
from tests.models import conv_classifier, make_model, tensor

WEIGHTS = {
    "w": np.ones((4, 4, 1, 1), np.float32),
    "b": np.ones(4, np.float32),
    "zero": np.float32(0),
    "six": np.float32(6),
}
CONV = helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv")


def graph_of(
    *nodes: onnx.NodeProto, outputs: tuple[str, ...] = ("y",), weights: dict[str, np.ndarray] | None = None
) -> onnx.ModelProto:
    shape = ["N", 4, 8, 8]
    inputs = [tensor(name, shape) for name in ("x", "z")]
    return make_model(nodes, inputs, [tensor(name, None) for name in outputs], WEIGHTS | (weights or {}))


def node(operator: str, inputs: list[str], output: str = "y", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, [output], operator.lower(), **attributes)


def found(*nodes: onnx.NodeProto, **options: object) -> dict[str, Block]:
    return {block.name: block for block in find_blocks(graph_of(*nodes, **options))}


def branch_that_reads(name: str) -> onnx.NodeProto:
    """An If whose two branches return ``name`` of the graph around it."""
    branches = [
        helper.make_graph([helper.make_node("Neg", [name], [f"{part}_y"])], part, [], [tensor(f"{part}_y", None)])
        for part in ("then", "otherwise")
    ]
    return helper.make_node("If", ["flag"], ["branched"], "if", then_branch=branches[0], else_branch=branches[1])


def test_classifier_falls_into_its_blocks_in_the_graphs_order():
    blocks = find_blocks(conv_classifier())
    assert [block.name for block in blocks] == ["conv", "relu", "pool", "flatten", "fc"]
    assert [block.heavy for block in blocks] == [True, False, False, False, True]
    assert [block.weight for block in blocks if block.heavy] == ["conv_weight", "fc_weight"]


@pytest.mark.parametrize("activation", [node("Relu", ["c"]), node("Clip", ["c", "zero", "six"])], ids=["relu", "clip"])
def test_activation_that_alone_reads_a_convolution_belongs_to_it(activation):
    (block,) = find_blocks(graph_of(CONV, activation))
    assert (block.name, block.activation, block.inputs, block.outputs) == ("conv", activation.name, ("x",), ("y",))


def test_activation_stays_by_itself_when_another_node_reads_what_it_reads():
    blocks = found(CONV, node("Relu", ["c"], "r"), node("Add", ["c", "r"]))
    assert blocks["conv"].activation == ""
    assert blocks["conv"].outputs == ("c",)
    assert "relu" in blocks


def test_activation_stays_by_itself_when_the_graph_returns_what_it_reads():
    assert found(CONV, node("Relu", ["c"]), outputs=("y", "c"))["conv"].activation == ""


def test_activation_stays_by_itself_when_a_subgraph_reads_what_it_reads():
    nodes = (CONV, node("Relu", ["c"]), branch_that_reads("c"))
    blocks = found(*nodes, outputs=("y", "branched"), weights={"flag": np.bool_(True)})
    assert blocks["conv"].activation == ""


def test_clip_with_computed_bounds_stays_by_itself():
    blocks = found(CONV, node("ReduceMax", ["z"], "most", keepdims=0), node("Clip", ["c", "zero", "most"]))
    assert blocks["conv"].activation == ""


def test_activation_of_a_sum_belongs_to_the_sum():
    blocks = found(CONV, node("Add", ["c", "z"], "s"), node("Relu", ["s"]))
    assert blocks["add"].activation == "relu"
    assert blocks["add"].inputs == ("c", "z")


def test_constants_of_a_joining_node_are_read_in_eight_bits():
    block = found(node("Mul", ["x", "six"]))["mul"]
    assert (block.inputs, block.constants) == (("x",), ("six",))


BROKEN = np.float32([[1, np.inf], [1, 1]])


@pytest.mark.parametrize(
    ("made", "weights"),
    [
        (node("Conv", ["x", "z"]), {}),
        (node("MatMul", ["x", "m"]), {"m": BROKEN}),
        (node("MatMul", ["x", "m"]), {"m": np.ones(4, np.float32)}),
        (node("MatMul", ["m", "x"]), {"m": np.ones((4, 4), np.float32)}),
        (node("Gemm", ["x", "m"]) , {"m": BROKEN}),
        (node("Gemm", ["x", "m", "b"], alpha=2.0), {"m": np.ones((4, 4), np.float32)}),
        (node("Gemm", ["x", "m", "one"]), {"m": np.ones((4, 4), np.float32), "one": np.ones(1, np.float32)}),
        (node("Gemm", ["x", "m", "row"]), {"m": np.ones((4, 4), np.float32), "row": np.ones((1, 4), np.float32)}),
        (node("Add", ["x", "m"]), {"m": BROKEN}),
        (node("Pad", ["x", "pads", "six"]), {"pads": np.int64([0] * 8)}),
        (helper.make_node("MaxPool", ["x"], ["y", "places"], "maxpool", kernel_shape=[2, 2]), {}),
        (helper.make_node("Conv", ["x", "w"], ["y"], "conv", domain="elsewhere"), {}),
        (node("Softmax", ["x"]), {}),
    ],
    ids=[
        "computed weight", "infinite weight", "vector", "constant at the left", "infinite Gemm", "Gemm with alpha",
        "bias of one", "bias of two axes", "infinite constant", "padding with a value", "pool with places",
        "another domain", "unknown kind",
    ],
)  # fmt: skip
def test_form_that_is_not_computed_in_integers_is_no_block(made, weights):
    assert find_blocks(graph_of(made, weights=weights)) == []


@pytest.mark.parametrize(
    ("made", "weights"),
    [
        (node("Gemm", ["x", "m", "b"], transB=1), {"m": np.ones((4, 7), np.float32)}),
        (node("Gemm", ["x", "m", "b"]), {"m": np.ones((7, 4), np.float32)}),
        (node("MatMul", ["x", "z"]), {}),
        (node("Pad", ["x", "pads"]), {"pads": np.int64([0] * 8)}),
        (node("MaxPool", ["x"], kernel_shape=[2, 2]), {}),
    ],
    ids=["Gemm transposed", "Gemm", "product of activations", "padding with zero", "pool"],
)
def test_form_that_is_computed_in_integers_is_a_block(made, weights):
    assert [block.name for block in find_blocks(graph_of(made, weights=weights))] == [made.name]


@pytest.mark.parametrize(
    ("ranges", "fits"),
    [
        ({"x": (0, 1), "c": (0, 1)}, True),
        ({"x": (0, 1)}, False),
        ({"x": (0, 1), "c": (-np.inf, 1)}, False),
    ],
)
def test_block_fits_when_all_that_it_stores_has_a_finite_range(ranges, fits):
    (block,) = find_blocks(graph_of(CONV, outputs=("c",)))
    assert block.fits(ranges) == fits


def test_what_only_moves_values_needs_the_range_of_its_input_alone():
    (block,) = find_blocks(graph_of(node("Transpose", ["x"])))
    assert block.fits({"x": (0, 1)})
