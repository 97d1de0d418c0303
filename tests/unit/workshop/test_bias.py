from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from sanderling.workshop.quantize.bias import channel_mean, correct_biases, observed_inputs
from sanderling.workshop.quantize.weights import round_to_nearest
from tests.models import conv_classifier, make_model, run_directly, tensor


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def one_node(operator: str, x: list, weights: dict[str, np.ndarray], y: list, **attributes: object) -> onnx.ModelProto:
    node = helper.make_node(operator, ["x", *weights], ["y"], "layer", **attributes)
    return make_model([node], [tensor("x", ["N", *x])], [tensor("y", ["N", *y])], weights)


def weights_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {weight.name: numpy_helper.to_array(weight) for weight in model.graph.initializer}


def with_rounded_weights(model: onnx.ModelProto, axes: dict[str, int]) -> onnx.ModelProto:
    """The model with the named weights as int8 would store them."""
    rounded = onnx.ModelProto()
    rounded.CopyFrom(model)
    for weight in rounded.graph.initializer:
        if weight.name in axes:
            values = round_to_nearest(numpy_helper.to_array(weight), axis=axes[weight.name]).dequantized()
            weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    return rounded


def mean_shift(model: onnx.ModelProto, other: onnx.ModelProto, x: np.ndarray, output: str = "y") -> float:
    """Largest shift of an output channel's mean, over the standard deviation of the outputs."""
    expected, got = (run_directly(each, {"x": x})[output].astype(np.float64) for each in (model, other))
    return float(np.abs(channel_mean(got) - channel_mean(expected)).max() / expected.std())


LAYERS = {
    "conv": (one_node("Conv", [6, 8, 8], {"w": normal(4, 6, 3, 3), "b": normal(4)}, [4, 6, 6]), 0),
    "conv without a bias": (one_node("Conv", [6, 8, 8], {"w": normal(4, 6, 3, 3)}, [4, 6, 6]), 0),
    "1×1 conv with strides": (
        one_node("Conv", [6, 8, 8], {"w": normal(4, 6, 1, 1), "b": normal(4)}, [4, 8, 8], strides=[1, 1]),
        0,
    ),
    "grouped conv": (one_node("Conv", [6, 8, 8], {"w": normal(4, 3, 3, 3), "b": normal(4)}, [4, 6, 6], group=2), 0),
    "depthwise conv": (one_node("Conv", [6, 8, 8], {"w": normal(6, 1, 3, 3), "b": normal(6)}, [6, 6, 6], group=6), 0),
    "conv in one dimension": (one_node("Conv", [6, 8], {"w": normal(4, 6, 3), "b": normal(4)}, [4, 6]), 0),
    "gemm": (one_node("Gemm", [16], {"w": normal(16, 4), "b": normal(4)}, [4]), 1),
    "gemm transB": (one_node("Gemm", [16], {"w": normal(4, 16), "b": normal(4)}, [4], transB=1), 0),
    "gemm without a bias": (one_node("Gemm", [16], {"w": normal(4, 16)}, [4], transB=1), 0),
    "gemm alpha beta": (
        one_node("Gemm", [16], {"w": normal(4, 16), "b": normal(4)}, [4], transB=1, alpha=0.5, beta=2.0),
        0,
    ),
}


@pytest.mark.parametrize(("model", "axis"), LAYERS.values(), ids=LAYERS.keys())
def test_correction_cancels_the_shift_of_each_channels_mean(model, axis):
    channels = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim[1:]]
    # One value a channel and sample over the whole picture, so that borders do not matter; means far from zero.
    shape = (64, channels[0], *[1] * (len(channels) - 1))
    x = (np.broadcast_to(normal(*shape, seed=1) + 3, (64, *channels))).astype(np.float32)
    corrected = correct_biases(model, {"x": channel_mean(x)})
    onnx.checker.check_model(corrected, full_check=True)
    before = mean_shift(model, with_rounded_weights(model, {"w": axis}), x)
    after = mean_shift(model, with_rounded_weights(corrected, {"w": axis}), x)
    assert before > 1e-4
    assert after < before / 50


