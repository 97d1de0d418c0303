import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from sanderling.workshop.text.decoder import Product
from sanderling.workshop.text.residual import Residuals
from sanderling.workshop.text.storage import Form, block_of, restore, store

DEPTH, WIDTH = 96, 40
FLOAT = onnx.TensorProto.FLOAT


def weights(seed):
    return store(np.random.default_rng(seed).normal(size=(DEPTH, WIDTH)).astype(np.float32), Form.RESIDUAL_8)


def nbits(name):
    block = block_of(Form.RESIDUAL_8, DEPTH)
    names = ["x", *(f"{name}.{part}" for part in ("codes", "scales", "zero_points"))]
    settings = {"K": DEPTH, "N": WIDTH, "bits": 8, "block_size": block, "accuracy_level": 4}
    return helper.make_node("MatMulNBits", names, [name], name, domain="com.microsoft", **settings)


def graph(stored, *, split):
    """Products of one input, each with its input in 8 bits or, split, in 16."""
    residuals = Residuals(block_of(Form.RESIDUAL_8, DEPTH))
    nodes = []
    for name in stored:
        nodes += residuals.of_product(Product(name, "x", "", DEPTH, WIDTH), nbits(name)) if split else [nbits(name)]
    constants = [
        numpy_helper.from_array(getattr(parts, part), f"{name}.{part}")
        for name, parts in stored.items()
        for part in ("codes", "scales", "zero_points")
    ]
    return helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", FLOAT, ["batch", "tokens", DEPTH])],
        [helper.make_tensor_value_info(name, FLOAT, ["batch", "tokens", WIDTH]) for name in stored],
        [*constants, *residuals.constants.values()],
    )


def computed(made, values):
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": values})


@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (1, 7), (3, 1)])
def test_a_product_has_its_input_in_sixteen_bits(batch, tokens):
    stored = weights(0)
    values = np.random.default_rng(1).normal(size=(batch, tokens, DEPTH)).astype(np.float32)
    values[..., 5] = 50  # spoils the eight bits of its block
    expected = values @ restore(stored, Form.RESIDUAL_8)

    lost = {
        split: np.abs(computed(graph({"y": stored}, split=split), values)[0] - expected).max()
        for split in (True, False)
    }

    assert lost[False] > 0.1
    assert lost[True] < 0.01 * lost[False]


def test_products_of_one_input_split_it_once():
    stored = {"gate": weights(0), "up": weights(1)}
    values = np.random.default_rng(1).normal(size=(1, 2, DEPTH)).astype(np.float32)
    made = graph(stored, split=True)

    results = computed(made, values)

    assert sum(node.op_type == "Sub" for node in made.node) == 1
    for result, parts in zip(results, stored.values(), strict=True):
        np.testing.assert_allclose(result, values @ restore(parts, Form.RESIDUAL_8), atol=1e-3)
