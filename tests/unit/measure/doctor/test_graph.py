from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from sanderling.measure.doctor.graph import check_structure, check_weights
from tests.models import chain, conv_classifier, make_model, tensor


def product(weight: np.ndarray, *, add: np.ndarray | None = None) -> onnx.ModelProto:
    size = [int(entry) for entry in weight.shape]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h" if add is not None else "y"], "product")]
    weights = {"w": weight}
    if add is not None:
        nodes.append(helper.make_node("Add", ["h", "bias"], ["y"], "add"))
        weights["bias"] = add
    return make_model(nodes, [tensor("x", ["N", size[0]])], [tensor("y", ["N", size[1]])], weights)


def kinds(model: onnx.ModelProto) -> dict[str, str]:
    return {finding.kind: finding.severity for finding in (*check_structure(model), *check_weights(model))}


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_sound_model_has_no_finding():
    assert kinds(conv_classifier()) == {}


@pytest.mark.parametrize(
    ("weight", "found"),
    [
        (np.full((8, 8), np.nan, np.float32), {"weights-not-finite": "fault"}),
        (np.zeros((8, 8), np.float32), {"weights-zero": "fault"}),
        (np.full((8, 8), 2, np.float32), {"weights-constant": "warning"}),
        (np.where(np.eye(8) > 0, 1e-39, normal(8, 8)).astype(np.float32), {"weights-denormal": "advice"}),
        (np.where(np.arange(8) == 3, 0, normal(8, 8)).astype(np.float32), {"weights-dead-channels": "advice"}),
        (np.where(np.eye(8) > 0, 1e20, normal(8, 8)).astype(np.float32), {"weights-corrupt": "fault"}),
    ],
)
def test_bad_weights_are_named(weight, found):
    assert kinds(product(weight)) == found


def test_mask_of_minus_infinity_is_no_fault():
    mask = np.where(np.tri(8), 0, -np.inf).astype(np.float32)[0]
    assert kinds(product(normal(8, 8), add=mask)) == {}


@pytest.mark.parametrize(("factor", "severity"), [(1.0, None), (40.0, "warning"), (1e3, "fault"), (1e-3, "fault")])
def test_tensor_of_another_scale_stands_out(factor, severity):
    nodes = [
        helper.make_node("MatMul", [f"t{place}", f"w{place}"], [f"t{place + 1}"], f"n{place}") for place in range(6)
    ]
    weights = {f"w{at}": normal(16, 16) * np.float32(factor if at == 4 else 1) for at in range(6)}
    model = make_model(nodes, [tensor("t0", [1, 16])], [tensor("t6", [1, 16])], weights)
    found = check_weights(model)
    assert [(entry.severity, entry.subject) for entry in found] == ([(severity, "w4 (n4)")] if severity else [])


def test_what_nobody_reads_is_told():
    model = chain(["Relu"])
    model.graph.node.append(helper.make_node("Neg", ["x"], ["nowhere"], "dead"))
    model.graph.input.append(tensor("extra", [1]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(normal(4), "idle"))
    assert kinds(model) == {"unused-node": "advice", "unused-input": "warning", "unused-weights": "advice"}


def test_shapes_that_contradict_each_other_are_told():
    model = chain(["Relu"])
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 7
    assert kinds(model) == {"shapes-contradict": "warning"}
