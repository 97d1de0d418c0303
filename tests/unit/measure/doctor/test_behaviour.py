from __future__ import annotations

import numpy as np
import pytest

from sanderling.measure.doctor.behaviour import check_behaviour, mutual_information
from sanderling.measure.doctor.pictures import Pictures
from tests.models import run_directly
from tests.pictures import color_classifier, imagenet, tinted_pictures


def classify(values: np.ndarray) -> np.ndarray:
    return run_directly(color_classifier(), {"image": values})["scores"].astype(np.float64)


def pictures(values: np.ndarray) -> Pictures:
    return Pictures("image", np.ascontiguousarray(values, np.float32), 1, None, None, None)


def test_information_is_that_of_the_classes_when_answers_are_sure_and_different():
    assert mutual_information(np.eye(4) * 100) == pytest.approx(np.log(4), abs=1e-6)
    assert mutual_information(np.ones((6, 4))) == pytest.approx(0, abs=1e-12)
    assert mutual_information(np.tile([100.0, 0, 0], (6, 1))) == pytest.approx(0, abs=1e-12)
    assert mutual_information(np.eye(4)) == pytest.approx(np.log(4), abs=1e-6)  # probabilities as they are
    assert mutual_information(np.full((3, 2), np.nan)) == 0


def test_right_inputs_are_left_alone():
    images, labels = tinted_pictures()
    assert check_behaviour(pictures(imagenet(images)), classify, labels) == []
    assert check_behaviour(pictures(imagenet(images)), classify, None) == []


def test_labels_prove_swapped_channels():
    images, labels = tinted_pictures()
    (found,) = check_behaviour(pictures(imagenet(images[..., ::-1])), classify, labels)
    assert (found.kind, found.subject) == ("input-channel-order", "image")
    assert found.numbers["top1_other"] == 1


def test_without_labels_swapped_channels_are_not_judged():
    images, _ = tinted_pictures()
    assert check_behaviour(pictures(imagenet(images[..., ::-1])), classify, None) == []


def test_shuffled_labels_prove_nothing():
    images, labels = tinted_pictures()
    shuffled = np.random.default_rng(0).permutation(labels)
    assert check_behaviour(pictures(imagenet(images)), classify, shuffled) == []
