from __future__ import annotations

import numpy as np
import pytest

from sanderling.core.errors import OptionError
from sanderling.core.progress import Recorder, Silent
from sanderling.core.statistics import binomial_upper, paired_drop_upper
from sanderling.core.tensor import TensorSpec
from sanderling.measure.accuracy import (
    OutputRecord,
    classifier_classes,
    compare_outputs,
    judge,
    metric_for,
    within_budget,
)
from sanderling.measure.average_precision import Matches, map_drop_upper
from sanderling.measure.detection import Objects
from sanderling.measure.samples import Samples
from sanderling.model.manifest import Accuracy, Budget
from sanderling.run.vision.reading import find_reader


def scores_for(*classes: int, count: int = 4) -> np.ndarray:
    """Scores whose highest class is the one that is asked for, shape (n, count)."""
    return np.eye(count, dtype=np.float32)[list(classes)] * 5


def record_of(reference: np.ndarray, outputs: np.ndarray, *, classify: bool = True) -> OutputRecord:
    record = OutputRecord()
    record.add({"y": reference}, {"y": outputs}, samples=len(reference), classify=classify)
    return record


def natural_metric(*, classify: bool, labelled: bool) -> str:
    if not classify:
        return "cosine"
    return "top1" if labelled else "agreement"


def judged(reference: np.ndarray, outputs: np.ndarray, labels: list[int] | None, *, classify: bool = True) -> Accuracy:
    own = record_of(reference, reference, classify=classify)
    numbers = None if labels is None else np.array(labels, np.int64)
    metric = natural_metric(classify=classify, labelled=labels is not None)
    return judge(record_of(reference, outputs, classify=classify), own, numbers, metric=metric, seed=0)


def accuracy_of(metric: str, *, drop: float, drop_upper: float) -> Accuracy:
    return Accuracy(metric=metric, value=90, drop=drop, drop_upper=drop_upper, samples=10, sqnr_db={}, cosine={})


def test_with_labels_a_classifier_is_judged_by_top1():
    # lost: the second; won: the fourth; the fifth is wrong in both, differently.
    got = judged(scores_for(0, 1, 2, 3, 0), scores_for(0, 2, 2, 1, 3), [0, 1, 2, 1, 2])
    assert (got.metric, got.samples) == ("top1", 5)
    assert got.value == pytest.approx(60)
    assert got.drop == pytest.approx(0)
    assert got.drop_upper == pytest.approx(100 * paired_drop_upper(1, 1, 5))


def test_lost_answers_are_a_drop_in_points():
    got = judged(scores_for(0, 1, 2, 3), scores_for(0, 1, 1, 1), [0, 1, 2, 3])
    assert (got.value, got.drop) == (pytest.approx(50), pytest.approx(50))
    assert got.drop_upper > got.drop


def test_won_answers_are_a_negative_drop():
    got = judged(scores_for(1, 1, 2, 3), scores_for(0, 1, 2, 3), [0, 1, 2, 3])
    assert (got.value, got.drop) == (pytest.approx(100), pytest.approx(-25))


def test_without_labels_a_classifier_is_judged_by_agreement():
    got = judged(scores_for(0, 1, 2, 3), scores_for(0, 1, 2, 0), None)
    assert (got.metric, got.value, got.drop) == ("agreement", pytest.approx(75), pytest.approx(25))
    assert got.drop_upper == pytest.approx(100 * binomial_upper(1, 4))


def test_other_models_are_judged_by_cosine():
    reference = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
    outputs = np.array([[2, 0], [1, 0], [1, 1]], np.float32)  # same direction, orthogonal, equal
    got = judged(reference, outputs, None, classify=False)
    assert (got.metric, got.samples) == ("cosine", 3)
    assert got.value == pytest.approx(2 / 3)
    assert got.drop == pytest.approx(1 / 3)
    assert got.drop_upper >= got.drop


def test_output_next_to_nothing_has_no_direction():
    reference = np.array([[100, 0], [0.1, 0], [0.1, 0]], np.float32)
    outputs = np.array([[100, 0], [0, 0.1], [0, 5]], np.float32)  # equal, next to nothing in both, in one only
    got = judged(reference, outputs, None, classify=False)
    assert got.value == pytest.approx(2 / 3)


def test_cosine_is_that_of_the_worst_output():
    record, own = OutputRecord(), OutputRecord()
    reference = {"good": np.eye(2), "bad": np.eye(2)}
    record.add(reference, {"good": np.eye(2), "bad": -np.eye(2)}, samples=2, classify=False)
    own.add(reference, reference, samples=2, classify=False)
    got = judge(record, own, None, metric="cosine", seed=0)
    assert got.value == pytest.approx(-1)
    assert got.cosine == {"good": pytest.approx(1), "bad": pytest.approx(-1)}
    assert got.sqnr_db == {"good": None, "bad": pytest.approx(10 * np.log10(1 / 4))}


