from __future__ import annotations

import numpy as np
import pytest

from sanderling.measure.doctor.encoding import Encoding, by_range, declared, read_off, usual
from sanderling.model.preprocessing import Preprocessing
from tests.pictures import MEAN, STD, imagenet, smooth_pictures

PICTURES = smooth_pictures(8)
IMAGENET = next(encoding for encoding in usual(3) if encoding.name == "imagenet")


def first(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array.transpose(0, 3, 1, 2), np.float32)


def test_declared_encoding_gives_what_the_preprocessing_gives():
    own = Preprocessing(width=32, height=32, resize="none", mean=tuple(MEAN.tolist()), std=tuple(STD.tolist()))
    assert declared(own, "own").equals(IMAGENET)
    np.testing.assert_allclose(IMAGENET.apply(first(PICTURES), 1), imagenet(PICTURES), atol=1e-5)
    np.testing.assert_allclose(IMAGENET.undo(imagenet(PICTURES), 1), first(PICTURES), atol=1e-2)


@pytest.mark.parametrize("factor", [255.0, 1.0, 1 / 255])
def test_encoding_is_read_off_the_values(factor):
    values = first((factor * PICTURES.astype(np.float32) / np.float32(255) - MEAN) / STD)
    found = read_off(values, 1, "seen")
    assert found is not None
    assert found.exact
    assert found.equals(IMAGENET.scaled(factor))
    assert not found.equals(IMAGENET.scaled(2 * factor))


def test_mean_and_std_are_told_in_the_users_units():
    found = read_off(imagenet(PICTURES), 1, "seen")
    assert found is not None
    np.testing.assert_allclose(found.mean, MEAN, atol=1e-4)
    np.testing.assert_allclose(found.std, STD, rtol=1e-4)
    assert found.told() == "mean (0.485, 0.456, 0.406), std (0.229, 0.224, 0.225)"


def test_other_mean_in_one_channel_is_another_encoding():
    other = Encoding("other", IMAGENET.step, (IMAGENET.offset[0] + 0.05, *IMAGENET.offset[1:]))
    assert not other.equals(IMAGENET)
    assert not IMAGENET.reversed.equals(IMAGENET)


def test_without_both_ends_the_offset_is_known_but_for_whole_levels():
    dim = np.clip(PICTURES, 20, 200)
    found = read_off(imagenet(dim), 1, "seen")
    assert found is not None
    assert not found.exact
    assert found.equals(IMAGENET)


@pytest.mark.parametrize("values", [np.random.default_rng(0).standard_normal((8, 3, 32, 32)), np.zeros((8, 3, 4, 4))])
def test_nothing_is_read_off_noise_or_a_constant(values):
    assert read_off(values.astype(np.float32), 1, "seen") is None


def test_range_suggests_the_usual_encoding():
    smooth = np.linspace(0, 1, 3000, dtype=np.float32).reshape(1, 3, 10, 100)
    assert [by_range(values, 3).name for values in (255 * smooth, smooth, 2 * smooth - 1)] == [
        "raw 0…255",
        "unit 0…1",
        "signed -1…1",
    ]
    assert by_range(1000 * smooth, 3) is None


def test_posterised_pictures_are_whole_levels_all_the_same():
    posterised = imagenet(PICTURES // 4 * 4)
    assert not read_off(posterised, 1, "seen").equals(IMAGENET)
    assert IMAGENET.holds(posterised, 1)
    assert not IMAGENET.holds(255 * posterised, 1)
    assert not IMAGENET.holds(posterised / 255, 1)
