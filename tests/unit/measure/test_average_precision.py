from __future__ import annotations

import numpy as np
import pytest

from sanderling.measure.average_precision import Matches, map_drop_upper, match, mean_average_precision, weighted_map
from sanderling.measure.detection import Objects
from sanderling.run.vision.detections import Detections
from tests.coco import coco_percent


def random_scenes(seed: int, *, count: int = 30, classes: int = 4, noise: float = 3.0, least: int = 0):
    """Objects, and detections that hit some of them, miss some, double some and invent some."""
    generator = np.random.default_rng(seed)
    boxes = np.zeros((count, 5, 4))
    labels = np.full((count, 5), -1)
    found = []
    for row in range(count):
        present = int(generator.integers(least, 6))
        corner = generator.uniform(0, 60, (present, 2))
        boxes[row, :present] = np.hstack([corner, corner + generator.uniform(10, 40, (present, 2))])
        labels[row, :present] = generator.integers(0, classes, present)
        copies = np.repeat(np.arange(present), generator.integers(0, 3, present))
        hits = boxes[row, copies] + generator.normal(0, noise, (len(copies), 4))
        invented = generator.uniform(0, 50, (3, 2))
        edges = np.vstack([hits, np.hstack([invented, invented + 20])]).reshape(-1, 2, 2)
        all_boxes = np.sort(edges, axis=1).reshape(-1, 4)  # noise may have turned a small box inside out
        numbers = np.concatenate([labels[row, copies], generator.integers(0, classes, 3)])
        # Rounded, so that scores tie between pictures and within one.
        scores = np.round(generator.uniform(0, 1, len(numbers)), 2)
        order = np.argsort(-scores, kind="stable")
        found.append(Detections(all_boxes[order], scores[order], numbers[order]))
    return found, Objects(boxes, labels)


def one_picture(*detections: tuple[list[float], float, int]) -> Detections:
    boxes, scores, classes = zip(*detections, strict=True)
    return Detections(np.array(boxes, float), np.array(scores), np.array(classes))


def objects_of(*pictures: list[tuple[list[float], int]]) -> Objects:
    width = max(map(len, pictures))
    boxes, classes = np.zeros((len(pictures), width, 4)), np.full((len(pictures), width), -1)
    for row, picture in enumerate(pictures):
        for column, (box, number) in enumerate(picture):
            boxes[row, column], classes[row, column] = box, number
    return Objects(boxes, classes)


SQUARE, FAR = [0, 0, 10, 10], [50, 50, 60, 60]


# Mean average precision


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("noise", [0.0, 1.0, 4.0])
def test_map_equals_that_of_coco(seed, noise):
    found, objects = random_scenes(seed, noise=noise)
    matches = match(found, objects)
    got = mean_average_precision(matches, thresholds=slice(0, 1)), mean_average_precision(matches)
    assert got == pytest.approx(coco_percent(found, objects), abs=1e-6)


def test_perfect_detections_have_a_map_of_100():
    objects = objects_of([(SQUARE, 0), (FAR, 1)], [(SQUARE, 1)])
    found = [one_picture((SQUARE, 0.9, 0), (FAR, 0.8, 1)), one_picture((SQUARE, 0.7, 1))]
    assert mean_average_precision(match(found, objects)) == pytest.approx(100)


def test_box_of_another_class_is_wrong():
    found = [one_picture((SQUARE, 0.9, 1))]
    assert mean_average_precision(match(found, objects_of([(SQUARE, 0)]))) == 0


def test_second_box_on_an_object_is_wrong():
    found = [one_picture((SQUARE, 0.9, 0), (SQUARE, 0.8, 0))]
    matches = match(found, objects_of([(SQUARE, 0)]))
    assert matches.right.tolist() == [[True, False]] * 10


