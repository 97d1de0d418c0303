from __future__ import annotations

import numpy as np

from sanderling.measure.confusion import NOTHING, counted, of_labels, of_objects
from sanderling.measure.detection import Objects
from sanderling.run.vision.detections import Detections


def test_matrix_of_labels_counts_every_sample():
    generator = np.random.default_rng(0)
    labels, given = generator.integers(0, 7, 300), generator.integers(0, 7, 300)
    expected = np.zeros((7, 7), int)
    for right, taken_for in zip(labels, given, strict=True):
        expected[right, taken_for] += 1
    np.testing.assert_array_equal(of_labels(labels, given).matrix(list(range(7))), expected)


def test_of_many_classes_those_that_are_confused_most_are_chosen():
    labels = np.repeat([4, 9, 2, 7], [30, 20, 20, 10])
    given = np.where(labels == 9, 2, labels)
    assert of_labels(labels, given).classes(2) == [2, 9]
    assert of_labels(labels, given).classes(10) == [2, 4, 7, 9]


def test_objects_that_are_missed_and_detections_without_an_object_are_nothing():
    objects = Objects(
        np.array([[[0, 0, 10, 10], [50, 0, 60, 10], [0, 50, 10, 60], [0, 0, 0, 0]]], float), np.array([[3, 1, 2, -1]])
    )
    found = Detections(
        boxes=np.array([[0, 0, 10, 11], [0, 0, 10, 9], [50, 0, 60, 10], [0, 50, 10, 60]], float),
        scores=np.array([0.9, 0.8, 0.7, 0.2]),  # the last is too weak
        classes=np.array([3, 3, 0, 2]),
    )
    confusion = counted(of_objects([found], objects))
    assert sorted(confusion.cells) == [(NOTHING, 3, 1), (1, 0, 1), (2, NOTHING, 1), (3, 3, 1)]
    assert confusion.classes(10) == [0, 1, 2, 3, NOTHING]
