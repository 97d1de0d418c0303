from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from sanderling.core.errors import ModelError, OptionError, PackageError
from sanderling.measure.inspection import Finding, inspect
from tests.models import conv_classifier, make_model, save, tensor, with_constant_nodes


def findings(model: onnx.ModelProto, folder: Path) -> dict[str, Finding]:
    return {finding.kind: finding for finding in inspect(save(model, folder / "model.onnx")).findings}


def with_weight(model: onnx.ModelProto, name: str, array: np.ndarray) -> onnx.ModelProto:
    """Replace or add an initialiser."""
    kept = [weight for weight in model.graph.initializer if weight.name != name]
    del model.graph.initializer[:]
    model.graph.initializer.extend([*kept, numpy_helper.from_array(array, name)])
    return model


def test_counts_are_those_of_the_graph(tmp_path):
    seen = inspect(save(conv_classifier(batch=1), tmp_path / "tiny.onnx"))
    parameters = 8 * 3 * 9 + 4 * 8 + 4 * 8 + 4
    assert seen.parameters == parameters
    assert seen.weight_bytes == 4 * parameters
    assert seen.macs == 8 * 8 * 8 * 3 * 9 + 4 * 8
    assert seen.peak_activation_bytes == 2 * 8 * 8 * 8 * 4
    assert seen.operators == dict.fromkeys(
        ["Conv", "BatchNormalization", "Relu", "GlobalAveragePool", "Flatten", "Gemm"], 1
    )
    assert (seen.model, seen.opset) == ("tiny.onnx", 18)
    assert [str(spec) for spec in (*seen.inputs, *seen.outputs)] == [
        "image: float32[1, 3, 8, 8]",
        "scores: float32[1, 4]",
    ]


def test_heaviest_nodes_come_first_and_free_ones_not_at_all(tmp_path):
    seen = inspect(save(conv_classifier(), tmp_path / "tiny.onnx"))
    assert [(node.name, node.op_type) for node in seen.heaviest] == [("conv", "Conv"), ("fc", "Gemm")]
    assert seen.heaviest[0].macs > seen.heaviest[1].macs


def test_clean_model_has_no_findings(tmp_path):
    assert findings(conv_classifier(batch=1), tmp_path) == {}


def test_dynamic_axis_is_told_with_the_size_that_was_taken(tmp_path):
    found = findings(conv_classifier(batch="rows"), tmp_path)
    assert found.keys() == {"dynamic-axis"}
    assert found["dynamic-axis"].subject == "rows"
    assert "taken as 1" in found["dynamic-axis"].detail


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_weight_that_is_not_finite_is_told(tmp_path, bad, dtype):
    weight = np.array([1, bad, bad, 2], dtype)
    nodes = [helper.make_node("Add", ["x", "w"], ["y"], "add")]
    shape, name = [1, 4], np.dtype(dtype).name
    found = findings(make_model(nodes, [tensor("x", shape, name)], [tensor("y", shape, name)], {"w": weight}), tmp_path)
    assert found["bad-weights"].subject == "w"
    assert "2 of 4 values" in found["bad-weights"].detail


def test_infinite_constant_of_a_mask_is_no_finding(tmp_path):
    nodes = [helper.make_node("Where", ["mask", "low", "x"], ["y"], "where")]
    inputs = [tensor("mask", [1, 4], "bool"), tensor("x", [1, 4])]
    model = make_model(nodes, inputs, [tensor("y", [1, 4])], {"low": np.array([-np.inf], np.float32)})
    assert findings(model, tmp_path) == {}


def test_unused_initialiser_is_told_with_its_bytes(tmp_path):
    model = with_weight(conv_classifier(batch=1), "left_over", np.zeros(1000, np.float32))
    found = findings(model, tmp_path)
    assert found.keys() == {"unused-initializer"}
    assert found["unused-initializer"].subject == "left_over"
    assert "4,000 bytes" in found["unused-initializer"].detail


def test_operator_without_a_kernel_is_named(tmp_path):
    nodes = [helper.make_node("Frobnicate", ["x"], ["y"], "frob", domain="com.acme")]
    model = make_model(nodes, [tensor("x", [1, 4])], [tensor("y", [1, 4])], domains={"com.acme": 1})
    found = findings(model, tmp_path)
    assert "Frobnicate" in found["not-executable"].detail


def test_node_of_unknown_cost_is_told(tmp_path):
    nodes = [helper.make_node("Einsum", ["x", "w"], ["y"], "product", equation="ij,jk->ik")]
    model = make_model(nodes, [tensor("x", [2, 3])], [tensor("y", [2, 3])], {"w": np.eye(3, dtype=np.float32)})
    assert findings(model, tmp_path)["cost-unknown"].subject == "Einsum product"


def test_nodes_of_subgraphs_are_counted(tmp_path):
    branch = helper.make_graph([helper.make_node("Neg", ["x"], ["inner"])], "b", [], [tensor("inner", [1])])
    node = helper.make_node("If", ["flag"], ["y"], "if", then_branch=branch, else_branch=branch)
    model = make_model([node], [tensor("flag", [], "bool"), tensor("x", [1])], [tensor("y", [1])])
    assert inspect(save(model, tmp_path / "model.onnx")).operators == {"Neg": 2, "If": 1}


def test_model_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"nonsense")
    with pytest.raises(ModelError, match=r"bad\.onnx"):
        inspect(tmp_path / "bad.onnx")


def test_name_of_a_package_that_is_missing_is_told(tmp_path):
    with pytest.raises(PackageError, match="does not exist"):
        inspect(tmp_path / "nowhere.sdl")


def test_inspection_reads_external_data(tmp_path):
    onnx.save(conv_classifier(batch=1), tmp_path / "model.onnx", save_as_external_data=True, size_threshold=0)
    whole = inspect(save(conv_classifier(batch=1), tmp_path / "whole.onnx"))
    split = inspect(tmp_path / "model.onnx")
    assert split.model_copy(update={"model": whole.model}) == whole


def test_weights_in_constant_nodes_are_counted(tmp_path):
    plain = inspect(save(conv_classifier(), tmp_path / "plain.onnx"))
    constant = inspect(save(with_constant_nodes(conv_classifier()), tmp_path / "constant.onnx"))
    assert (constant.parameters, constant.macs) == (plain.parameters, plain.macs)


def test_sizes_for_dynamic_axes_are_used(tmp_path):
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = make_model([node], [tensor("x", ["N", 4])], [tensor("y", ["N", 2])], {"w": np.ones((4, 2), np.float32)})
    path = save(model, tmp_path / "model.onnx")
    assert inspect(path, shapes={"x": (10, 4)}).macs == 10 * inspect(path).macs == 80


def test_shape_that_does_not_fit_is_refused_with_the_inputs(tmp_path):
    path = save(conv_classifier(), tmp_path / "model.onnx")
    with pytest.raises(OptionError, match=r"'image=1,3' does not fit: inputs are image: float32"):
        inspect(path, shapes={"image": (1, 3)})
