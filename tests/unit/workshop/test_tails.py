from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from sanderling.model.graph import float_tensors
from sanderling.workshop.quantize.tails import Tail, record
from tests.models import conv_classifier, make_model, random_arrays, run_directly, tensor

FEEDS = random_arrays({"x": (2, 4, 6, 6)})


def branched() -> onnx.ModelProto:
    """x → conv → (relu, sigmoid) → sum, with the shape of ``c`` read at run time; ``other`` depends on x alone."""
    weights = {"w": random_arrays({"w": (4, 4, 1, 1)}, seed=1)["w"], "half": np.float32(0.5)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Sigmoid", ["c"], ["s"], "sigmoid"),
        helper.make_node("Shape", ["x"], ["size"], "shape"),
        helper.make_node("Reshape", ["s", "size"], ["t"], "reshape"),
        helper.make_node("Add", ["r", "t"], ["y"], "add"),
        helper.make_node("Mul", ["x", "half"], ["other"], "mul"),
    ]
    results = [tensor("y", [None] * 4), tensor("other", [None] * 4)]
    model = make_model(nodes, [tensor("x", ["N", 4, 6, 6])], results, weights)
    return onnx.shape_inference.infer_shapes(model)


def replaced_in(model: onnx.ModelProto, name: str, readers: tuple[str, ...], value: np.ndarray) -> onnx.ModelProto:
    """The whole graph with a constant in place of a tensor, for these readers."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.initializer.append(onnx.numpy_helper.from_array(value, "replacement"))
    for node in copy.graph.node:
        if node.name in readers:
            for index, read in enumerate(node.input):
                if read == name:
                    node.input[index] = "replacement"
    return copy


def tail_of(model: onnx.ModelProto, name: str):
    (values,) = record(model, float_tensors(model), [FEEDS], 1)
    return Tail(model, name, values.keys(), 1), values


@pytest.mark.parametrize("name", ["x", "c", "r", "s", "t"])
def test_tail_gives_what_the_whole_graph_gives_with_the_tensor_replaced(name):
    model = branched()
    tail, values = tail_of(model, name)
    value = random_arrays({"v": values[name].shape}, seed=5)["v"]
    with tail:
        got = tail.run(values, dict.fromkeys(tail.readers, value))
    expected = run_directly(replaced_in(model, name, tail.readers, value), FEEDS)
    assert got.keys() == set(tail.outputs)
    for output in tail.outputs:
        np.testing.assert_allclose(got[output], expected[output], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reader", ["relu", "sigmoid"])
def test_only_the_reader_that_is_named_gets_the_other_value(reader):
    model = branched()
    tail, values = tail_of(model, "c")
    value = random_arrays({"v": values["c"].shape}, seed=5)["v"]
    with tail:
        got = tail.run(values, {reader: value})["y"]
    expected = run_directly(replaced_in(model, "c", (reader,), value), FEEDS)["y"]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_nothing_replaced_gives_the_graphs_own_outputs():
    model = branched()
    tail, values = tail_of(model, "c")
    with tail:
        np.testing.assert_allclose(tail.run(values, {})["y"], values["y"], rtol=1e-5, atol=1e-6)


def test_tail_names_its_readers_and_the_outputs_behind_them():
    tail, _ = tail_of(branched(), "c")
    assert tail.readers == ("relu", "sigmoid")
    assert tail.outputs == ("y",)
    assert not tail.is_output
    behind_input, _ = tail_of(branched(), "x")
    assert behind_input.outputs == ("y", "other")


def test_what_nothing_follows_has_no_outputs():
    tail, values = tail_of(branched(), "y")
    assert tail.readers == ()
    assert tail.is_output
    assert tail.run(values, {}) == {}
    tail.close()


def test_recorded_values_are_those_of_the_graph():
    model = conv_classifier()
    feeds = random_arrays({"image": (3, 3, 8, 8)})
    (values,) = record(model, ["conv", "flat"], [feeds], 1)
    assert values.keys() == {"image", "conv", "flat", "scores"}
    np.testing.assert_allclose(values["scores"], run_directly(model, feeds)["scores"], rtol=1e-4, atol=1e-5)
