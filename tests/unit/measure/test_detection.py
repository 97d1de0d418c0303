from __future__ import annotations

import numpy as np
import pytest

from sanderling.core.errors import DataError
from sanderling.core.tensor import TensorSpec
from sanderling.measure.detection import check_objects, read_objects
from sanderling.run.vision.reading import find_reader

SQUARE = [0, 0, 10, 10]


PICTURES = (TensorSpec(name="x", dtype="float32", shape=("N", 3, 64, 64)),)


def output_of(classes: int) -> TensorSpec:
    return TensorSpec(name="y", dtype="float32", shape=("N", 4 + classes, 100))


def test_objects_are_read_as_they_are_given():
    objects = read_objects(np.float32([[SQUARE, [0, 0, 0, 0]]]), np.int32([[2, -1]]), count=1)
    assert objects.classes.tolist() == [[2, -1]]
    assert objects.boxes[0, 0].tolist() == SQUARE


@pytest.mark.parametrize(
    ("boxes", "classes", "says"),
    [
        (np.zeros((2, 1, 4)), np.zeros((1, 1), int), "expected boxes"),
        (np.zeros((1, 1, 5)), np.zeros((1, 1), int), "expected boxes"),
        (np.zeros((1, 1, 4)), np.zeros((1, 1)), "classes float64"),
        (np.zeros((1, 1, 4)), np.full((1, 1), -1), "no picture has an object"),
        (np.zeros((1, 1, 4)), np.zeros((1, 1), int), "box 0 of picture 0"),
        (np.array([[[5.0, 0, 1, 9]]]), np.zeros((1, 1), int), "left < right"),
        (np.array([[[0, 0, np.nan, 9]]]), np.zeros((1, 1), int), "finite pixels"),
    ],
)
def test_objects_that_cannot_be_used_are_refused(boxes, classes, says):
    with pytest.raises(DataError, match=says):
        read_objects(boxes, classes, count=1)


def test_class_that_the_output_does_not_have_is_refused():
    objects = read_objects(np.array([[SQUARE]]), np.array([[4]]), count=1)
    five, four = (output_of(5),), (output_of(4),)
    check_objects(objects, five, find_reader(PICTURES, five))
    with pytest.raises(DataError, match=r"up to 4: the model's output has 4 \(0…3\)"):
        check_objects(objects, four, find_reader(PICTURES, four))


def test_objects_for_a_model_that_is_no_detector_are_refused():
    objects = read_objects(np.array([[SQUARE]]), np.array([[0]]), count=1)
    with pytest.raises(DataError, match="the model is no detector: outputs are y"):
        check_objects(objects, (TensorSpec(name="y", dtype="float32", shape=("N", 10)),), None)
    check_objects(None, (), None)