@pytest.mark.parametrize("classify", [True, False])
@pytest.mark.parametrize("labels", [None, [0, 1, 2, 0]])
def test_reference_has_no_drop_and_no_doubt(labels, classify):
    reference = record_of(scores_for(0, 1, 2, 3), scores_for(0, 1, 2, 3), classify=classify)
    numbers = None if labels is None else np.array(labels)
    metric = natural_metric(classify=classify, labelled=labels is not None)
    got = judge(reference, reference, numbers, metric=metric, seed=0)
    assert (got.drop, got.drop_upper) == (0, 0)
    assert got.sqnr_db == {"y": None}


def test_equal_outputs_of_another_variant_keep_the_doubt_of_few_samples():
    got = judged(scores_for(0, 1, 2, 3), scores_for(0, 1, 2, 3), [0, 1, 2, 3])
    assert got.drop == 0
    assert got.drop_upper == pytest.approx(100 * binomial_upper(0, 4))


@pytest.mark.parametrize("labels", [None, [0, 1, 2, 3]])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_output_that_is_not_finite_is_never_right(labels, bad):
    outputs = scores_for(0, 1, 2, 3)
    outputs[0, 0] = bad
    got = judged(scores_for(0, 1, 2, 3), outputs, labels)
    assert (got.value, got.drop) == (pytest.approx(75), pytest.approx(25))
    assert got.sqnr_db == {"y": -200}
    assert got.cosine["y"] <= 0.75


def test_output_that_is_not_finite_agrees_with_nothing_not_even_itself():
    broken = np.full((4, 4), np.nan, np.float32)
    got = judged(broken, broken.copy(), None)
    assert got.value == pytest.approx(0)


def test_predictions_of_several_batches_are_joined():
    record, own = OutputRecord(), OutputRecord()
    for theirs, ours in (((0, 1), (0, 1)), ((2,), (3,))):
        record.add({"y": scores_for(*theirs)}, {"y": scores_for(*ours)}, samples=len(theirs), classify=True)
        own.add({"y": scores_for(*theirs)}, {"y": scores_for(*theirs)}, samples=len(theirs), classify=True)
    assert judge(record, own, None, metric="agreement", seed=0).value == pytest.approx(200 / 3)


def test_sqnr_sums_signal_and_noise_over_the_samples():
    reference = np.full((2, 2), 3.0, np.float32)
    got = judged(reference, reference + np.array([[0.3], [0.0]], np.float32), None, classify=False)
    assert got.sqnr_db["y"] == pytest.approx(10 * np.log10((4 * 9) / (2 * 0.09)), abs=1e-4)


def test_all_zero_outputs_that_stay_zero_are_equal():
    assert judged(np.zeros((2, 3)), np.zeros((2, 3)), None, classify=False).value == 1
    assert judged(np.zeros((2, 3)), np.ones((2, 3)), None, classify=False).value == 0


def test_comparison_runs_every_sample_once_and_the_reference_only_once():
    samples = Samples({"x": np.arange(10, dtype=np.float32)[:, None]}, None, tuple("abcdefghij"))
    calls = {"fp32": [], "int8": []}

    def run(name):
        def answer(feeds):
            calls[name].append(len(feeds["x"]))
            return {"y": np.hstack([feeds["x"], -feeds["x"]]) + (0.5 if name == "int8" else 0)}

        return answer

    reference = run("fp32")
    runs = {"fp32": reference, "int8": run("int8")}
    records = compare_outputs(reference, runs, samples, batch=4, classify=True, progress=Recorder(Silent()))
    assert calls == {"fp32": [4, 4, 2], "int8": [4, 4, 2]}
    assert records["fp32"].sqnr_db() == {"y": None}
    assert np.concatenate(records["int8"].noises["y"]).sum() == pytest.approx(10 * 2 * 0.25)
    assert len(records["int8"].predicted()) == 10


def detector_output(*boxes: tuple[float, float, float, float, float, float], anchors: int = 20) -> np.ndarray:
    """One picture's output (1, 6, anchors): centre x, centre y, width, height, and the scores of two classes."""
    raw = np.zeros((1, 6, anchors), np.float32)
    raw[0, :, : len(boxes)] = np.array(boxes).T
    return raw


def scenes_of_one_square(count: int) -> Samples:
    """Pictures that hold their own number, each with a square of class 1 from (5, 5) to (15, 15)."""
    objects = Objects(np.tile([[[5.0, 5, 15, 15]]], (count, 1, 1)), np.ones((count, 1), np.int64))
    inputs = {"x": np.arange(count, dtype=np.float32)[:, None]}
    return Samples(inputs, None, tuple(map(str, range(count))), objects=objects)


