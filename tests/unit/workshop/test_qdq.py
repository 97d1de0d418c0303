from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from sanderling.core.progress import Silent
from sanderling.measure.samples import Samples
from sanderling.workshop.quantize.histogram import observe
from sanderling.workshop.quantize.qdq import Scheme, is_quantized, to_int8
from tests.models import conv_classifier, random_arrays, run_directly

IMAGES = random_arrays({"image": (16, 3, 8, 8)})


@pytest.fixture(scope="module")
def float_model() -> onnx.ModelProto:
    return conv_classifier()


@pytest.fixture(scope="module")
def ranges(float_model) -> dict[str, tuple[float, float]]:
    samples = Samples(IMAGES, None, tuple(map(str, range(16))))
    seen = observe(float_model, samples, threads=1, progress=Silent()).ranges
    return {name: (min(low, 0.0), max(high, 0.0)) for name, (low, high) in seen.items()}


@pytest.fixture(scope="module")
def quantized(float_model, ranges) -> onnx.ModelProto:
    return to_int8(float_model, Scheme(ranges))


def weights_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {weight.name: numpy_helper.to_array(weight) for weight in model.graph.initializer}


def stored_weight(model: onnx.ModelProto, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """A weight's integers, scales and zero points, and the axis of the scales."""
    weights = weights_of(model)
    node = next(
        node
        for node in model.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0].startswith(name) and node.input[0] in weights
    )
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    values, scale, zero_point = (weights[part] for part in node.input)
    return values, scale, zero_point, axis


@pytest.mark.parametrize(("name", "channels"), [("conv_weight", 8), ("fc_weight", 4)])
def test_weights_are_int8_with_a_symmetric_scale_for_each_output_channel(quantized, float_model, name, channels):
    values, scale, zero_point, axis = stored_weight(quantized, name)
    original = weights_of(float_model)[name]
    assert values.dtype == np.int8
    assert values.shape == original.shape
    assert scale.shape == (channels,)
    assert axis == 0
    assert (zero_point == 0).all()
    steps = scale.reshape(-1, *[1] * (original.ndim - 1))
    assert (np.abs(values * steps - original) <= steps * 0.501).all()


def test_activations_are_uint8_with_one_scale_that_covers_their_range(quantized, ranges):
    weights = weights_of(quantized)
    activations = [node for node in quantized.graph.node if node.op_type == "QuantizeLinear"]
    assert "image" in [node.input[0] for node in activations]
    for node in activations:
        scale, zero_point = weights[node.input[1]], weights[node.input[2]]
        assert zero_point.dtype == np.uint8
        assert scale.shape == ()
        if node.input[0] in ranges:
            low, high = ranges[node.input[0]]
            assert (0 - float(zero_point)) * scale == pytest.approx(low, abs=float(scale))
            assert (255 - float(zero_point)) * scale == pytest.approx(high, abs=float(scale))


def test_quantised_graph_runs_and_is_close(quantized, float_model):
    expected = run_directly(float_model, IMAGES)["scores"]
    got = run_directly(quantized, IMAGES)["scores"]
    error = np.abs(got - expected).max() / np.abs(expected).max()
    assert 0 < error < 0.05


def test_quantised_graph_is_valid_and_keeps_its_interface(quantized, float_model):
    onnx.checker.check_model(quantized)
    assert list(quantized.graph.input) == list(float_model.graph.input)
    assert list(quantized.graph.output) == list(float_model.graph.output)


def test_quantised_graph_takes_any_batch(quantized):
    together = run_directly(quantized, IMAGES)["scores"]
    alone = run_directly(quantized, {"image": IMAGES["image"][3:4]})["scores"]
    np.testing.assert_allclose(alone[0], together[3], atol=1e-5)


def test_narrower_range_clips(float_model, ranges):
    clipped = to_int8(float_model, Scheme(ranges | {"image": (-0.1, 0.1)}))
    small = {"image": np.clip(IMAGES["image"], -0.1, 0.1)}
    np.testing.assert_allclose(
        run_directly(clipped, IMAGES)["scores"], run_directly(clipped, small)["scores"], atol=1e-5
    )


def test_tensor_that_was_always_zero_still_runs(float_model, ranges):
    dead = to_int8(float_model, Scheme(ranges | dict.fromkeys(("relu", "pooled", "flat"), (0.0, 0.0))))
    assert np.isfinite(run_directly(dead, IMAGES)["scores"]).all()


def test_quantised_graph_is_recognised(quantized, float_model):
    assert is_quantized(quantized)
    assert not is_quantized(float_model)


def test_model_that_was_given_is_left_alone(ranges):
    model = conv_classifier()
    before = model.SerializeToString(deterministic=True)
    to_int8(model, Scheme(ranges))
    assert model.SerializeToString(deterministic=True) == before
