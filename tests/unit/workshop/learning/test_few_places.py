"""Convolutions with few places, folded, against themselves as they were."""

import numpy as np
import onnxruntime
import pytest

from sanderling.core.tensor import TensorSpec
from sanderling.workshop.learning.draft import Draft, extract
from sanderling.workshop.learning.few_places import fold_batches
from sanderling.workshop.learning.forward import infer_shapes


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def convolution(size, kernel, *, bias=True, frozen=False, **attributes):
    """A draft with one convolution of a dynamic batch, its inputs, and its result's name."""
    shapes = {"x": ("batch", 5, *size), "w": (6, 5 // attributes.get("group", 1), *kernel), "b": (6,)}
    specs = [TensorSpec(name=name, dtype="float32", shape=shape) for name, shape in shapes.items()]
    draft = Draft()
    if frozen:
        draft.initializers["w"] = normal(*shapes["w"])
        specs = [spec for spec in specs if spec.name != "w"]
    y = draft.op("Conv", "x", "w", *(["b"] if bias else []), **attributes)
    infer_shapes(draft, specs, [y])
    return draft, specs, y


def result(draft, specs, y):
    model = extract(draft, "test", specs, [(y, TensorSpec(name="y", dtype="float32", shape=draft.shape(y)))])
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {spec.name: normal(*(3 if s == "batch" else s for s in spec.shape)) for spec in specs})[0]


@pytest.mark.parametrize(
    ("size", "kernel", "attributes"),
    [
        ((2, 3), (3, 3), {"pads": [1, 1, 1, 1]}),
        ((6, 5), (3, 2), {"pads": [1, 0, 0, 1], "strides": [2, 2], "bias": False}),
        ((3, 3), (1, 1), {}),
        ((7,), (3,), {"dilations": [2], "pads": [0, 2]}),
    ],
)
def test_folded_convolution_gives_the_same(size, kernel, attributes):
    draft, specs, y = convolution(size, kernel, **attributes)
    before = result(draft, specs, y)
    fold_batches(draft)
    assert "Conv" not in [node.op_type for node in draft.nodes]
    assert np.allclose(result(draft, specs, y), before, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "options"),
    [((8, 8), {}), ((2, 2), {"frozen": True})],
    ids=["many places", "frozen weight"],
)
def test_other_convolutions_stay(size, options):
    draft, _, _ = convolution(size, (3, 3), pads=[1, 1, 1, 1], **options)
    fold_batches(draft)
    assert [node.op_type for node in draft.nodes] == ["Conv"]
