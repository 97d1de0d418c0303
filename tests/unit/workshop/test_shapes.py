from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from sanderling.core.errors import ModelError, OptionError
from sanderling.core.tensor import TensorSpec
from sanderling.model.graph import input_specs, output_specs
from sanderling.workshop.optimize.shapes import apply_shapes, has_dynamic_batch, prove_rows_independent
from tests.models import conv_classifier, make_model, random_arrays, run_directly, sum_and_difference, tensor


def wanted(*shape: int, name: str = "image", dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


def one_node(
    operator: str, x: list, y: list, *weights: str, given: dict | None = None, **attributes: object
) -> onnx.ModelProto:
    node = helper.make_node(operator, ["x", *weights], ["y"], "node", **attributes)
    return make_model([node], [tensor("x", x)], [tensor("y", y)], given)


def shape_of(model: onnx.ModelProto) -> tuple[int | str, ...]:
    return input_specs(model)[0].shape


def test_dynamic_axes_are_fixed_as_asked():
    model = one_node("Relu", ["N", 3, "H", "W"], ["N", 3, "H", "W"])
    apply_shapes(model, [wanted(1, 3, 32, 48, name="x")], dynamic_batch=False)
    assert shape_of(model) == (1, 3, 32, 48)
    assert run_directly(model, random_arrays({"x": (1, 3, 32, 48)}))["y"].shape == (1, 3, 32, 48)


def test_fixed_shape_that_repeats_the_graphs_own_passes():
    model = conv_classifier(batch=1)
    apply_shapes(model, [wanted(1, 3, 8, 8)], dynamic_batch=False)
    assert shape_of(model) == (1, 3, 8, 8)


@pytest.mark.parametrize("shape", [(1, 4, 8, 8), (1, 3, 8), (2, 3, 9, 8)])
def test_shape_that_contradicts_the_graph_is_refused_with_both(shape):
    text = ",".join(map(str, shape))
    with pytest.raises(
        OptionError, match=rf"image={text}:float32' contradicts the graph, which has image: float32\[N, 3, 8, 8\]"
    ):
        apply_shapes(conv_classifier(), [wanted(*shape)], dynamic_batch=False)


def test_unknown_input_is_refused_with_the_available_ones():
    with pytest.raises(OptionError, match="'picture' is no input of the graph: available are image"):
        apply_shapes(conv_classifier(), [wanted(1, 3, 8, 8, name="picture")], dynamic_batch=False)


def test_axis_that_stays_dynamic_beside_the_batch_is_refused_with_the_cure():
    model = one_node("Relu", ["N", 3, "H", 8], ["N", 3, "H", 8])
    with pytest.raises(ModelError, match=r"dynamic axes besides the batch \(H\).* --input x=N,3,N,8"):
        apply_shapes(model, [], dynamic_batch=False)


def test_batch_that_is_dynamic_already_stays_so():
    model = conv_classifier()
    apply_shapes(model, [], dynamic_batch=False)
    assert shape_of(model) == ("N", 3, 8, 8)
    assert has_dynamic_batch(input_specs(model))


def test_fixed_batch_becomes_dynamic_and_runs_with_other_sizes():
    model = conv_classifier(batch=1)
    assert not has_dynamic_batch(input_specs(model))
    apply_shapes(model, [], dynamic_batch=True)
    assert has_dynamic_batch(input_specs(model))
    assert output_specs(model)[0].shape == ("batch", 4)
    feeds = random_arrays({"image": (5, 3, 8, 8)})
    got = run_directly(model, feeds)["scores"]
    np.testing.assert_allclose(got, run_directly(conv_classifier(), feeds)["scores"], atol=1e-5)


def test_every_input_gets_the_same_dynamic_batch():
    model = sum_and_difference(batch=1)
    apply_shapes(model, [], dynamic_batch=True)
    assert [spec.shape for spec in (*input_specs(model), *output_specs(model))] == [("batch", 3)] * 4


def test_scalar_input_has_no_batch_to_make_dynamic():
    with pytest.raises(ModelError, match="'x' is a scalar"):
        apply_shapes(one_node("Neg", [], []), [], dynamic_batch=True)


def test_stale_shapes_inside_the_graph_are_dropped():
    model = onnx.shape_inference.infer_shapes(conv_classifier(batch=1))
    assert model.graph.value_info
    apply_shapes(model, [], dynamic_batch=True)
    assert not model.graph.value_info


@pytest.mark.parametrize("model", [conv_classifier(), sum_and_difference()], ids=["classifier", "two inputs"])
def test_independent_rows_are_proven(model):
    prove_rows_independent(model, seed=0)


def minus_batch_mean() -> onnx.ModelProto:
    nodes = [
        helper.make_node("ReduceMean", ["x", "axes"], ["mean"], "mean", keepdims=1),
        helper.make_node("Sub", ["x", "mean"], ["y"], "sub"),
    ]
    return make_model(nodes, [tensor("x", ["N", 4])], [tensor("y", ["N", 4])], {"axes": np.array([0])})


@pytest.mark.parametrize(
    "model",
    [
        minus_batch_mean(),
        one_node("ReduceMean", ["N", 4], [1, 4], "axes", given={"axes": np.array([0])}, keepdims=1),
        one_node("ReduceMean", ["N", 4], [4], "axes", given={"axes": np.array([0])}, keepdims=0),
        one_node("Softmax", ["N", 4], ["N", 4], axis=0),
        one_node("CumSum", ["N", 4], ["N", 4], "axis", given={"axis": np.array(0)}),
        one_node("Reshape", ["N", 4], [1, "M"], "shape", given={"shape": np.array([1, -1])}),
        one_node("Transpose", ["N", 3], [3, "N"], perm=[1, 0]),
    ],
    ids=["minus mean", "mean", "mean of lower rank", "softmax", "running sum", "flattened", "transposed"],
)
def test_graph_that_mixes_the_rows_of_a_batch_is_refused(model):
    onnx.checker.check_model(model, full_check=True)
    with pytest.raises(ModelError, match=r"output 'y' mixes the rows .*without --dynamic batch"):
        prove_rows_independent(model, seed=0)


def test_graph_that_only_works_with_its_own_batch_is_refused():
    model = one_node("Reshape", [1, 4], [1, 2, 2], "shape", given={"shape": np.array([1, 2, 2])})
    apply_shapes(model, [], dynamic_batch=True)
    with pytest.raises(ModelError, match=r"does not run with a batch of 3.*without --dynamic batch"):
        prove_rows_independent(model, seed=0)


def test_ill_conditioned_graph_whose_rows_are_independent_passes():
    """Alone, a row takes other kernels, whose rounding a difference of large numbers amplifies."""
    weights = {"w": np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32), "k": np.float32([1e3])}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "k"], ["far"]),
        helper.make_node("Sub", ["far", "k"], ["y"]),
    ]
    model = make_model(nodes, [tensor("x", ["N", 64])], [tensor("y", ["N", 64])], weights)
    prove_rows_independent(model, seed=0)
