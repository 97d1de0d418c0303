"""Weights of matrix products in few bits."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from sanderling.core.errors import ModelError, OptionError
from sanderling.workshop.quantize.weight_only import is_transformer, to_weight_only
from tests.models import conv_classifier, make_model, random_arrays, run_directly, tensor

WEIGHTS = random_arrays({"table": (64, 128), "first": (128, 64), "second": (64, 32)})


@pytest.fixture(scope="module")
def model():
    """Token embeddings and two products."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["embedded"], "embed"),
        helper.make_node("MatMul", ["embedded", "first"], ["hidden"], "first"),
        helper.make_node("Relu", ["hidden"], ["active"], "relu"),
        helper.make_node("MatMul", ["active", "second"], ["y"], "second"),
    ]
    return make_model(nodes, [tensor("ids", [2, 5], "int64")], [tensor("y", [2, 5, 32])], WEIGHTS)


def cosine(model, other):
    feeds = {"ids": np.random.default_rng(3).integers(0, 64, (2, 5))}
    x, y = (run_directly(graph, feeds)["y"].ravel().astype(np.float64) for graph in (model, other))
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


@pytest.mark.parametrize(
    ("bits", "group_size", "least", "share"), [(8, 32, 0.9995, 0.35), (4, 32, 0.97, 0.25), (4, 16, 0.98, 0.3)]
)
def test_outputs_stay_close_and_the_file_shrinks(model, bits, group_size, least, share):
    before = model.SerializeToString()

    made = to_weight_only(model, bits=bits, group_size=group_size)

    assert cosine(model, made) > least
    assert made.ByteSize() < share * model.ByteSize()
    assert model.SerializeToString() == before


def test_smaller_groups_are_more_exact(model):
    assert cosine(model, to_weight_only(model, bits=4, group_size=16)) > cosine(
        model, to_weight_only(model, bits=4, group_size=128)
    )


@pytest.mark.parametrize(("bits", "group_size"), [(3, 32), (4, 33), (8, 8)])
def test_bits_and_groups_without_a_kernel_are_refused(model, bits, group_size):
    with pytest.raises(OptionError, match="--group-size is one of 16, 32"):
        to_weight_only(model, bits=bits, group_size=group_size)


@pytest.mark.parametrize("bits", [8, 4])
def test_tables_stay_float_when_asked(model, bits):
    made = to_weight_only(model, bits=bits, embeddings=False)

    assert [node.op_type for node in made.graph.node][:2] == ["Gather", "MatMulNBits"]
    assert cosine(model, made) > cosine(model, to_weight_only(model, bits=bits))


@pytest.mark.parametrize(("width", "group"), [(128, 128), (96, 32), (48, 16)])
def test_groups_of_a_table_divide_its_rows(width, group):
    made = to_weight_only(lookup(width), bits=4, group_size=256)

    (node,) = made.graph.node
    assert {attribute.name: attribute.i for attribute in node.attribute}["block_size"] == group
    feeds = {"ids": np.arange(10).reshape(2, 5)}
    expected, got = (run_directly(graph, feeds)["y"] for graph in (lookup(width), made))
    assert np.abs(got - expected).max() < 0.6 * np.ptp(expected) / 15  # half a step, and that of the zero point


def lookup(width, *, rows=10):
    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"], "embed")]
    table = random_arrays({"table": (rows, width)})
    return make_model(nodes, [tensor("ids", [2, 5], "int64")], [tensor("y", [2, 5, width])], table)


def test_table_whose_rows_no_group_divides_stays_float():
    with pytest.raises(ModelError, match="no product and no table has a constant weight"):
        to_weight_only(lookup(41), bits=8)


@pytest.mark.parametrize("attributes", [{}, {"transB": 1}])
@pytest.mark.parametrize("biased", [True, False])
def test_gemm_is_stored_as_the_product_that_it_is(attributes, biased):
    model = gemm(attributes, biased=biased)

    made = to_weight_only(model, bits=8)

    assert [node.op_type for node in made.graph.node] == ["MatMulNBits", *["Add"] * biased]
    assert {tensor.name for tensor in made.graph.initializer}.isdisjoint({"weight", "weight_transposed"})
    feeds = random_arrays({"x": (3, 64)}, seed=5)
    expected, got = (run_directly(graph, feeds)["y"] for graph in (model, made))
    np.testing.assert_allclose(got, expected, atol=0.01 * np.abs(expected).max())


def gemm(attributes, *, biased=True):
    shape = (32, 64) if "transB" in attributes else (64, 32)
    weights = random_arrays({"weight": shape, "bias": (32,)})
    inputs = ["x", "weight", "bias"] if biased else ["x", "weight"]
    nodes = [helper.make_node("Gemm", inputs, ["y"], "fc", **attributes)]
    return make_model(
        nodes, [tensor("x", [3, 64])], [tensor("y", [3, 32])], {name: weights[name] for name in inputs[1:]}
    )


def test_gemm_that_scales_is_left_alone():
    with pytest.raises(ModelError, match="no product and no table"):
        to_weight_only(gemm({"alpha": 2.0}), bits=4)


def test_tables_of_integers_are_left_alone(model):
    counted = onnx.ModelProto()
    counted.CopyFrom(model)
    table = np.arange(64, dtype=np.int64).reshape(64, 1)
    counted.graph.initializer.append(onnx.numpy_helper.from_array(table, "renumbered"))
    counted.graph.node.insert(0, helper.make_node("Gather", ["renumbered", "ids"], ["other"], "renumber"))
    counted.graph.output.append(tensor("other", [2, 5, 1], "int64"))

    made = to_weight_only(counted, bits=4)

    feeds = {"ids": np.arange(10).reshape(2, 5)}
    np.testing.assert_array_equal(run_directly(made, feeds)["other"], feeds["ids"][..., None])


def test_transformers_are_told_from_other_models(model):
    assert is_transformer(attention())
    assert not is_transformer(model)
    assert not is_transformer(conv_classifier())


def test_model_that_attends_with_few_weights_of_products_is_no_transformer():
    assert not is_transformer(attention(further=40_000))


def attention(*, further=0):
    """One head over token embeddings, and ``further`` bytes of other weights."""
    weights = random_arrays({"table": (64, 32), "query": (32, 32), "head": (32, 32), "rest": (1, max(further // 4, 1))})
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"], "embed"),
        helper.make_node("MatMul", ["x", "query"], ["q"], "query"),
        helper.make_node("Transpose", ["x"], ["k"], "turn", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "k"], ["scores"], "scores"),
        helper.make_node("Softmax", ["scores"], ["shares"], "softmax"),
        helper.make_node("MatMul", ["shares", "x"], ["mixed"], "mix"),
        helper.make_node("MatMul", ["mixed", "head"], ["y"], "head"),
        helper.make_node("Add", ["rest", "rest"], ["twice"], "rest"),
    ]
    outputs = [tensor("y", [2, 5, 32]), tensor("twice", list(weights["rest"].shape))]
    return make_model(nodes, [tensor("ids", [2, 5], "int64")], outputs, weights)
