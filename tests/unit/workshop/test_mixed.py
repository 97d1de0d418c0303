from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from sanderling.core.progress import Recorder, Silent
from sanderling.measure.samples import Samples
from sanderling.model.manifest import Budget
from sanderling.workshop import mixed
from sanderling.workshop.material import Material
from sanderling.workshop.mixed import Mixed, likely_upper, mix
from sanderling.workshop.options import BuildOptions
from sanderling.workshop.quantize.histogram import observe
from sanderling.workshop.quantize.qdq import Scheme
from sanderling.workshop.quantize.recipe import Quantized, quantize
from sanderling.workshop.quantize.sensitivity import Sensitivity
from sanderling.workshop.search import CONFIDENCE, MOST_ROUGH, MOST_TESTS
from sanderling.workshop.variants import float_nodes
from tests.models import conv_classifier, run_directly, tensor
from tests.outliers import images, outlier_classifier

OPTIONS = BuildOptions("model.onnx", Path("model.sdl"), threads=1)
BUDGET = Budget(metric="agreement", limit=5.0)


def samples_of(count: int, *, seed: int) -> Samples:
    return Samples({"image": images(count, seed=seed)}, None, tuple(map(str, range(count))))


MATERIAL = Material(None, None, samples_of(128, seed=1), samples_of(300, seed=2), "300 random pictures", "agreement")


def quantized(model: onnx.ModelProto) -> Quantized:
    seen = observe(model, MATERIAL.calibration, threads=1, progress=Silent())
    return quantize(model, seen, MATERIAL.calibration, threads=1, seed=0, progress=Silent())


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return outlier_classifier()


@pytest.fixture(scope="module")
def int8(model) -> Quantized:
    return quantized(model)


@pytest.fixture(scope="module")
def found(model, int8) -> Mixed:
    return mix(model, int8, MATERIAL, BUDGET, OPTIONS, Silent())


def changed_share(model: onnx.ModelProto, other: onnx.ModelProto, pictures: np.ndarray) -> float:
    expected, got = (run_directly(one, {"image": pictures})["scores"].argmax(axis=1) for one in (model, other))
    return float((expected != got).mean())


def test_int8_alone_misses_the_budget(model, int8):
    assert changed_share(model, int8.graph, MATERIAL.evaluation.inputs["image"]) > 0.2


def test_layers_around_the_outlier_go_back_to_float_and_the_others_stay(found):
    assert set(float_nodes(found.graph)) == {"conv_2", "conv_3"}
    precisions = {block.block: block.precision for block in found.search.blocks}
    assert {name for name, precision in precisions.items() if precision == "fp32"} == {"conv_2", "conv_3"}
    assert all(block.reason for block in found.search.blocks)


def test_accepted_form_keeps_the_budget_on_pictures_that_nobody_saw(model, found):
    assert 100 * changed_share(model, found.graph, images(2000, seed=77)) < BUDGET.limit


def test_accepted_form_was_measured_with_the_searchs_bound(found):
    point = found.search.points[found.search.chosen]
    assert found.search.confidence == CONFIDENCE
    assert 0 <= point.accuracy.drop <= point.accuracy.drop_upper <= BUDGET.limit
    assert point.accuracy.samples == 300


def test_no_more_forms_are_evaluated_than_promised(found):
    assert 1 <= found.search.evaluations <= MOST_ROUGH + MOST_TESTS


def test_points_lead_from_all_int8_to_all_float_and_show_what_was_measured(found):
    points = found.search.points
    assert points[0].float_blocks == ()
    assert points[0].macs_int8_share == 1.0
    assert points[-1].macs_int8_share == 0.0
    for point in points:
        assert (point.accuracy is None) == (point.latency_p50_ms is None)
    assert points[found.search.chosen].latency_p50_ms > 0


def test_summary_says_what_the_issue_asks_for(found):
    summary = found.search.summary()
    assert {"evaluations", "layers_float", "macs_int8_share", "drop", "drop_upper", "tested"} <= summary.keys()
    assert summary["layers_float"] == 2
    assert len(summary["tested"]) == sum(point.accuracy is not None for point in found.search.points)


