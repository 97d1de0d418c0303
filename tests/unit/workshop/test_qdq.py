from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import onnxslim
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from sanderling.core.progress import Silent
from sanderling.measure.samples import Samples
from sanderling.workshop.quantize.blocks import find_blocks
from sanderling.workshop.quantize.histogram import observe
from sanderling.workshop.quantize.qdq import Scheme, is_quantized, parameters, to_int8
from tests.models import conv_classifier, make_model, random_arrays, run_directly, tensor
from tests.quantized import ranges_of

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


# --- which tensors get an eight-bit form ---


def conv_model(*nodes: onnx.NodeProto, outputs: tuple[str, ...] = ("y",), **weights: np.ndarray) -> onnx.ModelProto:
    """Nodes over ``x`` (N, 4, 6, 6) with a 1×1 convolution's weight ``w`` and bias ``b``."""
    given_weights = {"w": normal(4, 4, 1, 1), "b": normal(4, seed=1)} | weights
    return make_model(
        nodes, [tensor("x", ["N", 4, 6, 6])], [tensor(name, [None] * 4) for name in outputs], given_weights
    )


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def conv(source: str = "x", output: str = "y", weight: str = "w", bias: str = "b") -> onnx.NodeProto:
    return helper.make_node("Conv", [source, weight, bias], [output], f"conv_{output}")


def int8_of(model: onnx.ModelProto, *, float_blocks: tuple[str, ...] = (), **spans: tuple[float, float]):
    """The INT8 form by the ranges that ``x`` shows, and these."""
    ranges = ranges_of(model, {"x": X}) | spans
    quantized = to_int8(model, Scheme(ranges, frozenset(float_blocks)))
    onnx.checker.check_model(quantized)
    return quantized


X = normal(4, 4, 6, 6, seed=2)


