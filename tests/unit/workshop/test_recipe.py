from __future__ import annotations

import numpy as np
import onnx
import onnxslim
import pytest
from onnx import helper

from sanderling.core.errors import ModelError
from sanderling.core.progress import Recorder, Silent
from sanderling.measure.samples import Samples
from sanderling.workshop.quantize import recipe
from sanderling.workshop.quantize.histogram import observe
from sanderling.workshop.quantize.layers import layer_errors
from sanderling.workshop.quantize.qdq import Scheme
from sanderling.workshop.quantize.recipe import Quantized, Trials, quantize, selected
from tests.models import conv_classifier, make_model, random_arrays, run_directly, tensor
from tests.quantized import ranges_of

COUNT = 24


def samples_of(arrays: dict[str, np.ndarray]) -> Samples:
    return Samples(arrays, None, tuple(map(str, range(len(next(iter(arrays.values())))))))


def uneven() -> onnx.ModelProto:
    """Two convolutions with channels of very different size between them."""
    weights = random_arrays({"w1": (8, 3, 3, 3), "w2": (4, 8, 1, 1)})
    sizes = np.geomspace(0.003, 3, 8).astype(np.float32)
    weights["w1"] *= sizes[:, None, None, None]
    weights["w2"] /= sizes[:, None, None]
    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["c"], "one"),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "w2"], ["y"], "two"),
    ]
    return make_model(nodes, [tensor("image", ["N", 3, 8, 8])], [tensor("y", ["N", 4, 6, 6])], weights)


IMAGES = random_arrays({"image": (COUNT, 3, 8, 8)})


def made(model: onnx.ModelProto) -> Quantized:
    samples = samples_of(IMAGES)
    seen = observe(model, samples, threads=1, progress=Silent())
    return quantize(model, seen, samples, threads=1, seed=0, progress=Silent())


def test_best_of_all_forms_is_kept_and_every_one_is_named():
    found = made(conv_classifier())
    names = [candidate.name for candidate in found.candidates]
    assert len(set(names)) == len(names)
    (kept,) = [candidate for candidate in found.candidates if candidate.kept]
    assert kept.sqnr_db == found.sqnr_db == max(candidate.sqnr_db for candidate in found.candidates)


def test_score_is_that_of_the_graphs_outputs():
    model = conv_classifier()
    found = made(model)
    expected, got = (run_directly(one, IMAGES)["scores"].astype(np.float64) for one in (model, found.graph))
    sqnr_db = 10 * np.log10(np.square(expected).sum() / np.square(expected - got).sum())
    assert found.sqnr_db == pytest.approx(sqnr_db, abs=0.1)


def test_uneven_channels_are_equalised_because_it_helps():
    found = made(uneven())
    by_name = {candidate.name: candidate.sqnr_db for candidate in found.candidates}
    assert by_name["equalisation"] > max(by_name[name] for name in by_name if "bias correction" in name) + 3
    assert found.sqnr_db >= by_name["equalisation"]


@pytest.mark.parametrize("model", [conv_classifier(), uneven()], ids=["plain", "equalised"])
def test_kept_float_model_computes_what_was_given(model):
    """Corrected biases are in the INT8 graph alone."""
    found = made(model)
    output = model.graph.output[0].name
    expected = run_directly(model, IMAGES)[output]
    got = run_directly(found.model, IMAGES)[output]
    np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max())


def test_all_blocks_put_back_to_float_give_the_float_results():
    found = made(uneven())
    blocks = frozenset(node.name for node in found.model.graph.node)
    expected = run_directly(uneven(), IMAGES)["y"]
    got = run_directly(found.with_float(blocks), IMAGES)["y"]
    np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max())


def test_nothing_put_back_gives_the_int8_graph_itself():
    found = made(uneven())
    again = found.with_float(frozenset())
    assert again.SerializeToString(deterministic=True) == found.graph.SerializeToString(deterministic=True)


def test_same_data_gives_the_same_graph():
    first, second = (made(uneven()).graph.SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def test_form_that_is_no_better_is_not_taken():
    model = conv_classifier()
    trials = Trials(model, samples_of(IMAGES), threads=1)
    ranges = ranges_of(model, IMAGES)
    narrow = {name: (low / 20, high / 20) for name, (low, high) in ranges.items()}
    assert trials.take("good", model, Scheme(ranges), {})
    assert not trials.take("narrow", model, Scheme(narrow), {})
    assert not trials.take("good again", model, Scheme(ranges), {})
    assert trials.best_name == "good"
    assert [candidate.kept for candidate in trials.best().candidates] == [True, False, False]


def test_graph_that_cannot_be_quantised_is_told_with_the_cause(monkeypatch):
    def broken(*_: object) -> onnx.ModelProto:
        raise ValueError("no such axis\nmore")

    monkeypatch.setattr(recipe, "to_int8", broken)
    trials = Trials(conv_classifier(), samples_of(IMAGES), threads=1)
    with pytest.raises(ModelError, match=r"INT8 conversion failed: ValueError: no such axis$"):
        trials.take("one", conv_classifier(), Scheme({}), {})


@pytest.mark.parametrize(("count", "first", "last"), [(1, 0, 0), (5, 0, 4), (128, 0, 127), (512, 0, 511)])
def test_samples_that_forms_are_judged_on_are_spread_over_the_data(count, first, last):
    chosen = selected(samples_of({"x": np.arange(count)[:, None]})).inputs["x"][:, 0]
    assert len(chosen) == min(count, 128)
    assert (chosen[0], chosen[-1]) == (first, last)
    assert (np.diff(chosen) > 0).all()


def test_calibration_says_what_it_is_doing():
    recorder = Recorder(Silent())
    samples = samples_of(IMAGES)
    model = uneven()
    quantize(
        model, observe(model, samples, threads=1, progress=recorder), samples, threads=1, seed=0, progress=recorder
    )
    recorder.stop()
    assert {"quantise to INT8", "round weights by second moments"} <= recorder.seconds.keys()


def test_layer_errors_name_every_stored_tensor_that_a_node_makes_and_the_outputs_too():
    found = made(onnxslim.slim(conv_classifier()))
    errors = layer_errors(found.model, found.graph, found.scheme, found.histograms, samples_of(IMAGES))
    assert [error.tensor for error in errors] == ["relu", "pooled", "flat", "scores"]
    for error in errors:
        assert 10 < error.sqnr_db < 80
        assert 0 <= error.clipped_share < 0.1
        assert error.outlier_ratio >= 1
        assert error.low < error.high


def test_clipped_share_is_what_the_range_leaves_out():
    found = made(conv_classifier())
    narrow = Scheme(dict(found.scheme.ranges) | {"scores": (0.0, 1e-6)})
    graph = recipe.to_int8(found.model, narrow)
    errors = {
        error.tensor: error for error in layer_errors(found.model, graph, narrow, found.histograms, samples_of(IMAGES))
    }
    assert errors["scores"].clipped_share > 0.9
    assert errors["scores"].sqnr_db < 5