def test_prediction_is_near_what_the_form_does(model, found):
    pictures = MATERIAL.calibration.inputs["image"]
    expected, got = (run_directly(one, {"image": pictures})["scores"] for one in (model, found.graph))
    sqnr_db = 10 * np.log10(np.square(expected).sum() / np.square(expected - got).sum())
    assert found.search.points[found.search.chosen].predicted_sqnr_db == pytest.approx(sqnr_db, abs=1.0)


def test_float_blocks_compute_with_their_own_biases(int8, model):
    """Biases are corrected for rounded weights: a block in float needs none of that."""
    names = frozenset(node.name for node in model.graph.node)
    pictures = images(8, seed=3)
    expected = run_directly(model, {"image": pictures})["scores"]
    got = run_directly(int8.with_float(names), {"image": pictures})["scores"]
    np.testing.assert_allclose(got, expected, atol=1e-4 * np.abs(expected).max())


def test_same_data_gives_the_same_form(model, int8, found):
    again = mix(model, int8, MATERIAL, BUDGET, OPTIONS, Silent())
    assert again.graph.SerializeToString(deterministic=True) == found.graph.SerializeToString(deterministic=True)
    assert again.search.chosen == found.search.chosen


def test_models_that_were_given_are_left_alone(model, int8, found):  # noqa: ARG001
    assert model.SerializeToString(deterministic=True) == outlier_classifier().SerializeToString(deterministic=True)


def test_budget_that_no_form_keeps_gives_no_graph_but_the_front(model, int8, monkeypatch):
    monkeypatch.setattr(mixed, "order_of_tests", lambda *_, **__: [1])
    strict = Budget(metric="agreement", limit=1.3)
    missed = mix(model, int8, MATERIAL, strict, OPTIONS, Silent())
    assert missed.graph is None
    assert missed.search.chosen is None
    assert "drop" not in missed.search.summary()
    (tested,) = [point for point in missed.search.points if point.accuracy is not None]
    assert tested.accuracy.drop_upper > strict.limit


def test_graph_with_a_subgraph_is_quantised_but_not_searched_and_says_so(model):
    branch = helper.make_graph(
        [helper.make_node("Identity", ["flat"], ["same"])], "branch", [], [tensor("same", [None, None])]
    )
    nested = onnx.ModelProto()
    nested.CopyFrom(model)
    nested.graph.node.append(helper.make_node("If", ["flag"], ["chosen"], "if", then_branch=branch, else_branch=branch))
    nested.graph.initializer.append(onnx.numpy_helper.from_array(np.bool_(True), "flag"))
    nested.graph.output.append(tensor("chosen", [None, None]))
    recorder = Recorder(Silent())

    assert mix(nested, quantized(nested), MATERIAL, BUDGET, OPTIONS, recorder) is None

    (event,) = recorder.events
    assert event.kind == "search-skipped"
    assert "If, Loop or Scan" in event.reason


@pytest.mark.parametrize("metric", ["cosine", "top1"])
def test_other_metrics_find_the_layers_too(model, int8, metric):
    evaluation = samples_of(300, seed=2)
    if metric == "top1":
        labels = run_directly(model, evaluation.inputs)["scores"].argmax(axis=1)
        evaluation = Samples(evaluation.inputs, labels, evaluation.names)
    material = Material(None, None, MATERIAL.calibration, evaluation, "", metric)
    limit = {"cosine": 0.01, "top1": 5.0}[metric]
    found = mix(model, int8, material, Budget(metric=metric, limit=limit), OPTIONS, Silent())
    assert {"conv_2", "conv_3"} <= set(float_nodes(found.graph))
    assert found.search.points[found.search.chosen].accuracy.drop_upper <= limit


def test_graph_without_anything_to_put_back_has_one_point():
    plain = conv_classifier()
    nothing = Quantized(plain, Scheme({}), plain, {}, 0.0, (), sensitivity=Sensitivity({}, {}, 0))
    found = mix(plain, nothing, MATERIAL, BUDGET, OPTIONS, Silent())
    assert found.graph is None
    assert len(found.search.points) == 1


@pytest.mark.parametrize(("metric", "drop"), [("agreement", 2.0), ("top1", 0.0), ("cosine", 0.01)])
def test_likely_bound_is_beyond_the_drop(metric, drop):
    assert likely_upper(drop, metric, 300) > drop
    assert likely_upper(drop, metric, 3000) >= drop
