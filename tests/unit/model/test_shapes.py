from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from sanderling.core.errors import ModelError
from sanderling.model.shapes import fits, infer_shapes, shape_check
from tests.models import conv_classifier, make_model, tensor

ADD = make_model(
    [helper.make_node("Add", ["a", "b"], ["y"], "add")],
    [tensor("a", ["K"]), tensor("b", ["L"])],
    [tensor("y", ["M"])],
)


def test_shapes_follow_from_the_inputs_and_not_from_what_is_declared():
    model = conv_classifier()
    model.graph.value_info.append(tensor("relu", [7, 7, 7, 7]))
    assert infer_shapes(model)["relu"] == ("N", 8, 8, 8)


def test_outputs_have_the_shapes_that_the_inputs_imply():
    assert shape_check(conv_classifier())(((5, 3, 8, 8),)) == {"scores": (5, 4)}


def test_shapes_that_contradict_each_other_are_a_model_error_every_time():
    check = shape_check(ADD)
    for _ in range(2):
        with pytest.raises(ModelError, match="contradict"):
            check(((5,), (4,)))
    assert check(((5,), (5,))) == {"y": (5,)}


def test_shape_that_weights_imply_is_known_though_weights_are_large():
    weights = {"w": np.zeros((64, 64), np.float32)}
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "matmul")
    model = make_model([node], [tensor("x", ["N", 64])], [tensor("y", ["N", "M"])], weights)
    assert shape_check(model)(((3, 64),)) == {"y": (3, 64)}


@pytest.mark.parametrize(
    ("shape", "wanted", "fitting"),
    [((3, 4), (3, 4), True), ((3, 4), ("N", 4), True), ((3, 4), ("N", 5), False), ((3,), ("N", 4), False)],
)
def test_shape_fits_where_axes_are_fixed(shape, wanted, fitting):
    assert fits(shape, wanted) is fitting
