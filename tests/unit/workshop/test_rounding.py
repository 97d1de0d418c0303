from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from sanderling.core.progress import Silent
from sanderling.measure.samples import Samples
from sanderling.workshop.quantize import rounding
from sanderling.workshop.quantize.rounding import round_rows, round_weights
from sanderling.workshop.quantize.weights import LARGEST, round_to_nearest
from tests.models import conv_classifier, make_model, random_arrays, run_directly, tensor

ROWS = 24


def correlated(*shape: int, seed: int = 0) -> np.ndarray:
    """Values whose channels, axis 1, move together, as those of a picture do."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(shape)
    mixing = generator.standard_normal((shape[1], shape[1])) + 2
    return np.einsum("oc,nc...->no...", mixing, values).astype(np.float32)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# Per layer: operator, attributes, the shapes of one input and of the weight.
LAYERS = {
    "conv": ("Conv", {"pads": [1, 1, 1, 1]}, (6, 7, 7), (8, 6, 3, 3)),
    "uneven": ("Conv", {"pads": [0, 2, 1, 0], "strides": [1, 2]}, (6, 7, 9), (8, 6, 3, 2)),
    "depthwise": ("Conv", {"group": 6, "pads": [1, 1, 1, 1]}, (6, 7, 7), (12, 1, 3, 3)),
    "groups": ("Conv", {"group": 2}, (6, 7, 7), (8, 3, 3, 3)),
    "dilated": ("Conv", {"dilations": [2, 1], "strides": [2, 2]}, (6, 9, 9), (8, 6, 3, 3)),
    "pointwise": ("Conv", {}, (12, 7, 7), (8, 12, 1, 1)),
    "gemm": ("Gemm", {}, (20,), (20, 8)),
    "gemm transposed": ("Gemm", {"transB": 1}, (20,), (8, 20)),
    "matmul": ("MatMul", {}, (20, 5), (5, 8)),
}
MOVING_TOGETHER = ("conv", "uneven", "groups", "dilated", "pointwise", "gemm", "gemm transposed")
CONVOLUTIONS = [name for name, (operator, *_) in LAYERS.items() if operator == "Conv"]


def layer(name: str) -> tuple[onnx.ModelProto, np.ndarray]:
    operator, attributes, x, w = LAYERS[name]
    node = helper.make_node(operator, ["x", "w"], ["y"], "layer", **attributes)
    model = make_model([node], [tensor("x", ["N", *x])], [tensor("y", [None] * (len(x) + 1))], {"w": normal(*w)})
    return model, correlated(ROWS, *x, seed=1)


def rounded(model: onnx.ModelProto, x: np.ndarray, *, seed: int = 0):
    samples = Samples({"x": x}, None, tuple(map(str, range(len(x)))))
    return round_weights(model, samples, threads=1, seed=seed, progress=Silent())


def with_weight(model: onnx.ModelProto, weight: np.ndarray) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    return copy


def output_error(model: onnx.ModelProto, weight: np.ndarray, x: np.ndarray) -> float:
    difference = run_directly(with_weight(model, weight), {"x": x})["y"] - run_directly(model, {"x": x})["y"]
    return float(np.square(difference, dtype=np.float64).mean())


@pytest.mark.parametrize("name", LAYERS)
def test_outputs_change_no_more_than_with_nearest_rounding(name, monkeypatch):
    monkeypatch.setattr(rounding, "_POSITIONS", 10_000)
    model, x = layer(name)
    weight = numpy_helper.to_array(model.graph.initializer[0])

    found = rounded(model, x)["layer"]

    nearest = round_to_nearest(weight, axis=found.axis)
    np.testing.assert_array_equal(found.scale, nearest.scale)
    assert found.values.shape == weight.shape
    share = output_error(model, found.dequantized(), x) / output_error(model, nearest.dequantized(), x)
    assert share < (0.9 if name in MOVING_TOGETHER else 1.0001)


@pytest.mark.parametrize("name", LAYERS)
def test_outputs_on_other_data_change_hardly_more_from_few_positions(name):
    model, x = layer(name)
    found = rounded(model, x)["layer"]
    other = correlated(ROWS, *x.shape[1:], seed=1)[::-1] + 0.1 * normal(*x.shape, seed=7)
    nearest = round_to_nearest(numpy_helper.to_array(model.graph.initializer[0]), axis=found.axis)
    share = output_error(model, found.dequantized(), other) / output_error(model, nearest.dequantized(), other)
    assert share < 1.05


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_patches_are_what_the_kernel_covers(name, monkeypatch):
    """The convolution is the product of its weight with every patch."""
    monkeypatch.setattr(rounding, "_POSITIONS", 10_000)
    model, x = layer(name)
    node, weight = model.graph.node[0], numpy_helper.to_array(model.graph.initializer[0])

    columns = rounding._columns(node, x[:1], weight, np.random.default_rng(0))  # (G, positions, K)

    products = columns @ weight.reshape(len(columns), -1, columns.shape[2]).transpose(0, 2, 1)
    expected = run_directly(model, {"x": x[:1]})["y"][0]  # (C_out, H, W)
    got = np.sort(products.transpose(0, 2, 1).reshape(len(expected), -1), axis=1)  # positions come shuffled
    np.testing.assert_allclose(got, np.sort(expected.reshape(len(expected), -1), axis=1), rtol=1e-4, atol=1e-4)


def row_errors(rows: np.ndarray, steps: np.ndarray, scale: np.ndarray, moments: np.ndarray) -> np.ndarray:
    difference = rows - steps * scale[:, :, None]
    return np.einsum("gmk,gkl,gml->gm", difference, moments, difference)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 6), st.integers(1, 24), st.integers(1, 60))
def test_no_row_is_further_off_than_with_nearest_rounding(seed, groups, channels, width, vectors):
    generator = np.random.default_rng(seed)
    rows = generator.standard_normal((groups, channels, width))
    x = generator.standard_normal((groups, vectors, width)) @ generator.standard_normal((groups, width, width))
    moments = x.transpose(0, 2, 1) @ x / vectors
    scale = np.abs(rows).max(axis=2) / LARGEST

    steps = round_rows(rows, moments, scale)

    nearest = np.round(rows / scale[:, :, None])
    found, plain = (row_errors(rows, one, scale, moments) for one in (steps, nearest))
    assert (found <= plain * (1 + 1e-6) + 1e-12).all()
    assert np.abs(steps.astype(int)).max() <= LARGEST


def test_inputs_that_are_never_active_leave_nearest_rounding():
    rows = np.random.default_rng(0).standard_normal((1, 4, 6))
    scale = np.abs(rows).max(axis=2) / LARGEST
    steps = round_rows(rows, np.zeros((1, 6, 6)), scale)
    np.testing.assert_array_equal(steps, np.round(rows / scale[:, :, None]))


def test_independent_inputs_leave_nearest_rounding():
    rows = np.random.default_rng(0).standard_normal((1, 4, 6))
    scale = np.abs(rows).max(axis=2) / LARGEST
    steps = round_rows(rows, np.diag([3.0, 1, 4, 1, 5, 9])[None], scale)
    np.testing.assert_array_equal(steps, np.round(rows / scale[:, :, None]))


def test_same_data_and_seed_give_the_same_weights():
    model, x = layer("conv")
    first, second = rounded(model, x)["layer"], rounded(model, x)["layer"]
    np.testing.assert_array_equal(first.values, second.values)
    assert (rounded(model, x, seed=1)["layer"].values != first.values).any()


def test_passes_that_memory_divides_give_the_same_weights(monkeypatch):
    model, x = conv_classifier(), random_arrays({"x": (ROWS, 3, 8, 8)})["x"]
    samples = Samples({"image": x}, None, tuple(map(str, range(ROWS))))
    monkeypatch.setattr(rounding, "_POSITIONS", 64)  # all of them: the order of drawing does not count
    together = round_weights(model, samples, threads=1, seed=0, progress=Silent())
    monkeypatch.setattr(rounding, "_PASS_BYTES", 1)
    apart = round_weights(model, samples, threads=1, seed=0, progress=Silent())
    assert together.keys() == apart.keys() == {"conv", "fc"}
    for name in together:
        np.testing.assert_array_equal(together[name].values, apart[name].values)


@pytest.mark.parametrize(
    ("operator", "attributes", "weight"),
    [
        ("Conv", {"auto_pad": "SAME_UPPER"}, normal(4, 6, 3, 3)),
        ("ConvTranspose", {}, normal(6, 4, 3, 3)),
        ("Conv", {}, np.full((4, 6, 3, 3), np.inf, np.float32)),
    ],
    ids=["padded by name", "transposed", "infinite"],
)
def test_layers_of_other_forms_are_left_to_nearest_rounding(operator, attributes, weight):
    node = helper.make_node(operator, ["x", "w"], ["y"], "layer", **attributes)
    model = make_model([node], [tensor("x", ["N", 6, 7, 7])], [tensor("y", [None] * 4)], {"w": weight})
    assert rounded(model, normal(4, 6, 7, 7)) == {}


def test_wide_layers_are_left_to_nearest_rounding(monkeypatch):
    monkeypatch.setattr(rounding, "_WIDEST", 19)
    model, x = layer("gemm")
    assert rounded(model, x) == {}
