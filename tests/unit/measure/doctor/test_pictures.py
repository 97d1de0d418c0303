from __future__ import annotations

import numpy as np
import pytest

from sanderling.measure.doctor.pictures import Pictures, check_declared, check_values, reread
from sanderling.model.preprocessing import Preprocessing
from tests.pictures import MEAN, STD, imagenet, smooth_pictures

REFERENCE = Preprocessing(width=32, height=32, resize="none", mean=tuple(MEAN.tolist()), std=tuple(STD.tolist()))


def check(values: np.ndarray, *, axis: int = 1, reference=REFERENCE, golden=None) -> list[str]:
    made = Pictures("image", np.ascontiguousarray(values, np.float32), axis, None, reference, golden)
    return [finding.kind for finding in check_values(made)]


def test_right_values_have_no_finding_in_either_layout():
    values = imagenet(smooth_pictures())
    assert check(values) == []
    assert check(values.transpose(0, 2, 3, 1), axis=3) == []


def test_noise_is_no_mistake_in_the_layout():
    assert "input-layout" not in check(np.random.default_rng(0).standard_normal((32, 3, 32, 32)), reference=None)


@pytest.mark.parametrize("axis", [1, 3])
def test_memory_in_the_other_layout_is_found(axis):
    values = imagenet(smooth_pictures())
    right = values if axis == 1 else np.ascontiguousarray(values.transpose(0, 2, 3, 1))
    turned = np.ascontiguousarray(right.transpose(0, 2, 3, 1) if axis == 1 else right.transpose(0, 3, 1, 2))
    wrong = turned.reshape(right.shape)
    assert check(wrong, axis=axis) == ["input-layout"]
    np.testing.assert_array_equal(reread(wrong, axis), right)


def test_golden_inputs_stand_in_for_a_preprocessing():
    golden = imagenet(smooth_pictures(8, seed=5))
    assert check(imagenet(smooth_pictures()), reference=None, golden=golden) == []
    assert check(255 * imagenet(smooth_pictures()), reference=None, golden=golden) == ["input-scale"]


def test_inputs_far_from_golden_ones_are_a_warning():
    generator = np.random.default_rng(0)
    golden = generator.standard_normal((8, 3, 16, 16)).astype(np.float32)
    assert check(generator.standard_normal((8, 3, 16, 16)), reference=None, golden=golden) == []
    far = generator.standard_normal((8, 3, 16, 16)) + 5
    assert check(far, reference=None, golden=golden) == ["input-unlike-golden"]


def test_colours_that_lean_to_the_other_side_are_a_warning():
    tint = np.array([1.0, 0.7, 0.4])
    golden, other = (imagenet((smooth_pictures(16, seed=seed) * tint).astype(np.uint8)) for seed in (1, 2))
    assert check(other, golden=golden) == []
    swapped = imagenet((smooth_pictures(16, seed=2) * tint).astype(np.uint8)[..., ::-1])
    made = Pictures("image", swapped, 1, REFERENCE, REFERENCE, golden)
    (found,) = check_values(made)
    assert (found.kind, found.severity) == ("input-channel-order", "warning")


def test_other_resize_is_a_warning_and_equal_preprocessing_nothing():
    assert check_declared(REFERENCE, REFERENCE, "image") == []
    (found,) = check_declared(REFERENCE.model_copy(update={"resize": "stretch"}), REFERENCE, "image")
    assert (found.kind, found.severity) == ("input-resize", "warning")