def test_detector_is_judged_by_map_on_the_objects_of_each_picture():
    samples = scenes_of_one_square(10)
    right, wrong = detector_output((10, 10, 10, 10, 0, 0.9)), detector_output((10, 10, 10, 10, 0.9, 0))

    def reference(feeds):
        return {"y": np.concatenate([right for _ in feeds["x"]])}

    def variant(feeds):
        return {"y": np.concatenate([wrong if number == 7 else right for number in feeds["x"]])}

    runs = {"fp32": reference, "int8": variant}
    asked = {"batch": 4, "classify": False, "progress": Recorder(Silent()), "reader": READER}
    records = compare_outputs(reference, runs, samples, **asked)
    own = judge(records["fp32"], records["fp32"], None, metric="map", seed=0)
    got = judge(records["int8"], records["fp32"], None, metric="map", seed=0)
    assert (own.metric, own.value, own.drop, own.drop_upper, own.samples) == ("map", pytest.approx(100), 0, 0, 10)
    # 9 of 10 objects found, none invented: precision 1 at 91 of the 101 recalls (0 … 0.9).
    assert got.value == pytest.approx(100 * 91 / 101)
    assert got.drop == pytest.approx(100 * 10 / 101)
    before, now = (Matches.joined(records[name].matches) for name in ("fp32", "int8"))
    assert got.drop_upper == map_drop_upper(before, now, seed=0) > got.drop


@pytest.mark.parametrize(
    ("shape", "dtype", "classes"),
    [
        (("N", 10), "float32", 10),
        ((1, 2), "float16", 2),
        (("N", 1), "float32", None),
        (("N", "C"), "float32", None),
        (("N", 10), "int64", None),
        (("N", 10, 4), "float32", None),
        ((10,), "float32", None),
    ],
)
def test_classifier_has_one_float_output_of_rows_and_classes(shape, dtype, classes):
    output = TensorSpec(name="y", dtype=dtype, shape=shape)
    assert classifier_classes((output,)) == classes
    assert classifier_classes((output, output)) is None


@pytest.mark.parametrize("metric", ["top1", "map", "agreement", "cosine"])
def test_budget_is_held_against_the_upper_bound_and_not_the_drop(metric):
    budget = Budget(metric=metric, limit=1.0)
    assert within_budget(accuracy_of(metric, drop=0.2, drop_upper=1.0), budget)
    assert not within_budget(accuracy_of(metric, drop=0.2, drop_upper=1.01), budget)


def test_agreement_holds_a_top1_budget():
    # Top-1 cannot fall further than predictions change.
    budget = Budget(metric="top1", limit=1.0)
    assert within_budget(accuracy_of("agreement", drop=0.2, drop_upper=0.9), budget)
    assert not within_budget(accuracy_of("agreement", drop=0.2, drop_upper=1.1), budget)


@pytest.mark.parametrize(
    ("measured", "asked"), [("cosine", "top1"), ("cosine", "map"), ("agreement", "cosine"), ("top1", "cosine")]
)
def test_other_metric_says_nothing_about_a_budget(measured, asked):
    assert not within_budget(accuracy_of(measured, drop=0, drop_upper=0), Budget(metric=asked, limit=100))


CLASSIFIER = (TensorSpec(name="y", dtype="float32", shape=("N", 4)),)
MAP = (TensorSpec(name="y", dtype="float32", shape=("N", 4, 8, 8)),)
DETECTOR = (TensorSpec(name="y", dtype="float32", shape=("N", 6, 20)),)
READER = find_reader((TensorSpec(name="x", dtype="float32", shape=("N", 3, 64, 64)),), DETECTOR)


@pytest.mark.parametrize(
    ("asked", "labelled", "expected"),
    [
        (None, True, "top1"),
        (None, False, "agreement"),
        ("top1", True, "top1"),
        ("top1", False, "agreement"),
        ("agreement", True, "agreement"),
        ("cosine", True, "cosine"),
    ],
)
def test_classifier_is_judged_by_the_metric_of_its_budget(asked, labelled, expected):
    budget = None if asked is None else Budget(metric=asked, limit=1)
    assert metric_for(budget, CLASSIFIER, labelled=labelled) == expected


@pytest.mark.parametrize("asked", ["top1", "agreement"])
def test_budget_of_a_classifier_is_refused_for_another_model(asked):
    with pytest.raises(OptionError, match=rf"budget {asked}=1 is for classifiers.*give cosine"):
        metric_for(Budget(metric=asked, limit=1), MAP, labelled=False)


@pytest.mark.parametrize(
    ("asked", "labelled", "expected"),
    [(None, True, "map"), (None, False, "cosine"), ("map", True, "map"), ("cosine", True, "cosine")],
)
def test_detector_is_judged_by_map_where_its_objects_are_known(asked, labelled, expected):
    budget = None if asked is None else Budget(metric=asked, limit=1)
    assert metric_for(budget, DETECTOR, labelled=labelled, reader=READER) == expected


def test_map_budget_without_boxes_is_refused():
    with pytest.raises(OptionError, match=r"budget map=1 needs to know what is on the pictures: give --eval"):
        metric_for(Budget(metric="map", limit=1), DETECTOR, labelled=False, reader=READER)


@pytest.mark.parametrize("outputs", [CLASSIFIER, MAP])
def test_map_budget_is_refused_for_a_model_that_is_no_detector(outputs):
    with pytest.raises(OptionError, match=r"budget map=1 is for detectors"):
        metric_for(Budget(metric="map", limit=1), outputs, labelled=True)
