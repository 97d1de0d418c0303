from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from sanderling.model.cost import graph_cost
from tests.models import chain, conv_classifier, make_model, tensor, with_constant_nodes


def weight(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def one_node(operator: str, x: list, weights: dict[str, np.ndarray], y: list, **attributes: object) -> onnx.ModelProto:
    node = helper.make_node(operator, ["x", *weights], ["y"], operator.lower(), **attributes)
    return make_model([node], [tensor("x", x)], [tensor("y", y)], weights)


@pytest.mark.parametrize(
    ("model", "macs"),
    [
        # out elements × C_in × k_h × k_w
        (one_node("Conv", [1, 3, 10, 8], {"w": weight(16, 3, 3, 3)}, [1, 16, 8, 6]), 16 * 8 * 6 * 3 * 9),
        (
            one_node("Conv", [1, 3, 10, 8], {"w": weight(16, 3, 3, 3)}, [1, 16, 5, 4], strides=[2, 2], pads=[1] * 4),
            16 * 5 * 4 * 3 * 9,
        ),
        # grouped: C_in / group; depthwise: 1
        (one_node("Conv", [1, 8, 5, 5], {"w": weight(8, 2, 3, 3)}, [1, 8, 3, 3], group=4), 8 * 9 * 2 * 9),
        (one_node("Conv", [1, 8, 5, 5], {"w": weight(8, 1, 3, 3)}, [1, 8, 3, 3], group=8), 8 * 9 * 1 * 9),
        (one_node("Conv", [1, 4, 9], {"w": weight(6, 4, 3)}, [1, 6, 7]), 6 * 7 * 4 * 3),
        # in elements × C_out × k_h × k_w
        (one_node("ConvTranspose", [1, 4, 5, 5], {"w": weight(4, 2, 3, 3)}, [1, 2, 7, 7]), 4 * 25 * 2 * 9),
        # rows × out × in
        (one_node("Gemm", [2, 6], {"w": weight(6, 5)}, [2, 5]), 2 * 5 * 6),
        (one_node("Gemm", [2, 6], {"w": weight(5, 6), "b": weight(5)}, [2, 5], transB=1), 2 * 5 * 6),
        (one_node("Gemm", [6, 2], {"w": weight(6, 5)}, [2, 5], transA=1), 2 * 5 * 6),
        (one_node("MatMul", [2, 3, 4, 6], {"w": weight(6, 5)}, [2, 3, 4, 5]), 2 * 3 * 4 * 5 * 6),
        (one_node("MatMul", [6], {"w": weight(6)}, []), 6),
        # length × batch × directions × gates × hidden × (features + hidden)
        (
            one_node("LSTM", [7, 2, 5], {"w": weight(1, 12, 5), "r": weight(1, 12, 3)}, [7, 1, 2, 3], hidden_size=3),
            7 * 2 * 4 * 3 * (5 + 3),
        ),
        (one_node("Relu", [2, 3], {}, [2, 3]), 0),
    ],
    ids=lambda value: value.graph.node[0].name if isinstance(value, onnx.ModelProto) else str(value),
)
def test_multiply_accumulates_are_those_of_the_formula(model, macs):
    onnx.checker.check_model(model, full_check=True)
    cost = graph_cost(model)
    assert cost.macs == macs
    assert cost.unknown == ()


def test_cost_of_a_classifier_is_the_sum_of_its_nodes():
    cost = graph_cost(conv_classifier())
    by_name = {node.name: node for node in cost.nodes}
    assert by_name["conv"].macs == 8 * 8 * 8 * 3 * 9
    assert by_name["fc"].macs == 4 * 8
    assert cost.macs == by_name["conv"].macs + by_name["fc"].macs
    assert by_name["conv"].weight_bytes == 8 * 3 * 9 * 4
    assert by_name["fc"].weight_bytes == (4 * 8 + 4) * 4
    assert by_name["conv"].output_bytes == 8 * 8 * 8 * 4
    assert cost.compute_density == pytest.approx(cost.macs / cost.moved_bytes)


def test_shared_weight_is_charged_once():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("MatMul", ["t", "w"], ["y"])]
    cost = graph_cost(make_model(nodes, [tensor("x", [1, 4])], [tensor("y", [1, 4])], {"w": weight(4, 4)}))
    assert [node.weight_bytes for node in cost.nodes] == [64, 0]