def test_padding_leaves_only_a_small_part_of_the_shift():
    model = one_node("Conv", [6, 16, 16], {"w": normal(4, 6, 3, 3), "b": normal(4)}, [4, 16, 16], pads=[1] * 4)
    x = normal(64, 6, 16, 16, seed=1) + 3
    corrected = correct_biases(model, {"x": channel_mean(x)})
    before = mean_shift(model, with_rounded_weights(model, {"w": 0}), x)
    assert mean_shift(model, with_rounded_weights(corrected, {"w": 0}), x) < before / 2


def test_shared_bias_is_corrected_for_each_of_its_users():
    weights = {"w1": normal(4, 4, 1, 1), "w2": normal(4, 4, 1, 1, seed=1), "b": normal(4)}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b"], ["h"], "first"),
        helper.make_node("Conv", ["h", "w2", "b"], ["y"], "second"),
    ]
    shape = ["N", 4, 5, 5]
    model = make_model(nodes, [tensor("x", shape)], [tensor("h", shape), tensor("y", shape)], weights)
    x = normal(64, 4, 5, 5, seed=2) + 3
    means = {"x": channel_mean(x), "h": channel_mean(run_directly(model, {"x": x})["h"])}
    corrected = correct_biases(model, means)
    onnx.checker.check_model(corrected, full_check=True)
    np.testing.assert_array_equal(weights_of(corrected)["b"], weights["b"])
    axes = {"w1": 0, "w2": 0}
    for output in ("h", "y"):
        before = mean_shift(model, with_rounded_weights(model, axes), x, output)
        assert mean_shift(model, with_rounded_weights(corrected, axes), x, output) < before / 50


def test_model_that_was_given_is_left_alone():
    model = LAYERS["conv"][0]
    before = model.SerializeToString(deterministic=True)
    correct_biases(model, {"x": np.ones(6)})
    assert model.SerializeToString(deterministic=True) == before


def test_weights_themselves_are_not_changed():
    model = LAYERS["conv"][0]
    corrected = correct_biases(model, {"x": np.ones(6)})
    np.testing.assert_array_equal(weights_of(corrected)["w"], weights_of(model)["w"])
    assert not np.array_equal(weights_of(corrected)["b"], weights_of(model)["b"])


def test_layer_whose_input_was_not_observed_stays_as_it_is():
    model = LAYERS["conv"][0]
    assert correct_biases(model, {}).SerializeToString() == model.SerializeToString()


@pytest.mark.parametrize(
    "model",
    [
        one_node("Gemm", [16], {"w": normal(16, 4), "b": normal(1, 4)}, [4]),
        one_node("Gemm", [16], {"w": normal(16, 4), "b": normal(4)}, [4], beta=0.0),
    ],
    ids=["bias with two axes", "bias that does not count"],
)
def test_gemm_whose_bias_cannot_take_the_correction_keeps_its_numbers(model):
    x = normal(8, 16)
    corrected = correct_biases(model, {"x": channel_mean(x)})
    np.testing.assert_array_equal(run_directly(corrected, {"x": x})["y"], run_directly(model, {"x": x})["y"])


def test_computed_bias_is_left_alone():
    nodes = [
        helper.make_node("Neg", ["half"], ["b"], "neg"),
        helper.make_node("Conv", ["x", "w", "b"], ["y"], "conv"),
    ]
    weights = {"w": normal(4, 6, 1, 1), "half": normal(4)}
    model = make_model(nodes, [tensor("x", ["N", 6, 5, 5])], [tensor("y", ["N", 4, 5, 5])], weights)
    assert correct_biases(model, {"x": np.ones(6)}).SerializeToString() == model.SerializeToString()


def test_observed_inputs_are_those_of_convolutions_and_gemm():
    assert observed_inputs(conv_classifier()) == ["image", "flat"]


def test_channel_mean_is_over_everything_but_the_channels():
    array = normal(2, 3, 4, 5)
    np.testing.assert_allclose(channel_mean(array), array.mean(axis=(0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(channel_mean(array[:, :, 0, 0]), array[:, :, 0, 0].mean(axis=0), rtol=1e-5)