def test_box_is_right_up_to_the_threshold_that_it_reaches():
    found = [one_picture(([0, 0, 10, 7.2], 0.9, 0))]  # intersection over union 0.72
    matches = match(found, objects_of([(SQUARE, 0)]))
    assert matches.right[:, 0].tolist() == [True] * 5 + [False] * 5
    assert mean_average_precision(matches, thresholds=slice(0, 1)) == pytest.approx(100)


def test_model_that_finds_nothing_has_a_map_of_zero():
    nothing = Detections(np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64))
    assert mean_average_precision(match([nothing, nothing], objects_of([(SQUARE, 0)], []))) == 0


def test_class_without_objects_does_not_count():
    found = [one_picture((SQUARE, 0.9, 0), (FAR, 0.95, 3))]
    assert mean_average_precision(match(found, objects_of([(SQUARE, 0)]))) == pytest.approx(100)


def test_joined_matches_are_those_of_all_pictures_at_once():
    found, objects = random_scenes(5)
    parts = [match(found[rows], objects.pick(rows)) for rows in (slice(0, 7), slice(7, 8), slice(8, 30))]
    assert mean_average_precision(Matches.joined(parts)) == mean_average_precision(match(found, objects))


def test_box_that_is_inside_out_is_wrong():
    # COCO's code leaves a box of negative area out, which would be to a broken model's credit.
    found = [one_picture(([10, 0, 0, 10], 0.9, 0), (SQUARE, 0.5, 0))]
    objects = objects_of([(SQUARE, 0)])
    assert match(found, objects).right[0].tolist() == [False, True]
    assert mean_average_precision(match(found, objects)) == pytest.approx(50)
    assert coco_percent(found, objects)[1] == pytest.approx(100)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_box_that_is_not_finite_is_wrong(bad):
    found = [one_picture(([bad, 0, 10, 10], 0.9, 0), (SQUARE, 0.5, 0))]
    matches = match(found, objects_of([(SQUARE, 0)]))
    assert not matches.right[:, 0].any()
    assert matches.right[:, 1].all()


# The bound on a drop


def test_weight_of_two_counts_a_picture_twice():
    found, objects = random_scenes(3, count=12)
    times = np.random.default_rng(0).integers(0, 4, 12)
    rows = np.repeat(np.arange(12), times)
    repeated = match([found[row] for row in rows], objects.pick(rows))
    got = weighted_map(match(found, objects), times[None].astype(float))[0]
    assert got == pytest.approx(mean_average_precision(repeated), abs=1e-9)


def test_any_weights_leave_perfect_detections_perfect():
    objects = objects_of(*[[(SQUARE, 0), (FAR, 1)]] * 40)
    found = [one_picture((SQUARE, 0.5 + row / 100, 0), (FAR, 0.9 - row / 100, 1)) for row in range(40)]
    weights = np.random.default_rng(0).dirichlet(np.ones(40), 200)
    assert weighted_map(match(found, objects), weights) == pytest.approx(np.full(200, 100.0))


def test_bound_is_above_the_drop_and_the_same_for_the_same_seed():
    found, objects = random_scenes(1, count=60, noise=1.0)
    worse, _ = random_scenes(1, count=60, noise=4.0)
    before, after = match(found, objects), match(worse, objects)
    drop = mean_average_precision(before) - mean_average_precision(after)
    bound = map_drop_upper(before, after, seed=2)
    assert 0 < drop < bound < drop + 15
    assert bound == map_drop_upper(before, after, seed=2)


@pytest.mark.parametrize("count", [60, 300])
def test_equal_detections_leave_the_rule_of_three(count):
    found, objects = random_scenes(0, count=count, least=1)
    matches = match(found, objects)
    expected = mean_average_precision(matches) * (1 - 0.05 ** (1 / count))
    assert map_drop_upper(matches, matches) == pytest.approx(expected, rel=0.15)


def test_better_detections_may_have_a_negative_bound():
    found, objects = random_scenes(1, count=300, noise=4.0)
    better, _ = random_scenes(1, count=300, noise=0.5)
    assert map_drop_upper(match(found, objects), match(better, objects)) < 0
