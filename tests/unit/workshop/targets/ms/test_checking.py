"""What `.ms` does not take is named with its nodes before anything is converted."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from sanderling.workshop.targets.ms.checking import refusals
from tests.models import conv_classifier, make_model, random_arrays, tensor
from tests.quantized import in_int8


def one_node(operator, shape=(2, 4), dtype="float32", made="float32", **attributes):
    node = helper.make_node(operator, ["x"], ["y"], "odd", **attributes)
    return make_model([node], [tensor("x", shape, dtype)], [tensor("y", shape, made)])


def open_ones(model):
    return [refusal for refusal in refusals(model) if not refusal.automatic]


def test_classifier_is_taken():
    assert refusals(conv_classifier(batch=1)) == ()


def test_operator_that_the_converter_does_not_read_is_named_with_all_its_nodes():
    nodes = [helper.make_node("Sinh", ["x"], ["z"], "first"), helper.make_node("Sinh", ["z"], ["y"], "second")]
    (refused,) = refusals(make_model(nodes, [tensor("x", [2])], [tensor("y", [2])]))
    assert (refused.operator, refused.nodes) == ("Sinh", ("first", "second"))
    assert refused.reason == "MindSpore's converter 2.0.0 does not read it"


def test_node_that_cannot_be_lowered_is_named_with_the_reason():
    pooling = one_node("MaxPool", (1, 1, 8, 8), kernel_shape=[2, 2], dilations=[2, 2], pads=[1, 1, 1, 1])
    (refused,) = open_ones(pooling)
    assert (refused.operator, refused.nodes) == ("MaxPool", ("odd",))
    assert refused.reason == "it is dilated by [2, 2]"


def test_operator_of_a_foreign_domain_is_named_with_it():
    node = helper.make_node("Unheard", ["x"], ["y"], "odd", domain="com.example")
    model = make_model([node], [tensor("x", [2])], [tensor("y", [2])], domains={"com.example": 1})
    assert [(one.operator, one.nodes) for one in open_ones(model)] == [
        ("Unheard", ("odd",)),
        ("com.example.Unheard", ("odd",)),
    ]


def test_rewrites_that_are_exact_are_told_as_automatic():
    (refused,) = refusals(one_node("HardSwish"))
    assert (refused.operator, refused.nodes, refused.automatic) == ("HardSwish", ("odd",), True)


def test_dynamic_rows_become_fixed_and_are_told():
    (refused,) = refusals(conv_classifier())
    assert (refused.operator, refused.nodes, refused.automatic) == ("input", ("image",), True)
    assert "golden vectors" in refused.rewrite


def test_int64_is_held_in_32_bits_and_is_told():
    told = refusals(one_node("Abs", dtype="int64", made="int64"))
    assert [(one.operator, one.nodes, one.automatic) for one in told] == [
        ("input", ("x",), True),
        ("output", ("y",), True),
    ]


@pytest.mark.parametrize("dtype", ["uint8", "float64", "bool"])
def test_other_dtypes_do_not_go_in(dtype):
    node = helper.make_node("Cast", ["x"], ["y"], "cast", to=TensorProto.FLOAT)
    (refused,) = open_ones(make_model([node], [tensor("x", [2], dtype)], [tensor("y", [2])]))
    assert (refused.operator, refused.nodes) == ("input", ("x",))
    assert refused.reason == f"it is {dtype}, and only float32, int32, int64 go in and out"


def test_strings_do_not_go_in():
    given = helper.make_tensor_value_info("x", TensorProto.STRING, [2])
    node = helper.make_node("StringNormalizer", ["x"], ["y"], "words")
    returned = helper.make_tensor_value_info("y", TensorProto.STRING, [2])
    told = open_ones(make_model([node], [given], [returned]))
    assert {("input", ("x",)), ("output", ("y",)), ("StringNormalizer", ("words",))} == {
        (one.operator, one.nodes) for one in told
    }


def test_int8_graph_is_taken():
    model = conv_classifier(batch=1)
    assert refusals(in_int8(model, random_arrays({"image": (1, 3, 8, 8)}))) == ()


def test_operator_that_has_no_form_beside_int8_is_named_with_its_node():
    model = in_int8(conv_classifier(batch=1), random_arrays({"image": (1, 3, 8, 8)}))
    model.graph.node.append(helper.make_node("Sinh", ["scores"], ["bent"], "odd"))
    model.graph.output.append(tensor("bent", [1, 4]))
    (refused,) = open_ones(model)
    assert (refused.operator, refused.nodes) == ("Sinh", ("odd",))


def test_half_precision_graph_is_written_from_float32():
    weights = {"w": np.ones((4,), np.float16)}
    nodes = [
        helper.make_node("Cast", ["x"], ["half"], "down", to=TensorProto.FLOAT16),
        helper.make_node("Mul", ["half", "w"], ["made"], "mul"),
        helper.make_node("Cast", ["made"], ["y"], "up", to=TensorProto.FLOAT),
    ]
    (refused,) = refusals(make_model(nodes, [tensor("x", [4])], [tensor("y", [4])], weights))
    assert (refused.operator, refused.nodes, refused.automatic) == ("weight", ("w",), True)