def makers_of(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    return {name: node for node in model.graph.node for name in node.output}


def named(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.name == name)


def kinds(model: onnx.ModelProto) -> Counter:
    return Counter(node.op_type for node in model.graph.node)


def fake_quantized(x: np.ndarray, low: float, high: float) -> np.ndarray:
    """What uint8 over a range makes of ``x``: the standard's formula, in double precision."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = float(np.float32((high - low) / 255))
    zero_point = np.clip(np.round(-low / scale), 0, 255)
    return (np.clip(np.round(x / scale) + zero_point, 0, 255) - zero_point) * scale


def fake_weight(weight: np.ndarray, axis: int) -> np.ndarray:
    others = tuple(index for index in range(weight.ndim) if index != axis)
    step = np.abs(weight).max(axis=others, keepdims=True) / 127
    return np.round(weight / step) * step


def assert_within_a_step(got: np.ndarray, expected: np.ndarray, low: float, high: float) -> None:
    """Sums near the middle of a step may fall to either side; nothing may be further away, and few may."""
    step = (max(high, 0) - min(low, 0)) / 255
    distance = np.abs(got - expected)
    assert distance.max() <= 1.01 * step
    assert (distance > 0.1 * step).mean() < 0.01


@pytest.mark.parametrize("activation", ["none", "relu", "clip"])
@pytest.mark.parametrize("enforced", [True, False])
def test_convolution_is_what_rounding_by_the_standard_gives(activation, enforced):
    low, high = {"none": (-2.9, 3.0), "relu": (0.0, 3.0), "clip": (0.0, 1.5)}[activation]
    if not enforced:
        low, high = low - 1, high + 1
    follower = {
        "none": [],
        "relu": [helper.make_node("Relu", ["c"], ["y"], "activation")],
        "clip": [helper.make_node("Clip", ["c", "least", "most"], ["y"], "activation")],
    }[activation]
    model = conv_model(conv(output="c" if follower else "y"), *follower, least=np.float32(0), most=np.float32(1.5))

    quantized = int8_of(model, x=(-2.0, 2.5), y=(low, high))

    assert kinds(quantized)["Relu"] + kinds(quantized)["Clip"] == (0 if enforced or not follower else 1)
    weights = weights_of(model)
    sums = np.einsum("nchw,oc->nohw", fake_quantized(X, -2.0, 2.5), fake_weight(weights["w"], 0)[:, :, 0, 0])
    sums += weights["b"][:, None, None]
    bounded = {"none": sums, "relu": np.maximum(sums, 0), "clip": np.clip(sums, 0, 1.5)}[activation]
    assert_within_a_step(run_directly(quantized, {"x": X})["y"], fake_quantized(bounded, low, high), low, high)


def test_clip_is_dropped_when_the_range_is_inside_its_bounds():
    clip = helper.make_node("Clip", ["c", "least", "most"], ["y"], "activation")
    model = conv_model(conv(output="c"), clip, least=np.float32(-1), most=np.float32(6))
    assert kinds(int8_of(model, y=(-0.5, 2.0)))["Clip"] == 0


def test_clip_with_one_bound_is_kept():
    clip = helper.make_node("Clip", ["c", "least"], ["y"], "activation")
    assert kinds(int8_of(conv_model(conv(output="c"), clip, least=np.float32(0))))["Clip"] == 1


def test_float_sum_beside_an_int8_convolution_keeps_its_stream_float():
    """x → neg → (conv, add): the convolution reads eight bits, the sum what the float node made."""
    nodes = [
        helper.make_node("Neg", ["x"], ["stream"], "neg"),
        conv("stream", "c"),
        helper.make_node("Add", ["stream", "c"], ["y"], "add"),
    ]
    quantized = int8_of(conv_model(*nodes), float_blocks=("add",))
    makers = makers_of(quantized)
    add, convolution = named(quantized, "add"), named(quantized, "conv_c")
    assert add.input[0] == "stream"
    assert makers[add.input[1]].op_type == "DequantizeLinear"
    assert makers[convolution.input[0]].op_type == "DequantizeLinear"
    assert kinds(quantized)["QuantizeLinear"] == 2


def test_light_block_that_reads_only_float_stays_float():
    nodes = [helper.make_node("Neg", ["x"], ["n"], "neg"), helper.make_node("Relu", ["n"], ["r"], "relu"), conv("r")]
    quantized = int8_of(conv_model(*nodes))
    assert named(quantized, "relu").input[0] == "n"


def test_block_that_is_told_to_stay_float_keeps_its_weight():
    model = conv_model(conv(output="c"), conv("c", "y", "w2"), w2=normal(4, 4, 1, 1, seed=5))
    quantized = int8_of(model, float_blocks=("conv_y",))
    assert list(named(quantized, "conv_y").input[1:]) == ["w2", "b"]
    np.testing.assert_array_equal(weights_of(quantized)["w2"], weights_of(model)["w2"])
    assert "w" not in weights_of(quantized)


def test_all_blocks_in_float_leave_the_graph_as_it_is():
    model = conv_classifier()
    blocks = frozenset(block.name for block in find_blocks(model))
    plain = to_int8(model, Scheme(ranges_of(model, IMAGES), blocks))
    assert [node.op_type for node in plain.graph.node] == [node.op_type for node in model.graph.node]
    np.testing.assert_array_equal(run_directly(plain, IMAGES)["scores"], run_directly(model, IMAGES)["scores"])


def test_what_moves_values_keeps_the_scale_of_what_it_reads():
    nodes = [conv(output="c"), helper.make_node("MaxPool", ["c"], ["y"], "pool", kernel_shape=[2, 2])]
    quantized = int8_of(conv_model(*nodes), y=(-100.0, 100.0))
    scales = {
        weights_of(quantized)[node.input[1]].item() for node in quantized.graph.node if node.op_type == "QuantizeLinear"
    }
    assert len(scales) == 2  # of x, and of c and y together


# --- names, outputs, sharing ---


def test_output_that_an_int8_block_makes_keeps_its_name_and_is_dequantised():
    quantized = int8_of(conv_model(conv(output="c"), conv("c", "y"), outputs=("y", "c")))
    makers = makers_of(quantized)
    for name in ("y", "c"):
        assert makers[name].op_type == "DequantizeLinear"
    assert named(quantized, "conv_y").input[0] == "c"


def test_output_that_a_float_node_makes_stays_float_though_int8_reads_it():
    nodes = [helper.make_node("Neg", ["x"], ["n"], "neg"), conv("n")]
    model = conv_model(*nodes, outputs=("y", "n"))
    np.testing.assert_array_equal(run_directly(int8_of(model), {"x": X})["n"], -X)


def test_subgraph_reads_what_the_block_around_it_made_after_its_activation():
    branches = [
        helper.make_graph(
            [helper.make_node("Identity", ["r"], [f"{part}_y"])], part, [], [tensor(f"{part}_y", [None] * 4)]
        )
        for part in ("then", "otherwise")
    ]
    choice = helper.make_node("If", ["flag"], ["y"], "if", then_branch=branches[0], else_branch=branches[1])
    nodes = [conv(output="c"), helper.make_node("Relu", ["c"], ["r"], "relu"), choice]
    quantized = int8_of(conv_model(*nodes, flag=np.bool_(True)), r=(0.0, 3.0))
    assert kinds(quantized)["Relu"] == 0
    assert run_directly(quantized, {"x": X})["y"].min() == 0


def test_names_are_unique_when_the_model_uses_ours_already():
    taken = ["x_quantized", "x_dequantized", "x_scale", "w_quantized", "y_float", "b_scale"]
    chain = ["x", *taken]
    nodes = [helper.make_node("Neg", [chain[index]], [name], f"neg_{index}") for index, name in enumerate(taken)]
    model = conv_model(*nodes, helper.make_node("Add", ["x", chain[-1]], ["s"], "add"), conv("s"), conv("x", "z"))
    model.graph.output.append(tensor("z", [None] * 4))
    quantized = int8_of(model)
    made = [name for node in quantized.graph.node for name in node.output]
    made += [weight.name for weight in quantized.graph.initializer]
    assert len(made) == len(set(made))
    expected = run_directly(model, {"x": X})["y"]
    assert np.abs(run_directly(quantized, {"x": X})["y"] - expected).max() < 0.05 * np.abs(expected).max()


def test_name_of_an_input_that_nobody_reads_is_not_taken():
    model = conv_model(conv())
    model.graph.input.append(tensor("x_quantized", [1]))
    quantized = to_int8(model, Scheme(ranges_of(conv_model(conv()), {"x": X})))
    onnx.checker.check_model(quantized)
    assert "x_quantized" not in makers_of(quantized)


def test_shared_weight_is_stored_once_and_shared_bias_once_for_each_scale():
    nodes = [conv(output="c"), conv("c", "y")]
    quantized = int8_of(conv_model(*nodes))
    first, second = named(quantized, "conv_c"), named(quantized, "conv_y")
    assert first.input[1] == second.input[1]
    assert first.input[2] != second.input[2]
    stored = [weight.name for weight in quantized.graph.initializer if weight.data_type == onnx.TensorProto.INT8]
    assert len(stored) == 2  # the weight and its zero points


def test_weight_that_a_float_node_reads_too_is_kept_in_float():
    nodes = [conv(output="c"), helper.make_node("Mul", ["c", "scaled"], ["y"], "mul")]
    shape = helper.make_node("ReduceMax", ["w"], ["scaled"], "most", keepdims=0)
    quantized = int8_of(conv_model(shape, *nodes))
    assert "w" in weights_of(quantized)


def test_bias_that_overflows_32_bits_widens_the_scale_of_its_channel_alone():
    weight = normal(4, 4, 1, 1)
    weight[1] *= 1e-9
    bias = np.float32([0.5, 100.0, -0.5, 0.0])
    model = conv_model(conv(), w=weight, b=bias)
    quantized = int8_of(model)
    values, scale, _, _ = stored_weight(quantized, "w")
    assert (values[1] == 0).all()
    np.testing.assert_allclose(scale[[0, 2, 3]], np.abs(weight[[0, 2, 3]]).max(axis=(1, 2, 3)) / 127, rtol=1e-6)
    expected, got = run_directly(model, {"x": X})["y"], run_directly(quantized, {"x": X})["y"]
    assert np.abs(got - expected).max() < 1.5 * (expected.max() - expected.min()) / 255


# --- kinds of layers, on ONNX Runtime ---

LAYERS = {
    "conv": (helper.make_node("Conv", ["x", "w", "b"], ["y"], "layer", pads=[1] * 4), [4, 6, 6], (8, 4, 3, 3), 8),
    "depthwise": (helper.make_node("Conv", ["x", "w", "b"], ["y"], "layer", group=4), [4, 6, 6], (4, 1, 3, 3), 4),
    "transposed": (helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], "layer"), [4, 6, 6], (4, 8, 3, 3), 8),
    "transposed groups": (
        helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], "layer", group=2), [4, 6, 6], (4, 3, 3, 3), 6,
    ),
    "gemm": (helper.make_node("Gemm", ["x", "w", "b"], ["y"], "layer"), [16], (16, 8), 8),
    "gemm transposed": (helper.make_node("Gemm", ["x", "w", "b"], ["y"], "layer", transB=1), [16], (8, 16), 8),
    "matmul": (helper.make_node("MatMul", ["x", "w"], ["y"], "layer"), [5, 16], (16, 8), 0),
    "batched matmul": (helper.make_node("MatMul", ["x", "w"], ["y"], "layer"), [5, 16], (3, 16, 8), 0),
    "matmul without rows": (helper.make_node("MatMul", ["x", "w"], ["y"], "layer"), [16], (16, 8), 0),
}  # fmt: skip


def layer(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    node, shape, weight, biases = LAYERS[name]
    weights = {"w": normal(*weight)} | ({"b": normal(biases, seed=1)} if biases else {})
    model = make_model([node], [tensor("x", [3, *shape])], [tensor("y", None)], weights)
    return model, {"x": normal(3, *shape, seed=3)}


@pytest.mark.parametrize("name", LAYERS)
def test_layer_is_close_to_float_with_each_channel_in_its_own_scale(name):
    model, feeds = layer(name)
    ranges = ranges_of(model, feeds)
    quantized = to_int8(model, Scheme(ranges))
    expected, got = run_directly(model, feeds)["y"], run_directly(quantized, feeds)["y"]
    assert 0 < np.square(got - expected).mean() < 1e-3 * np.square(expected).mean()
    _, scale, _, axis = stored_weight(quantized, "w")
    assert len(scale) == weights_of(model)["w"].shape[axis]


@pytest.mark.parametrize("name", LAYERS)
def test_layer_computes_the_same_when_it_is_optimised(name):
    model, feeds = layer(name)
    ranges = ranges_of(model, feeds)
    quantized = to_int8(model, Scheme(ranges))
    plain, optimized = (run_directly(quantized, feeds, optimized=optimized)["y"] for optimized in (False, True))
    low, high = ranges["y"]
    assert_within_a_step(optimized, plain, low, high)


def optimized_kinds(model: onnx.ModelProto, path: Path) -> Counter:
    """Operators of the graph that ONNX Runtime makes of a model."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return kinds(onnx.load(path))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("conv", "QLinearConv"),
        ("depthwise", "QLinearConv"),
        ("gemm", "QGemm"),
        ("gemm transposed", "QGemm"),
        ("matmul", "QLinearMatMul"),
    ],
)
def test_layer_computes_in_integers_on_onnx_runtime(name, kind, tmp_path):
    model, feeds = layer(name)
    quantized = to_int8(model, Scheme(ranges_of(model, feeds)))
    assert optimized_kinds(quantized, tmp_path / "optimized.onnx")[kind] == 1


