"""Nodes that ONNX Runtime has no kernel for."""

import pytest

from sanderling.run.ort_kernels import nodes_without_kernel
from tests.models import chain, conv_classifier


@pytest.mark.parametrize("opset", [13, 18, 21])
def test_graph_that_runs_has_none(opset):
    assert nodes_without_kernel(conv_classifier(opset=opset)) == {}


def test_operator_that_onnx_defines_by_others_needs_none():
    assert nodes_without_kernel(chain(["HardSwish", "Celu"])) == {}


def test_every_node_of_an_unknown_operator_is_named():
    model = chain(["Relu", "Relu", "Relu"])
    for node in (model.graph.node[0], model.graph.node[2]):
        node.op_type = "Unheard"
    assert nodes_without_kernel(model) == {"Unheard": ("relu_0", "relu_2")}
