from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from sanderling.core.progress import Recorder, Silent
from sanderling.model.half import LARGEST, overflowing_nodes
from sanderling.workshop.optimize.half import to_half
from tests.models import conv_classifier, make_model, random_arrays, run_directly, tensor

FEEDS = random_arrays({"image": (2, 3, 8, 8)})


def two_layers(scale: float = 1.0) -> onnx.ModelProto:
    """Two matrix products: ``x`` to ``h`` to ``y``, each (1, 4)."""
    generator = np.random.default_rng(0)
    weights = {name: generator.standard_normal((4, 4)).astype(np.float32) for name in ("first_w", "second_w")}
    weights["first_w"] *= np.float32(scale)
    nodes = [
        helper.make_node("MatMul", ["x", "first_w"], ["h"], "first"),
        helper.make_node("MatMul", ["h", "second_w"], ["y"], "second"),
    ]
    return make_model(nodes, [tensor("x", [1, 4])], [tensor("y", [1, 4])], weights)


def weight_types(model: onnx.ModelProto) -> dict[str, int]:
    return {weight.name: weight.data_type for weight in model.graph.initializer}


def test_weights_become_half_and_the_interface_stays_float():
    half, kept = to_half(conv_classifier(), {}, Silent())
    assert kept == ()
    assert set(weight_types(half).values()) == {onnx.TensorProto.FLOAT16}
    types = [value.type.tensor_type.elem_type for value in (*half.graph.input, *half.graph.output)]
    assert types == [onnx.TensorProto.FLOAT] * 2
    assert [value.name for value in (*half.graph.input, *half.graph.output)] == ["image", "scores"]


def test_half_graph_is_valid_so_that_it_can_be_read_again():
    half, _ = to_half(conv_classifier(), {}, Silent())
    onnx.checker.check_model(half)


def test_half_graph_runs_and_is_close():
    half, _ = to_half(conv_classifier(), {}, Silent())
    expected = run_directly(conv_classifier(), FEEDS)["scores"]
    got = run_directly(half, FEEDS)["scores"]
    assert got.dtype == np.float32
    assert 0 < np.abs(got - expected).max() < 0.02 * np.abs(expected).max()


def test_nodes_that_overflow_on_calibration_data_stay_in_float_and_are_named():
    recorder = Recorder(Silent())
    half, kept = to_half(two_layers(), {"x": (-1, 1), "h": (-70_000.0, 10.0), "y": (-1, 1)}, recorder)
    assert set(kept) == {"first", "second"}  # one writes the value, one reads it
    assert [(event.kind, event.subject) for event in recorder.events] == [("kept-fp32", name) for name in kept]
    assert "'h' reaches 7e+04, FP16 ends at 65504" in recorder.events[0].reason
    assert set(weight_types(half).values()) == {onnx.TensorProto.FLOAT}


def test_only_the_nodes_that_overflow_stay_in_float():
    half, kept = to_half(two_layers(), {"y": (0.0, 1e6)}, Silent())
    assert kept == ("second",)
    assert weight_types(half) == {"first_w": onnx.TensorProto.FLOAT16, "second_w": onnx.TensorProto.FLOAT}


@pytest.mark.parametrize("optimized", [False, True])
def test_values_beyond_half_pass_between_kept_nodes_unharmed(optimized):
    model = two_layers(1e5)
    feeds = {"x": np.ones((1, 4), np.float32)}
    expected = run_directly(model, feeds)["y"]
    half, kept = to_half(model, {"x": (1, 1), "h": (-5e5, 5e5), "y": (-5e5, 5e5)}, Silent())
    assert kept == ("first", "second")
    np.testing.assert_allclose(run_directly(half, feeds, optimized=optimized)["y"], expected, rtol=0.02)


def test_weight_beyond_half_keeps_its_node_without_any_data():
    assert overflowing_nodes(two_layers(1e6), {}).keys() == {"first"}


@pytest.mark.parametrize(("peak", "kept"), [(LARGEST, False), (np.nextafter(LARGEST, np.inf), True)])
def test_largest_half_itself_still_fits(peak, kept):
    assert ("second" in overflowing_nodes(two_layers(), {"y": (-peak, 0.0)})) is kept


def test_conversion_leaves_the_model_alone():
    model = conv_classifier()
    before = model.SerializeToString(deterministic=True)
    to_half(model, {"relu": (0.0, 1e6)}, Silent())
    assert model.SerializeToString(deterministic=True) == before


def test_infinity_of_a_mask_is_no_overflow():
    mask = np.array([[0, -np.inf, 0, 0]], np.float32)
    node = helper.make_node("Add", ["x", "mask"], ["y"], "add")
    model = make_model([node], [tensor("x", [1, 4])], [tensor("y", [1, 4])], {"mask": mask})
    assert overflowing_nodes(model, {}) == {}
