from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from sanderling.core.progress import Recorder, Silent
from sanderling.workshop.optimize.passes import PASSES, Pass
from sanderling.workshop.optimize.simplify import TOLERANCE, simplify
from tests.models import chain, conv_classifier, make_model, random_arrays, run_directly, tensor, with_constant_nodes

PROBES = [random_arrays({"image": (rows, 3, 8, 8)}, seed=rows) for rows in (1, 3)]


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def with_weight_scaled(factor: float) -> Pass:
    """A pass that changes a weight, and so the outputs."""

    def run(model: onnx.ModelProto) -> onnx.ModelProto:
        copy = copied(model)
        weight = next(weight for weight in copy.graph.initializer if weight.name == "fc_weight")
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(factor), weight.name))
        return copy

    return Pass(f"scale by {factor}", run)


def with_names_changed(names: dict[str, str]) -> Pass:
    """A pass that renames inputs and outputs."""

    def run(model: onnx.ModelProto) -> onnx.ModelProto:
        copy = copied(model)
        for value in (*copy.graph.input, *copy.graph.output):
            value.name = names.get(value.name, value.name)
        for node in copy.graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]
        return copy

    return Pass("rename", run)


def with_nodes(change) -> Pass:
    """A pass that changes the copied graph in place."""

    def run(model: onnx.ModelProto) -> onnx.ModelProto:
        copy = copied(model)
        change(copy)
        return copy

    return Pass("change", run)


def fail(_: onnx.ModelProto) -> onnx.ModelProto:
    raise RuntimeError("first line\nsecond line")


def attempt(rewrite: Pass, model: onnx.ModelProto | None = None, probes=PROBES):
    """The graph after one pass, its record, and the events."""
    recorder = Recorder(Silent())
    result, records = simplify(model or conv_classifier(), probes, recorder, passes=[rewrite])
    assert len(records) == 1
    return result, records[0], recorder.events


def assert_undone(rewrite: Pass, reason: str) -> None:
    before = conv_classifier()
    result, record, events = attempt(rewrite, before)
    assert result.SerializeToString(deterministic=True) == conv_classifier().SerializeToString(deterministic=True)
    assert not record.kept
    assert reason in record.reason
    assert [(event.kind, event.subject) for event in events] == [("pass-undone", rewrite.name)]
    assert reason in events[0].reason


def test_pass_that_changes_the_outputs_is_undone_and_named():
    assert_undone(with_weight_scaled(1.01), "outputs changed: relative error")


def test_pass_that_changes_the_outputs_is_recorded_with_its_error():
    _, record, _ = attempt(with_weight_scaled(1.5))
    assert record.relative_error > TOLERANCE
    assert record.name == "scale by 1.5"


def test_change_within_the_tolerance_is_kept():
    result, record, events = attempt(with_weight_scaled(1 + 1e-6))
    assert record.kept
    assert 0 < record.relative_error <= TOLERANCE
    assert events == []
    assert result is not None


def test_pass_that_raises_is_undone_with_the_first_line_of_its_error():
    assert_undone(Pass("fails", fail), "RuntimeError: first line")
    assert attempt(Pass("fails", fail))[1].relative_error is None


def test_pass_that_renames_an_output_is_undone():
    assert_undone(with_names_changed({"scores": "logits"}), "outputs changed their names")


def test_pass_that_renames_an_input_is_undone():
    assert_undone(with_names_changed({"image": "picture"}), "inputs changed")


def test_pass_that_fixes_a_dynamic_axis_is_undone():
    def fix(model):
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1

    assert_undone(with_nodes(fix), "inputs changed")


def test_pass_that_brings_foreign_operators_is_undone():
    def fuse(model):
        node = next(node for node in model.graph.node if node.op_type == "Gemm")
        node.op_type, node.domain = "FusedGemm", "com.microsoft"
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))

    assert_undone(with_nodes(fuse), "com.microsoft")


def test_pass_that_returns_an_invalid_graph_is_undone():
    def break_it(model):
        model.graph.node[0].input[0] = "nowhere"

    assert_undone(with_nodes(break_it), "nowhere")


