from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from sanderling.core.progress import Silent
from sanderling.measure.samples import Samples
from sanderling.workshop.quantize.qdq import Scheme, to_int8
from sanderling.workshop.quantize.sensitivity import Sensitivity, has_subgraphs, measure_sensitivity, round_tensor
from sanderling.workshop.quantize.weights import round_to_nearest
from tests.models import conv_classifier, make_model, random_arrays, run_directly, tensor
from tests.quantized import ranges_of

COUNT = 8
FEEDS = random_arrays({"x": (COUNT, 4, 6, 6)})


def residual(*, batch: int | str = "N", outputs: tuple[str, ...] = ("y",)) -> onnx.ModelProto:
    """x → a → relu r → (b, add) → y: two convolutions, and a sum that reads r too."""
    weights = random_arrays({"w1": (4, 4, 3, 3), "w2": (4, 4, 1, 1), "bias": (4,)}, seed=1)
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "a", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "w2", "bias"], ["c"], "b"),
        helper.make_node("Add", ["r", "c"], ["y"], "add"),
    ]
    model = make_model(
        nodes, [tensor("x", [batch, 4, 6, 6])], [tensor(name, [batch, 4, 6, 6]) for name in outputs], weights
    )
    return onnx.shape_inference.infer_shapes(model)


def measured(model: onnx.ModelProto, scheme: Scheme | None = None, **spans: dict) -> Sensitivity:
    scheme = scheme or Scheme(ranges_of(model, FEEDS))
    tried = {name: {"minmax": span} for name, span in scheme.ranges.items()} | spans
    samples = Samples(FEEDS, None, tuple(map(str, range(COUNT))))
    return measure_sensitivity(model, tried, scheme, samples, threads=1, progress=Silent())


def share(expected: np.ndarray, got: np.ndarray) -> float:
    """Σ(r − q)² / Σr², the mean over channels."""
    axes = (0, 2, 3)
    noise = np.square(expected.astype(np.float64) - got).sum(axis=axes)
    return float(np.mean(noise / np.square(expected, dtype=np.float64).sum(axis=axes)))


def with_one_rounded(model: onnx.ModelProto, name: str, span: tuple, readers: tuple[str, ...]) -> onnx.ModelProto:
    """The graph with Q and DQ of one tensor in front of some readers."""
    low, high = min(span[0], 0.0), max(span[1], 0.0)
    scale = np.float32((high - low) / 255)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.initializer.extend(
        [numpy_helper.from_array(scale, "s"), numpy_helper.from_array(np.uint8(round(-low / scale)), "z")]
    )
    nodes = []
    for node in copy.graph.node:
        if node.name in readers and name in node.input:
            node.input[list(node.input).index(name)] = "rounded"
        nodes.append(node)
    made = next((index for index, node in enumerate(nodes) if name in node.output), -1) + 1
    nodes[made:made] = [
        helper.make_node("QuantizeLinear", [name, "s", "z"], ["stored"]),
        helper.make_node("DequantizeLinear", ["stored", "s", "z"], ["rounded"]),
    ]
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del copy.graph.node[:]
    copy.graph.node.extend(kept)
    return copy


@pytest.mark.parametrize(("name", "readers"), [("x", ("a",)), ("r", ("b", "add")), ("c", ("add",))])
def test_noise_of_a_tensor_is_that_of_a_graph_with_it_alone_rounded(name, readers):
    model = residual()
    found = measured(model)
    span = ranges_of(model, FEEDS)[name]
    expected = run_directly(model, FEEDS)["y"]
    got = run_directly(with_one_rounded(model, name, span, readers), FEEDS)["y"]
    assert found.tensors[name].whole == pytest.approx(share(expected, got), rel=0.02)


@pytest.mark.parametrize("reader", ["b", "add"])
def test_noise_of_a_reader_is_that_of_a_graph_where_it_alone_reads_the_rounded_tensor(reader):
    model = residual()
    noise = measured(model).tensors["r"]
    got = run_directly(with_one_rounded(model, "r", ranges_of(model, FEEDS)["r"], (reader,)), FEEDS)["y"]
    assert noise.readers.keys() == {"b", "add"}
    assert noise.readers[reader] == pytest.approx(share(run_directly(model, FEEDS)["y"], got), rel=0.02)


@pytest.mark.parametrize(("block", "weight"), [("a", "w1"), ("b", "w2")])
def test_noise_of_a_weight_is_that_of_a_graph_with_it_alone_rounded(block, weight):
    model = residual()
    other = onnx.ModelProto()
    other.CopyFrom(model)
    for initializer in other.graph.initializer:
        if initializer.name == weight:
            rounded = round_to_nearest(numpy_helper.to_array(initializer), axis=0).dequantized()
            initializer.CopyFrom(numpy_helper.from_array(rounded, weight))
    expected = share(run_directly(model, FEEDS)["y"], run_directly(other, FEEDS)["y"])
    assert measured(model).weights[block] == pytest.approx(expected, rel=0.02)


