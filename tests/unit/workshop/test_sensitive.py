from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from sanderling.core.progress import Silent
from sanderling.measure.samples import Samples
from sanderling.workshop.quantize.histogram import observe
from sanderling.workshop.quantize.qdq import Scheme, to_int8
from sanderling.workshop.quantize.sensitive import sensitive_nodes
from sanderling.workshop.quantize.thresholds import METHODS
from tests.models import conv_classifier, make_model, random_arrays, run_directly, tensor

WIDTH, TOKENS, ROWS = 16, 6, 24


def attention() -> onnx.ModelProto:
    """One head over ``x`` (1, 6, 16) with a ``mask`` (1, 6) of ones and zeros, then a feed-forward product."""
    generator = np.random.default_rng(0)
    weights = {
        name: generator.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4 for name in ("query", "key", "down")
    }
    weights |= {
        "one": np.float32([1]),
        "large": np.float32([-1e4]),
        "axis": np.int64([1]),
        "gain": np.ones(WIDTH, np.float32),
    }
    nodes = [
        helper.make_node("Sub", ["one", "mask"], ["hidden"], "invert"),
        helper.make_node("Mul", ["hidden", "large"], ["penalty"], "penalise"),
        helper.make_node("Unsqueeze", ["penalty", "axis"], ["bias"], "spread"),
        helper.make_node("LayerNormalization", ["x", "gain"], ["n"], "normalise"),
        helper.make_node("MatMul", ["n", "query"], ["q"], "query"),
        helper.make_node("MatMul", ["n", "key"], ["k"], "key"),
        helper.make_node("Transpose", ["k"], ["kt"], "turn", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"], "scores"),
        helper.make_node("Add", ["scores", "bias"], ["masked"], "mask_scores"),
        helper.make_node("Softmax", ["masked"], ["shares"], "softmax", axis=-1),
        helper.make_node("MatMul", ["shares", "n"], ["mixed"], "mix"),
        helper.make_node("Relu", ["mixed"], ["active"], "activate"),
        helper.make_node("MatMul", ["active", "down"], ["y"], "down"),
    ]
    inputs = [tensor("x", [1, TOKENS, WIDTH]), tensor("mask", [1, TOKENS])]
    return make_model(nodes, inputs, [tensor("y", [1, TOKENS, WIDTH])], weights)


def detector(*, boxes_px: float = 400.0) -> onnx.ModelProto:
    """``image`` (1, 3, 8, 8) to boxes in pixels and scores in one tensor (1, 4, 8, 8)."""
    generator = np.random.default_rng(1)
    weights = {
        "head": generator.standard_normal((4, 3, 3, 3)).astype(np.float32) / 4,
        "size": np.float32([boxes_px]),
        "parts": np.int64([2, 2]),
    }
    nodes = [
        helper.make_node("Conv", ["image", "head"], ["raw"], "head", pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["raw"], ["shares"], "squash"),
        helper.make_node("Split", ["shares", "parts"], ["box", "score"], "split", axis=1),
        helper.make_node("Mul", ["box", "size"], ["pixels"], "scale"),
        helper.make_node("Concat", ["pixels", "score"], ["found"], "join", axis=1),
    ]
    return make_model(nodes, [tensor("image", [1, 3, 8, 8])], [tensor("found", [1, 4, 8, 8])], weights)


def quantized(model: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> onnx.ModelProto:
    samples = Samples(arrays, None, tuple(map(str, range(ROWS))))
    seen = observe(model, samples, threads=1, progress=Silent())
    ranges = {name: METHODS["minmax"](histogram) for name, histogram in seen.histograms.items()}
    return to_int8(model, Scheme(ranges, frozenset(sensitive_nodes(model))))


def first_row(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array[:1] for name, array in arrays.items()}


def test_transformer_keeps_all_but_its_products_in_float():
    assert sensitive_nodes(attention()) == [
        "invert", "penalise", "spread", "normalise", "turn", "mask_scores", "softmax", "activate", "down",
    ]  # fmt: skip


def test_masked_attention_survives_int8():
    arrays = random_arrays({"x": (ROWS, TOKENS, WIDTH)})
    arrays["mask"] = np.tile(np.float32([1, 1, 1, 1, 0, 0]), (ROWS, 1))
    model = attention()

    expected = run_directly(model, first_row(arrays))["y"]
    got = run_directly(quantized(model, arrays), first_row(arrays))["y"]

    assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()


def test_detector_keeps_the_decoding_of_its_boxes_in_float():
    assert sensitive_nodes(detector()) == ["squash", "split", "scale", "join"]


def test_scores_beside_boxes_in_pixels_survive_int8():
    arrays = random_arrays({"image": (ROWS, 3, 8, 8)})
    model = detector()

    expected = run_directly(model, first_row(arrays))["found"][:, 2:]
    got = run_directly(quantized(model, arrays), first_row(arrays))["found"][:, 2:]

    assert np.abs(got - expected).max() < 0.03


@pytest.mark.parametrize("batch", ["N", 1])
def test_classifier_is_quantised_whole(batch):
    assert sensitive_nodes(conv_classifier(batch=batch)) == []
