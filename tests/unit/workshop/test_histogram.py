from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from sanderling.core.errors import DataError
from sanderling.core.progress import Silent
from sanderling.measure.samples import Samples
from sanderling.workshop.quantize.histogram import BINS, Histogram, float_tensors, observe, open_tensors
from tests.models import conv_classifier, make_model, random_arrays, run_directly, tensor

TENSORS = ["image", "conv", "bn", "relu", "pooled", "flat", "scores"]


def samples_of(**arrays: np.ndarray) -> Samples:
    count = len(next(iter(arrays.values())))
    return Samples(arrays, None, tuple(f"sample {index}" for index in range(count)))


def everything(model: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every tensor of the classifier for all samples at once, by ONNX Runtime itself."""
    opened = onnx.ModelProto()
    opened.CopyFrom(model)
    opened.graph.output.extend(
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in TENSORS[1:-1]
    )
    return arrays | run_directly(opened, arrays)


@pytest.fixture(scope="module")
def observed():
    arrays = random_arrays({"image": (7, 3, 8, 8)})
    seen = observe(conv_classifier(), samples_of(**arrays), threads=1, progress=Silent())
    return seen, everything(conv_classifier(), arrays)


def test_every_float_tensor_is_observed(observed):
    seen, _ = observed
    assert list(seen.histograms) == TENSORS


def test_ranges_are_the_exact_ends(observed):
    seen, truth = observed
    for name in TENSORS:
        low, high = seen.ranges[name]
        assert low == pytest.approx(float(truth[name].min()), abs=1e-5)
        assert high == pytest.approx(float(truth[name].max()), abs=1e-5)


def test_counts_hold_every_value_once(observed):
    seen, truth = observed
    for name in TENSORS:
        counts = seen.histograms[name].counts
        assert counts.shape == (BINS,)
        assert counts.sum() == truth[name].size


def test_counts_are_where_the_values_are(observed):
    seen, truth = observed
    for name in ("image", "conv", "scores"):
        histogram = seen.histograms[name]
        mean = float(histogram.counts @ histogram.centers) / histogram.counts.sum()
        assert mean == pytest.approx(float(truth[name].mean()), abs=(histogram.high - histogram.low) / BINS)
        share = np.cumsum(histogram.counts)[BINS // 2 - 1] / histogram.counts.sum()
        middle = (histogram.low + histogram.high) / 2
        assert share == pytest.approx(float((truth[name] < middle).mean()), abs=0.02)


def test_means_are_those_of_the_channels_over_all_samples(observed):
    seen, truth = observed
    assert seen.means.keys() == {"image", "flat"}
    np.testing.assert_allclose(seen.means["image"], truth["image"].mean(axis=(0, 2, 3)), atol=1e-6)
    np.testing.assert_allclose(seen.means["flat"], truth["flat"].mean(axis=0), atol=1e-5)


def test_edges_and_centres_span_the_range():
    histogram = Histogram(-1.0, 3.0, np.zeros(4, np.int64))
    np.testing.assert_allclose(histogram.edges, [-1, 0, 1, 2, 3])
    np.testing.assert_allclose(histogram.centers, [-0.5, 0.5, 1.5, 2.5])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_tensor_that_is_not_finite_is_named_with_its_sample(bad):
    arrays = random_arrays({"image": (4, 3, 8, 8)})
    arrays["image"][2, 0, 0, 0] = bad
    with pytest.raises(DataError, match=r"'image' becomes NaN or infinite on calibration sample sample 2"):
        observe(conv_classifier(), samples_of(**arrays), threads=1, progress=Silent())


def test_tensor_that_overflows_inside_the_graph_is_named_with_its_sample():
    model = make_model([helper.make_node("Exp", ["x"], ["y"], "exp")], [tensor("x", [1, 2])], [tensor("y", [1, 2])])
    with pytest.raises(DataError, match=r"'y' becomes NaN or infinite on calibration sample sample 1"):
        observe(model, samples_of(x=np.array([[1, 2], [3, 1000]], np.float32)), threads=1, progress=Silent())


def test_mask_of_minus_infinity_does_not_count():
    node = helper.make_node("Where", ["keep", "x", "floor"], ["masked"])
    given = {"keep": np.array([[True, False, True]]), "floor": np.array([[-np.inf]], np.float32)}
    model = make_model([node], [tensor("x", [1, 3])], [tensor("masked", [1, 3])], given)
    seen = observe(model, samples_of(x=np.array([[1, 2, 3], [4, 5, 6]], np.float32)), threads=1, progress=Silent())
    assert seen.ranges["masked"] == (1, 6)


def squares(low: float, high: float, *, count: int = 100) -> Histogram:
    """The histogram of an identity's output for values from ``low`` to ``high``."""
    model = make_model([helper.make_node("Identity", ["x"], ["y"])], [tensor("x", [1, 1])], [tensor("y", [1, 1])])
    values = np.linspace(low, high, count, dtype=np.float32)[:, None]
    return observe(model, samples_of(x=values), threads=1, progress=Silent()).histograms["y"]


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 0), (5, 5), (-1, 1), (1000, 1000.001), (0, 1e-38), (-3e38, 3e38), (0, 1e30)],
    ids=str,
)
def test_counts_are_whole_for_ranges_of_every_width(low, high):
    histogram = squares(low, high)
    assert histogram.counts.sum() == 100
    assert (histogram.counts >= 0).all()
    if low != high and abs(low) < 1000:
        assert histogram.counts.max() <= 2  # evenly spread values lie in bins of their own


def test_integer_tensors_are_left_out():
    nodes = [
        helper.make_node("ArgMax", ["x"], ["index"], "argmax", axis=1),
        helper.make_node("Cast", ["index"], ["y"], "cast", to=onnx.TensorProto.FLOAT),
    ]
    model = make_model(nodes, [tensor("x", [1, 4])], [tensor("y", [1, 1])])
    model = onnx.shape_inference.infer_shapes(model)
    assert float_tensors(model) == ["x", "y"]
    seen = observe(model, samples_of(x=np.eye(4, dtype=np.float32)), threads=1, progress=Silent())
    assert seen.ranges["y"] == (0, 3)


def test_opened_tensors_come_beside_the_graphs_own_outputs():
    executable = open_tensors(conv_classifier(), ["image", "relu", "scores"])
    outputs = executable.run(random_arrays({"image": (1, 3, 8, 8)}))
    executable.close()
    assert outputs.keys() == {"scores", "relu"}


def test_model_that_was_given_is_left_alone():
    model = conv_classifier()
    before = model.SerializeToString(deterministic=True)
    observe(model, samples_of(**random_arrays({"image": (2, 3, 8, 8)})), threads=1, progress=Silent())
    assert model.SerializeToString(deterministic=True) == before
