import numpy as np
import pytest

from sanderling.workshop.text import storage
from sanderling.workshop.text.storage import Form, block_of, fits, has_levels, restore, store

STORED = [form for form in Form if form not in (Form.FLOAT, Form.HALF)]


def weights(depth=96, width=24, seed=0):
    return np.random.default_rng(seed).normal(size=(depth, width)).astype(np.float32)


def weights_on_levels(offset, depth=2048, width=24, seed=0):
    """Each block of 32 has up to 16 levels a step of its own apart, beginning at an offset in steps."""
    random = np.random.default_rng(seed)
    steps = random.uniform(0.001, 0.01, (depth // 32, 1, width)).astype(np.float16).astype(np.float32)
    codes = random.integers(0, 16, (depth // 32, 32, width))
    return ((codes + offset) * steps).astype(np.float32).reshape(depth, width)


@pytest.mark.parametrize(
    ("form", "largest"),
    [(Form.DYNAMIC, 0.5 / 127), (Form.BLOCKS_8, 0.5 / 127), (Form.RESIDUAL_8, 0.5 / 127), (Form.BLOCKS_4, 1 / 15)],
)
def test_a_weight_comes_back_within_half_a_step_of_its_range(form, largest):
    weight = weights()

    error = np.abs(restore(store(weight, form), form) - weight).max()

    assert error <= largest * 2 * np.abs(weight).max()


def test_blocks_follow_a_weight_that_is_small_in_places():
    weight = weights()
    weight[:32] *= 1e-3

    lost = {
        form: np.abs(restore(store(weight, form), form) - weight)[:32].max() for form in (Form.DYNAMIC, Form.BLOCKS_8)
    }

    assert lost[Form.BLOCKS_8] < 0.01 * lost[Form.DYNAMIC]


def test_four_bits_take_the_range_with_the_least_square_error():
    weight = weights()
    blocks = weight.T.reshape(24, -1, block_of(Form.BLOCKS_4, 96))
    steps = (np.maximum(blocks.max(2), 0) - np.minimum(blocks.min(2), 0)) / 15

    lost = restore(store(weight, Form.BLOCKS_4), Form.BLOCKS_4) - weight

    assert np.square(lost).mean() < np.square(steps).mean() / 12  # that of rounding over the whole range


@pytest.mark.parametrize("form", STORED)
def test_zeros_stay_zeros(form):
    assert not restore(store(np.zeros((32, 4), np.float32), form), form).any()


@pytest.mark.parametrize("form", STORED)
def test_a_weight_stored_in_slices_is_the_weight_stored_at_once(form, monkeypatch):
    whole = store(weights(), form)
    monkeypatch.setattr(storage, "_SLICE_VALUES", 96 * 7)

    sliced = store(weights(), form)

    np.testing.assert_array_equal(sliced.codes, whole.codes)
    np.testing.assert_array_equal(sliced.scales, whole.scales)
    if whole.zero_points is not None:
        np.testing.assert_array_equal(sliced.zero_points, whole.zero_points)


@pytest.mark.parametrize(("depth", "wide"), [(96, 32), (576, 64), (1536, 128)])
def test_blocks_are_as_wide_as_the_depth_allows_and_narrow_where_four_bits_feel_it(depth, wide):
    assert block_of(Form.BLOCKS_8, depth) == block_of(Form.BLOCKS_4_WIDE, depth) == wide
    assert block_of(Form.BLOCKS_4, depth) == 32


@pytest.mark.parametrize(("levels", "offset", "share"), [(16, 0.37, 0.5), (255, 0.0, 1e-3)])
def test_eight_bits_keep_to_the_grid_of_a_file_of_fewer_bits(levels, offset, share):
    random = np.random.default_rng(0)
    steps = random.uniform(0.001, 0.01, (4, 1, 24)).astype(np.float32)
    codes = random.integers(0, levels, (4, 32, 24)) - levels // 2
    codes[:, 0] = levels // 2  # the largest code is in every block
    weight = ((codes + offset) * steps).astype(np.float32).reshape(128, 24)

    lost = np.square(restore(store(weight, Form.RESIDUAL_8), Form.RESIDUAL_8) - weight).mean()

    largest = np.abs(weight.reshape(4, 32, 24)).max(1)
    symmetric = np.square(largest / 127).mean() / 12  # of rounding around zero, whatever the grid
    assert lost < share * symmetric


@pytest.mark.parametrize("offset", [-7.6, -8.0, -0.4, -14.6])
def test_four_bits_keep_to_levels_wherever_they_begin(offset):
    weight = weights_on_levels(offset)

    lost = {
        form: np.square(restore(store(weight, form), form) - weight).mean()
        for form in (Form.OFFSETS_4, Form.BLOCKS_4, Form.BLOCKS_8)
    }

    assert lost[Form.OFFSETS_4] < 0.05 * lost[Form.BLOCKS_4]
    assert lost[Form.OFFSETS_4] < lost[Form.BLOCKS_8]


@pytest.mark.parametrize("value", [-3.0, 0.25])
def test_four_bits_keep_a_block_of_one_value(value):
    weight = weights_on_levels(-7.6)
    weight[:32] = value

    restored = restore(store(weight, Form.OFFSETS_4), Form.OFFSETS_4)

    np.testing.assert_allclose(restored[:32], value, rtol=1e-6)


def test_four_bits_without_levels_are_as_close_as_others():
    weight = weights()

    lost = {
        form: np.square(restore(store(weight, form), form) - weight).mean() for form in (Form.OFFSETS_4, Form.BLOCKS_4)
    }

    assert lost[Form.OFFSETS_4] < 1.3 * lost[Form.BLOCKS_4]


@pytest.mark.parametrize("offset", [-7.6, -8.0])
def test_levels_are_seen(offset):
    assert has_levels(weights_on_levels(offset))


@pytest.mark.parametrize("weight", [weights(), weights(depth=40), np.round(weights() * 100), weights_on_levels(-40)])
def test_no_levels_are_seen_where_there_are_none_or_too_many_or_far_from_zero(weight):
    assert not has_levels(weight)


def test_blocks_need_a_depth_of_whole_blocks():
    assert fits(Form.BLOCKS_8, 64)
    assert not fits(Form.BLOCKS_4, 48)
    assert fits(Form.DYNAMIC, 48)
