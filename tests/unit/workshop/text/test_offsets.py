import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from sanderling.workshop.text.decoder import Product
from sanderling.workshop.text.offsets import BlockMeans
from sanderling.workshop.text.storage import LEAST_BLOCK, Form, restore, store

WIDTH = 40
FLOAT = onnx.TensorProto.FLOAT


def weights(depth, seed=0):
    random = np.random.default_rng(seed)
    steps = random.uniform(0.01, 0.1, (depth // 32, 1, WIDTH))
    codes = random.integers(0, 16, (depth // 32, 32, WIDTH))
    return ((codes - 7.6) * steps).astype(np.float32).reshape(depth, WIDTH)


def graph(stored, depth):
    """Products of one input."""
    means = BlockMeans(LEAST_BLOCK)
    settings = {"K": depth, "N": WIDTH, "bits": 4, "block_size": LEAST_BLOCK, "accuracy_level": 4}
    nodes, constants = [], []
    for name, parts in stored.items():
        names = [f"{name}.{part}" for part in ("codes", "scales", "zero_points")]
        arrays = (parts.codes, parts.scales, parts.zero_points)
        constants += [numpy_helper.from_array(array, each) for array, each in zip(arrays, names, strict=True)]
        node = helper.make_node("MatMulNBits", ["x", *names], [name], name, domain="com.microsoft", **settings)
        nodes += means.of_product(Product(name, "x", "", depth, WIDTH), node)
    return helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", FLOAT, ["batch", "tokens", depth])],
        [helper.make_tensor_value_info(name, FLOAT, ["batch", "tokens", WIDTH]) for name in stored],
        [*constants, *means.constants.values()],
    )


def computed(made, values):
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": values})


@pytest.mark.parametrize("depth", [32, 96, 1024, 1536])  # the means are less than a block, a block, and more
@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (1, 7), (3, 1)])
def test_a_product_with_levels_is_computed_as_stored(batch, tokens, depth):
    stored = store(weights(depth), Form.OFFSETS_4)
    values = np.random.default_rng(1).normal(1, size=(batch, tokens, depth)).astype(np.float32)

    result = computed(graph({"y": stored}, depth), values)[0]

    expected = values @ restore(stored, Form.OFFSETS_4)
    assert np.abs(result - expected).max() < 0.01 * np.abs(expected).max()  # inputs are rounded to eight bits


def test_offsets_are_what_zero_points_do_not_hold():
    weight = weights(96)
    values = np.random.default_rng(1).normal(3, size=(1, 2, 96)).astype(np.float32)
    stored = store(weight, Form.OFFSETS_4)
    stored.codes[:, 96 // 32 :] = 0x11 * (stored.zero_points[:, 1:2, None] >> 4)  # offsets of nothing

    result = computed(graph({"y": stored}, 96), values)[0]

    assert np.abs(result - values @ weight).max() > 0.02 * np.abs(values @ weight).max()


def test_products_of_one_input_average_it_once():
    stored = {name: store(weights(96, seed), Form.OFFSETS_4) for seed, name in enumerate(("gate", "up"))}
    values = np.random.default_rng(1).normal(size=(1, 2, 96)).astype(np.float32)
    made = graph(stored, 96)

    results = computed(made, values)

    assert sum(node.op_type == "ReduceMean" for node in made.node) == 1
    for seed, result in enumerate(results):
        expected = values @ weights(96, seed)
        assert np.abs(result - expected).max() < 0.02 * np.abs(expected).max()
