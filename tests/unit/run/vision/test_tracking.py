from __future__ import annotations

import numpy as np

from sanderling.run.vision.detections import Detections
from sanderling.run.vision.tracking import Tracker, TrackRules


def seen(*rows):
    """Detections of (left, top, class, score), 20 pixels wide and high."""
    boxes = np.array([[left, top, left + 20, top + 20] for left, top, _, _ in rows], float).reshape(-1, 4)
    return Detections(boxes, np.array([row[3] for row in rows], float), np.array([row[2] for row in rows], np.int64))


def test_objects_keep_their_numbers_while_they_move_and_their_order_changes():
    tracker = Tracker()
    for index in range(20):
        one, other = (5.0 * index, 10.0, 0, 0.9), (200 - 5.0 * index, 80.0, 0, 0.8)
        order = [one, other] if index % 2 else [other, one]
        numbers = tracker.update(seen(*order), index).tolist()
        assert numbers == ([2, 1] if index % 2 else [1, 2])


def test_object_that_crosses_another_class_keeps_its_number():
    tracker = Tracker()
    for index in range(30):
        numbers = tracker.update(seen((4.0 * index, 10, 0, 0.9), (116 - 4.0 * index, 10, 1, 0.9)), index)
        assert numbers.tolist() == [1, 2]


def test_unsure_detection_continues_a_track_and_begins_none():
    tracker = Tracker()
    assert tracker.update(seen((0, 0, 0, 0.3)), 0).tolist() == [0]
    assert tracker.update(seen((0, 0, 0, 0.9)), 1).tolist() == [1]
    assert tracker.update(seen((1, 0, 0, 0.3), (90, 0, 0, 0.3)), 2).tolist() == [1, 0]


def test_track_goes_on_over_frames_in_which_it_is_hidden_or_that_were_dropped():
    tracker = Tracker()
    for index in range(5):
        tracker.update(seen((8.0 * index, 0, 0, 0.9)), index)
    for index in range(5, 8):
        tracker.update(seen(), index)
    assert tracker.update(seen((8.0 * 8, 0, 0, 0.9)), 8).tolist() == [1]
    assert tracker.update(seen((8.0 * 12, 0, 0, 0.9)), 12).tolist() == [1]


def test_track_that_is_missed_too_long_ends_and_its_number_is_not_used_again():
    tracker = Tracker(TrackRules(most_missed=3))
    assert tracker.update(seen((0, 0, 0, 0.9)), 0).tolist() == [1]
    assert tracker.update(seen((0, 0, 0, 0.9)), 4).tolist() == [1]
    assert tracker.update(seen((0, 0, 0, 0.9)), 9).tolist() == [2]


def test_same_frames_give_the_same_numbers():
    def numbers(seed):
        generator, tracker = np.random.default_rng(seed), Tracker()
        rows = [
            [
                (*generator.uniform(0, 100, 2), int(generator.integers(0, 2)), generator.uniform(0.2, 1))
                for _ in range(6)
            ]
            for _ in range(40)
        ]
        return [tracker.update(seen(*frame), index).tolist() for index, frame in enumerate(rows)]

    assert numbers(0) == numbers(0)
    for frame in numbers(1):
        there = [number for number in frame if number]
        assert len(there) == len(set(there))


def test_boxes_that_do_not_touch_are_two_objects_by_any_rules():
    tracker = Tracker(TrackRules(least_overlap=0.0, least_overlap_unsure=0.0))
    assert tracker.update(seen((0, 0, 0, 0.9)), 0).tolist() == [1]
    assert tracker.update(seen((60, 0, 0, 0.9)), 1).tolist() == [2]