def test_classifier_computes_in_integers_and_within_a_step(float_model, tmp_path):
    simplified = onnxslim.slim(float_model)
    spans = ranges_of(simplified, IMAGES)
    quantized = to_int8(simplified, Scheme(spans))
    found = optimized_kinds(quantized, tmp_path / "optimized.onnx")
    assert (found["QLinearConv"], found["QGemm"], found["Conv"], found["Gemm"]) == (1, 1, 0, 0)
    plain, optimized = (run_directly(quantized, IMAGES, optimized=value)["scores"] for value in (False, True))
    low, high = spans["scores"]
    assert np.abs(plain - optimized).max() <= 1.01 * (max(high, 0) - min(low, 0)) / 255


# --- scales ---


@given(st.floats(-1e30, 1e30), st.floats(-1e30, 1e30))
def test_scale_and_zero_point_cover_the_range_and_hold_zero_exactly(one, other):
    low, high = min(one, other), max(one, other)
    scale, zero_point = parameters((low, high))
    assert scale > 0
    assert 0 <= zero_point <= 255
    reach = max(high, 0.0) - min(low, 0.0)
    if reach > 1e-30:
        assert -float(scale) * int(zero_point) <= min(low, 0.0) + 0.51 * float(scale)
        assert float(scale) * (255 - int(zero_point)) >= max(high, 0.0) - 0.51 * float(scale)
