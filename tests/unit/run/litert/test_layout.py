"""Where transposes stand, and the forms that are recognised."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import helper

from sanderling.run.litert.flatbuffer import serialize
from sanderling.run.litert.graph import read_fixed
from sanderling.run.litert.layout import Layout, arranged, inverse, moves_nothing, order, place_of, turn
from sanderling.run.litert.lowering import Lowering
from sanderling.run.litert.operators import WRITERS
from tests.models import make_model, tensor
from tests.unit.run.litert.cases import random
from tests.unit.run.litert.test_operators import assert_as_onnx_runtime
from tests.unit.run.litert.test_quantized import written


def test_layouts_and_turns_between_them():
    assert order(4, Layout.CHANNELS_LAST) == (0, 2, 3, 1)
    assert order(2, Layout.CHANNELS_LAST) == (0, 1)
    assert arranged((1, 2, 3, 4), Layout.CHANNELS_LAST) == (1, 3, 4, 2)
    assert place_of(-3, 4, Layout.CHANNELS_LAST) == 3
    there, back = turn(4, Layout.GRAPH, Layout.CHANNELS_LAST), turn(4, Layout.CHANNELS_LAST, Layout.GRAPH)
    assert inverse(there) == back
    assert moves_nothing((2, 5, 1, 1), there)
    assert not moves_nothing((2, 5, 3, 1), there)


def residual() -> onnx.ModelProto:
    """Two convolutions, a sum around one, a gate, and a head."""
    weights = {"a": random(8, 4, 3, 3), "b": random(8, 8, 1, 1), "c": random(5, 8)}
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["h"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "b"], ["d"], "second"),
        helper.make_node("Add", ["r", "d"], ["s"], "sum"),
        helper.make_node("GlobalAveragePool", ["s"], ["p"], "pool"),
        helper.make_node("Sigmoid", ["p"], ["g"], "gate"),
        helper.make_node("Mul", ["s", "g"], ["m"], "scaled"),
        helper.make_node("GlobalAveragePool", ["m"], ["q"], "pool2"),
        helper.make_node("Flatten", ["q"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "c"], ["y"], "head", transB=1),
    ]
    return make_model(nodes, [tensor("x", [2, 4, 6, 6])], [tensor("y", [2, 5])], weights)


def test_only_the_border_of_a_convolutional_network_is_transposed():
    codes = Counter(operation.code for operation in written(residual()))
    assert codes["TRANSPOSE"] == 1
    assert_as_onnx_runtime(residual())


def test_activation_is_written_with_the_convolution_before_it():
    codes = Counter(operation.code for operation in written(residual()))
    assert codes["RELU"] == 0
    assert codes["CONV_2D"] == 2


def test_result_that_is_also_an_output_is_not_fused_away():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], "conv"),
        helper.make_node("Relu", ["h"], ["y"], "relu"),
    ]
    outputs = [tensor(name, [1, 3, 2, 2]) for name in ("h", "y")]
    model = make_model(nodes, [tensor("x", [1, 4, 2, 2])], outputs, {"w": random(3, 4, 1, 1)})
    assert_as_onnx_runtime(model)


GELUS = {
    "half last": [("Mul", "x", "e1", "m"), ("Mul", "m", "half", "y")],
    "half first": [("Mul", "x", "half", "h"), ("Mul", "h", "e1", "y")],
    "half of the sum": [("Mul", "e1", "half", "m"), ("Mul", "x", "m", "y")],
    "halved": [("Mul", "x", "e1", "m"), ("Div", "m", "two", "y")],
}


def gelu(case: str, *, divided: bool, root: float = math.sqrt(2)) -> onnx.ModelProto:
    """GELU as exporters take it apart."""
    weights = {"root": np.float32(root), "inverse": np.float32(1 / root), "one": np.float32(1)}
    weights |= {"half": np.float32(0.5), "two": np.float32(2)}
    scaled = ("Div", "x", "root", "d") if divided else ("Mul", "inverse", "x", "d")
    steps = [scaled, ("Erf", "d", "", "e"), ("Add", "e", "one", "e1"), *GELUS[case]]
    nodes = [
        helper.make_node(operator, [name for name in (left, right) if name], [out], f"{operator}_{out}")
        for operator, left, right, out in steps
    ]
    return make_model(nodes, [tensor("x", [2, 30])], [tensor("y", [2, 30])], weights)


@pytest.mark.parametrize("case", GELUS)
@pytest.mark.parametrize("divided", [False, True])
def test_gelu_is_recognised_in_its_forms(case, divided):
    model = gelu(case, divided=divided)
    assert [operation.code for operation in written(model)] == ["GELU"]
    assert_as_onnx_runtime(model)


def test_gelu_of_another_root_is_not_taken_for_one():
    with pytest.raises(Exception, match=r"operator Erf .*GELU"):
        written(gelu("half last", divided=True, root=1.5))


def test_constants_lie_where_the_schema_wants_them():
    model = residual()
    graph = read_fixed(model, {"x": (2, 4, 6, 6)}, WRITERS)
    data = serialize(Lowering(graph).run(WRITERS))
    weight = np.ascontiguousarray(random(8, 4, 3, 3).transpose(0, 2, 3, 1)).tobytes()
    assert data.find(weight) % 16 == 0
    assert data[4:8] == b"TFL3"


def test_same_graph_gives_the_same_bytes():
    graphs = [read_fixed(residual(), {"x": (2, 4, 6, 6)}, WRITERS) for _ in range(2)]
    first, second = (serialize(Lowering(graph).run(WRITERS)) for graph in graphs)
    assert first == second
