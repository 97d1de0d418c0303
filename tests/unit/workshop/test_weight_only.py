"""Weights of matrix products in few bits."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from sanderling.core.errors import OptionError
from sanderling.workshop.quantize.weight_only import to_weight_only
from tests.models import make_model, random_arrays, run_directly, tensor

WEIGHTS = random_arrays({"table": (64, 128), "first": (128, 64), "second": (64, 32)})


@pytest.fixture(scope="module")
def model():
    """Token embeddings and two products."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["embedded"], "embed"),
        helper.make_node("MatMul", ["embedded", "first"], ["hidden"], "first"),
        helper.make_node("Relu", ["hidden"], ["active"], "relu"),
        helper.make_node("MatMul", ["active", "second"], ["y"], "second"),
    ]
    return make_model(nodes, [tensor("ids", [2, 5], "int64")], [tensor("y", [2, 5, 32])], WEIGHTS)


def cosine(model, other):
    feeds = {"ids": np.random.default_rng(3).integers(0, 64, (2, 5))}
    x, y = (run_directly(graph, feeds)["y"].ravel().astype(np.float64) for graph in (model, other))
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


@pytest.mark.parametrize(
    ("bits", "group_size", "least", "share"), [(8, 32, 0.9995, 0.75), (4, 32, 0.97, 0.25), (4, 16, 0.98, 0.3)]
)
def test_outputs_stay_close_and_the_file_shrinks(model, bits, group_size, least, share):
    before = model.SerializeToString()

    made = to_weight_only(model, bits=bits, group_size=group_size)

    assert cosine(model, made) > least
    assert made.ByteSize() < share * model.ByteSize()
    assert model.SerializeToString() == before


def test_smaller_groups_are_more_exact(model):
    assert cosine(model, to_weight_only(model, bits=4, group_size=16)) > cosine(
        model, to_weight_only(model, bits=4, group_size=128)
    )


@pytest.mark.parametrize(("bits", "group_size"), [(3, 32), (4, 33), (8, 8)])
def test_bits_and_groups_without_a_kernel_are_refused(model, bits, group_size):
    with pytest.raises(OptionError, match="--group-size is one of 16, 32"):
        to_weight_only(model, bits=bits, group_size=group_size)
