from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sanderling.run.vision.suppression import pairwise_iou, suppress
from tests.detectors import greedy_suppression


def crowd(seed, count):
    """Boxes in heaps, best first, and their classes."""
    generator = np.random.default_rng(seed)
    corner = generator.integers(0, 6, (count, 2)) * 10.0 + generator.normal(0, 1.5, (count, 2))
    boxes = np.hstack([corner, corner + generator.uniform(4, 14, (count, 2))])
    return boxes, generator.integers(0, 3, count)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(0, 400),
    most_overlap=st.sampled_from([0.0, 0.3, 0.5, 0.65, 1.0]),
    agnostic=st.booleans(),
)
def test_blocks_keep_what_one_box_at_a_time_keeps(seed, count, most_overlap, agnostic):
    boxes, classes = crowd(seed, count)
    rows = [(*box, number, count - place) for place, (box, number) in enumerate(zip(boxes, classes, strict=True))]
    expected = [count - row[5] for row in greedy_suppression(rows, most_overlap, agnostic=agnostic)]
    given_classes = None if agnostic else classes
    assert suppress(boxes, given_classes, most_overlap=most_overlap, most=count).tolist() == expected
    assert suppress(boxes, given_classes, most_overlap=most_overlap, most=7).tolist() == expected[:7]


def test_box_that_only_a_suppressed_one_overlaps_stays():
    boxes = np.array(
        [[0, 0, 10, 10], [2, 0, 12, 10], [4, 0, 14, 10]], float
    )  # IoU of neighbours 0.67, of the ends 0.43
    assert suppress(boxes, np.zeros(3, np.int64), most_overlap=0.65, most=100).tolist() == [0, 2]


def test_no_more_are_kept_than_were_asked_for():
    corner = np.arange(300.0)[:, None] * 20
    boxes = np.hstack([corner, corner, corner + 10, corner + 10])
    assert suppress(boxes, None, most_overlap=0.5, most=100).tolist() == list(range(100))


def test_boxes_that_are_not_finite_or_empty_overlap_nothing():
    boxes = np.array([[0, 0, 10, 10], [np.nan, 0, 10, 10], [5, 5, 5, 5], [0, 0, np.inf, np.inf], [0, 0, 10, 10]])
    assert suppress(boxes, None, most_overlap=0.5, most=9).tolist() == [0, 1, 2, 3]
    empty = np.zeros((1, 4))
    assert pairwise_iou(empty, empty).tolist() == [[0]]