def test_weights_of_the_scheme_are_measured_as_they_are():
    model = residual()
    exact = round_to_nearest(numpy_helper.to_array(model.graph.initializer[0]), axis=0)
    coarse = replace(exact, values=(exact.values // 16 * 16).astype(np.int8))
    scheme = Scheme(ranges_of(model, FEEDS))
    assert measured(model, replace(scheme, weights={"a": coarse})).weights["a"] > 10 * measured(model).weights["a"]


def test_range_that_does_least_to_the_outputs_is_taken():
    model = residual()
    low, high = ranges_of(model, FEEDS)["r"]
    found = measured(model, r={"far too narrow": (0.0, high / 20), "minmax": (low, high), "wide": (0.0, 9 * high)})
    assert found.tensors["r"].method == "minmax"
    assert found.ranges["r"] == (low, high)


def test_noises_nearly_add_up_to_that_of_the_whole_int8_graph():
    model = residual()
    ranges = ranges_of(model, FEEDS)
    found = measured(model)
    predicted = sum(noise.whole for noise in found.tensors.values()) + sum(found.weights.values())
    got = run_directly(to_int8(model, Scheme(ranges)), FEEDS)["y"]
    assert predicted == pytest.approx(share(run_directly(model, FEEDS)["y"], got), rel=0.3)


def test_fixed_and_dynamic_batches_give_the_same():
    ranges = Scheme(ranges_of(residual(), FEEDS))
    dynamic, fixed = measured(residual(), ranges), measured(residual(batch=1), ranges)
    assert dynamic.samples == fixed.samples == COUNT
    for name, noise in dynamic.tensors.items():
        assert fixed.tensors[name].whole == pytest.approx(noise.whole, rel=1e-3)


def test_output_counts_as_rounded_when_all_readers_read_the_rounded_tensor():
    model = residual(outputs=("y", "c"))
    noise = measured(model).tensors["c"]
    alone = measured(residual()).tensors["c"]
    own = share(
        run_directly(model, FEEDS)["c"], round_tensor(run_directly(model, FEEDS)["c"], ranges_of(model, FEEDS)["c"])
    )
    assert noise.readers["add"] == pytest.approx(alone.whole, rel=0.02)
    assert noise.whole == pytest.approx((alone.whole + own) / 2, rel=0.02)


def test_tensor_that_nobody_reads_makes_no_noise():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("Split", ["c", "parts"], ["y", "unread"], "split", axis=1),
    ]
    weights = random_arrays({"w": (4, 4, 1, 1)}) | {"parts": np.int64([2, 2])}
    model = make_model(nodes, [tensor("x", ["N", 4, 6, 6])], [tensor("y", [None] * 4)], weights)
    found = measured(onnx.shape_inference.infer_shapes(model))
    assert found.tensors["unread"].whole == 0
    assert found.tensors["y"].whole > 0


def test_boolean_outputs_are_compared_too():
    model = residual()
    model.graph.node.append(helper.make_node("Greater", ["y", "x"], ["larger"], "greater"))
    model.graph.output.append(tensor("larger", ["N", 4, 6, 6], "bool"))
    assert 0 < measured(model).tensors["x"].whole < 1


def test_same_data_gives_the_same_numbers():
    first, second = measured(residual()), measured(residual())
    assert first == second


def test_rounded_tensor_is_what_quantize_and_dequantize_give():
    x = random_arrays({"x": (1000,)})["x"] * 3
    span = (-1.5, 2.5)
    model = make_model([helper.make_node("Neg", ["x"], ["n"], "n")], [tensor("x", [1000])], [tensor("rounded", [1000])])
    got = run_directly(with_one_rounded(model, "x", span, ()), {"x": x})["rounded"]
    np.testing.assert_allclose(round_tensor(x, span), got, atol=1e-6)


def test_graphs_with_subgraphs_are_told_apart():
    assert not has_subgraphs(conv_classifier())
    branch = helper.make_graph([helper.make_node("Neg", ["x"], ["n"])], "then", [], [tensor("n", [1])])
    choice = helper.make_node("If", ["flag"], ["y"], "if", then_branch=branch, else_branch=branch)
    assert has_subgraphs(make_model([choice], [tensor("x", [1])], [tensor("y", [1])], {"flag": np.bool_(True)}))