def test_pass_that_makes_the_outputs_nan_is_undone():
    assert_undone(with_weight_scaled(np.nan), "relative error inf")


def test_good_pass_after_a_bad_one_still_counts():
    recorder = Recorder(Silent())
    passes = [with_weight_scaled(2), with_weight_scaled(1 + 1e-6)]
    _, records = simplify(conv_classifier(), PROBES, recorder, passes=passes)
    assert [record.kept for record in records] == [False, True]
    assert len(recorder.events) == 1


def test_errors_are_measured_against_the_first_graph_so_that_they_cannot_add_up():
    passes = [with_weight_scaled(1 + 6e-5)] * 5
    _, records = simplify(conv_classifier(), PROBES, Silent(), passes=passes)
    assert [record.kept for record in records] == [True, False, False, False, False]


def test_record_counts_nodes_and_changed_operators():
    def add_identity(model):
        model.graph.node[-1].output[0] = "almost"
        model.graph.node.append(helper.make_node("Identity", ["almost"], ["scores"]))

    _, record, _ = attempt(with_nodes(add_identity))
    assert (record.nodes_before, record.nodes_after) == (6, 7)
    assert record.operators == {"Identity": 1}


def test_own_passes_fuse_batch_normalisation_into_the_convolution():
    model = conv_classifier()
    before = model.SerializeToString(deterministic=True)
    result, records = simplify(model, PROBES, Silent(), passes=PASSES)
    operators = [node.op_type for node in result.graph.node]
    assert "BatchNormalization" not in operators
    assert operators.count("Conv") == 1
    assert all(record.kept for record in records)
    assert model.SerializeToString(deterministic=True) == before
    for probe in PROBES:
        expected = run_directly(model, probe)["scores"]
        np.testing.assert_allclose(run_directly(result, probe)["scores"], expected, rtol=1e-4, atol=1e-4)


def test_own_passes_keep_the_interface():
    result, _ = simplify(conv_classifier(), PROBES, Silent(), passes=PASSES)
    assert [value.name for value in result.graph.input] == ["image"]
    assert [value.name for value in result.graph.output] == ["scores"]
    assert {entry.domain for entry in result.opset_import} <= {"", "ai.onnx"}


def test_own_passes_drop_identities_unused_weights_and_constant_expressions():
    nodes = [
        helper.make_node("Identity", ["x"], ["same"], "same"),
        helper.make_node("Add", ["one", "one"], ["two"], "two"),
        helper.make_node("Mul", ["same", "two"], ["y"], "mul"),
        helper.make_node("Neg", ["x"], ["unread"], "unread"),
    ]
    weights = {"one": np.ones(1, np.float32), "left_over": np.ones(1000, np.float32)}
    model = make_model(nodes, [tensor("x", [1, 4])], [tensor("y", [1, 4])], weights)
    probe = random_arrays({"x": (1, 4)})
    result, _ = simplify(model, [probe], Silent(), passes=PASSES)
    assert [node.op_type for node in result.graph.node] == ["Mul"]
    assert "left_over" not in [weight.name for weight in result.graph.initializer]
    np.testing.assert_allclose(run_directly(result, probe)["y"], 2 * probe["x"])


@pytest.mark.parametrize("rewrite", PASSES, ids=lambda rewrite: rewrite.name.partition(":")[0])
def test_each_own_pass_leaves_its_argument_alone(rewrite):
    model = conv_classifier()
    before = model.SerializeToString(deterministic=True)
    rewrite.run(model)
    assert model.SerializeToString(deterministic=True) == before


def test_graph_that_is_one_identity_survives():
    probe = random_arrays({"x": (1, 4)})
    result, _ = simplify(chain(["Identity"]), [probe], Silent(), passes=PASSES)
    np.testing.assert_array_equal(run_directly(result, probe)["y"], probe["x"])


def test_weights_in_constant_nodes_become_initialisers_that_can_be_quantised():
    simplified, _ = simplify(with_constant_nodes(conv_classifier()), PROBES, Silent())
    assert "Constant" not in {node.op_type for node in simplified.graph.node}
    assert {len(weight.dims) for weight in simplified.graph.initializer} >= {2, 4}
