from __future__ import annotations

import numpy as np
import pytest

from sanderling.core.errors import DataError
from sanderling.core.tensor import TensorSpec
from sanderling.measure.detection import (
    MOST_DETECTIONS,
    check_objects,
    detector_classes,
    pairwise_iou,
    read_detections,
    read_objects,
    without_duplicates,
)

SQUARE = [0, 0, 10, 10]


# Reading an output


def raw_of(*rows: tuple[float, float, float, float, list[float]], anchors: int = 12) -> np.ndarray:
    """One picture's output (1, 4 + classes, anchors); anchors without a row have scores of 0."""
    raw = np.zeros((1, 4 + len(rows[0][4]), anchors), np.float32)
    for column, (x, y, width, height, scores) in enumerate(rows):
        raw[0, :, column] = [x, y, width, height, *scores]
    return raw


def test_centres_and_sizes_become_edges_best_first():
    (found,) = read_detections(raw_of((10, 20, 4, 8, [0.2, 0.0]), (30, 30, 10, 10, [0.0, 0.9])))
    assert found.boxes.tolist() == [[25, 25, 35, 35], [8, 16, 12, 24]]
    assert found.classes.tolist() == [1, 0]
    assert found.scores == pytest.approx([0.9, 0.2])


def test_anchor_counts_once_for_each_class_that_it_scores():
    (found,) = read_detections(raw_of((10, 10, 4, 4, [0.6, 0.3, 0.0])))
    assert found.classes.tolist() == [0, 1]


def test_duplicates_go_within_a_class_only():
    (found,) = read_detections(
        raw_of((10, 10, 8, 8, [0.9, 0.0]), (10, 10, 8, 9, [0.8, 0.0]), (10, 10, 8, 8, [0.0, 0.7]))
    )
    assert found.classes.tolist() == [0, 1]
    assert found.scores == pytest.approx([0.9, 0.7])


def test_box_that_only_a_suppressed_one_overlaps_stays():
    boxes = np.array(
        [[0, 0, 10, 10], [2, 0, 12, 10], [4, 0, 14, 10]], float
    )  # IoU of neighbours 0.67, of the ends 0.43
    assert without_duplicates(boxes, np.zeros(3, np.int64)).tolist() == [0, 2]


def test_at_most_a_hundred_detections_are_kept():
    corner = np.arange(300.0)[:, None] * 20
    boxes = np.hstack([corner, corner, corner + 10, corner + 10])
    assert without_duplicates(boxes, np.zeros(300, np.int64)).tolist() == list(range(MOST_DETECTIONS))


def test_scores_that_are_not_numbers_are_no_detections():
    (found,) = read_detections(raw_of((10, 10, 4, 4, [np.nan, 0.5])))
    assert found.classes.tolist() == [1]


def test_overlap_of_empty_boxes_is_zero():
    empty = np.zeros((1, 4))
    assert pairwise_iou(empty, empty).tolist() == [[0]]


@pytest.mark.parametrize(
    ("shape", "dtype", "classes"),
    [
        (("N", 14, 500), "float32", 10),
        ((1, 84, 8400), "float16", 80),
        ((1, 84, "anchors"), "float32", 80),
        (("N", 4, 500), "float32", None),
        (("N", 500, 14), "float32", None),
        (("N", "C", 500), "float32", None),
        (("N", 14, 500), "int64", None),
        (("N", 14), "float32", None),
    ],
)
def test_detector_has_one_float_output_of_box_sides_and_classes_by_anchors(shape, dtype, classes):
    output = TensorSpec(name="y", dtype=dtype, shape=shape)
    assert detector_classes((output,)) == classes
    assert detector_classes((output, output)) is None


# Objects


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
    check_objects(objects, (output_of(5),))
    with pytest.raises(DataError, match=r"up to 4: the model's output has 4 \(0…3\)"):
        check_objects(objects, (output_of(4),))


def test_objects_for_a_model_that_is_no_detector_are_refused():
    objects = read_objects(np.array([[SQUARE]]), np.array([[0]]), count=1)
    with pytest.raises(DataError, match="the model is no detector: outputs are y"):
        check_objects(objects, (TensorSpec(name="y", dtype="float32", shape=("N", 10)),))
    check_objects(None, ())