def test_peak_of_a_chain_is_one_input_and_one_output():
    # 10 floats each; two are alive while a node runs.
    assert graph_cost(chain(["Relu", "Neg", "Abs"], shape=[1, 10])).peak_activation_bytes == 2 * 40


def test_peak_counts_a_branch_that_waits():
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("Concat", ["b", "b", "b"], ["c"], axis=1),  # x gone, a waits: a + b + c = 1 + 1 + 3
        helper.make_node("MatMul", ["c", "w"], ["d"]),
        helper.make_node("Add", ["a", "d"], ["y"]),
    ]
    model = make_model(nodes, [tensor("x", [1, 10])], [tensor("y", [1, 10])], {"w": weight(30, 10)})
    assert graph_cost(model).peak_activation_bytes == 5 * 40


def test_peak_keeps_an_output_until_the_end():
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["y"], ["z"])]
    nodes.append(helper.make_node("Abs", ["z"], ["end"]))
    model = make_model(nodes, [tensor("x", [1, 10])], [tensor("y", [1, 10]), tensor("end", [1, 10])])
    assert graph_cost(model).peak_activation_bytes == 3 * 40  # y, z and end


def test_peak_uses_the_width_of_each_dtype():
    assert graph_cost(chain(["Relu", "Neg"], shape=[1, 10], dtype="float16")).peak_activation_bytes == 2 * 20


def test_dynamic_axes_are_taken_as_one_and_told():
    model = one_node("MatMul", ["N", "T", 6], {"w": weight(6, 5)}, ["N", "T", 5])
    cost = graph_cost(model)
    assert cost.macs == 5 * 6
    assert cost.assumed == {"N": 1, "T": 1}


def test_costing_leaves_the_model_alone():
    model = conv_classifier()
    before = model.SerializeToString(deterministic=True)
    graph_cost(model)
    assert model.SerializeToString(deterministic=True) == before


def test_node_whose_cost_cannot_be_told_is_named():
    node = helper.make_node("Einsum", ["x", "w"], ["y"], "product", equation="ij,jk->ik")
    model = make_model([node], [tensor("x", [2, 3])], [tensor("y", [2, 4])], {"w": weight(3, 4)})
    assert graph_cost(model).unknown == ("Einsum product",)


def test_convolution_of_unknown_shape_is_named():
    nodes = [
        helper.make_node("Mystery", ["x"], ["t"], "mystery", domain="com.acme"),
        helper.make_node("Conv", ["t", "w"], ["y"], "conv"),
    ]
    inputs, outputs = [tensor("x", [1, 3, 8, 8])], [tensor("y", [1, 4, 8, 8])]
    model = make_model(nodes, inputs, outputs, {"w": weight(4, 3, 1, 1)}, domains={"com.acme": 1})
    assert graph_cost(model).unknown == ("Conv conv",)


def test_weights_in_constant_nodes_cost_as_much_as_initialisers():
    plain, constant = graph_cost(conv_classifier()), graph_cost(with_constant_nodes(conv_classifier()))
    assert constant.macs == plain.macs > 0
    assert sum(node.weight_bytes for node in constant.nodes) == sum(node.weight_bytes for node in plain.nodes)


def test_axis_taken_as_1_that_is_smaller_than_the_kernel_is_unknown_and_never_negative():
    model = one_node("Conv", [1, 3, "H", "W"], {"w": weight(4, 3, 3, 3)}, [1, 4, "H2", "W2"])
    cost = graph_cost(model)
    assert cost.macs >= 0
    assert cost.unknown == ("Conv conv",)
