from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import helper

from sanderling.workshop.quantize.weights import (
    LARGEST,
    QuantizedWeight,
    along,
    channel_scale,
    output_axis,
    round_to_nearest,
    widened,
)

VALUES = st.floats(-1e6, 1e6, width=32)
WEIGHTS = arrays.arrays(np.float32, arrays.array_shapes(min_dims=2, max_dims=4, max_side=5), elements=VALUES)


def steps_of(weight: QuantizedWeight) -> np.ndarray:
    return along(weight.scale, weight.axis, weight.values.ndim)


@given(WEIGHTS, st.integers(0, 1))
def test_rounded_weight_is_off_by_half_a_step_at_most_and_exact_at_its_peak(weight, axis):
    rounded = round_to_nearest(weight, axis=axis)
    assert rounded.values.dtype == np.int8
    assert rounded.values.min() >= -LARGEST
    assert rounded.scale.shape == (weight.shape[axis],)
    assert (np.abs(rounded.dequantized() - weight) <= steps_of(rounded) * 0.5001).all()
    others = tuple(index for index in range(weight.ndim) if index != axis)
    peaks = np.abs(weight).max(axis=others)
    np.testing.assert_allclose(np.abs(rounded.dequantized()).max(axis=others), peaks, rtol=1e-6, atol=1e-30)


def test_channel_of_zeros_keeps_a_scale_of_one():
    assert channel_scale(np.zeros((2, 3), np.float32), axis=0).tolist() == [1, 1]
    assert (round_to_nearest(np.zeros((2, 3), np.float32), axis=0).dequantized() == 0).all()


def test_rounding_what_is_rounded_changes_nothing():
    weight = np.random.default_rng(0).standard_normal((4, 6, 3, 3)).astype(np.float32)
    once = round_to_nearest(weight, axis=0)
    np.testing.assert_array_equal(round_to_nearest(once.dequantized(), axis=0).values, once.values)


def test_scales_are_widened_only_where_they_are_too_small():
    weight = round_to_nearest(np.float32([[1, 0.5], [1e-6, 5e-7]]), axis=0)
    wide = widened(weight, np.array([0.0, 1e-3]))
    assert wide.scale[0] == weight.scale[0]
    assert wide.scale[1] >= 1e-3
    assert wide.values[0].tolist() == weight.values[0].tolist()
    assert np.abs(wide.dequantized()[1] - weight.dequantized()[1]).max() <= wide.scale[1] / 2


def test_weight_whose_scales_are_wide_enough_is_the_same():
    weight = round_to_nearest(np.ones((2, 3), np.float32), axis=0)
    assert widened(weight, np.zeros(2)) is weight


def test_channels_of_several_groups_share_the_widest_scale():
    weight = round_to_nearest(np.ones((4, 2, 1, 1), np.float32), axis=1)
    wide = widened(weight, np.array([0.0, 0.1, 0.3, 0.0]))  # two groups of two channels
    np.testing.assert_allclose(wide.scale, [0.3, 0.1], rtol=2e-3)


@pytest.mark.parametrize(
    ("operator", "attributes", "rank", "axis"),
    [
        ("Conv", {}, 4, 0),
        ("Conv", {}, 3, 0),
        ("ConvTranspose", {}, 4, 1),
        ("Gemm", {}, 2, 1),
        ("Gemm", {"transB": 1}, 2, 0),
        ("MatMul", {}, 2, 1),
        ("MatMul", {}, 3, 2),
    ],
)
def test_output_axis_is_where_the_standard_puts_output_channels(operator, attributes, rank, axis):
    node = helper.make_node(operator, ["x", "w"], ["y"], **attributes)
    assert output_axis(node, np.zeros([2] * rank, np.float32)) == axis
