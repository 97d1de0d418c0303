"""The deploy form of QDQ graphs: what it computes, by definitions written once more here, and what it refuses."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from sanderling.core.errors import ModelError
from sanderling.workshop.targets.ascend.deploy import dequantization, integer_bias, integer_nodes, to_deploy
from sanderling.workshop.targets.ascend.reference import difference, in_standard_onnx
from tests.models import conv_classifier, make_model, random_arrays, run_directly, tensor
from tests.quantized import in_int8


def node(operator, inputs, output, **attributes):
    return helper.make_node(operator, inputs, [output], output, **attributes)


def qdq(name, scale, zero_point):
    """Nodes that store ``name`` as ``name_q`` and read it as ``name_d``, and their constants."""
    constants = {f"{name}_s": np.float32(scale), f"{name}_z": zero_point}
    arguments = list(constants)
    return [
        node("QuantizeLinear", [name, *arguments], f"{name}_q"),
        node("DequantizeLinear", [f"{name}_q", *arguments], f"{name}_d"),
    ], constants


MIDDLE = np.uint8(100)


def one_conv(*, zero_point=MIDDLE, weight=None, weight_zero=None, bias=True, **attributes):
    """``x`` (1, 2, 5, 5) to ``y`` through one convolution in INT8, whose output stays float."""
    generator = np.random.default_rng(3)
    if weight is None:
        weight = generator.integers(-127, 128, (3, 2, 3, 3)).astype(np.int8)
    nodes, constants = qdq("x", 0.02, zero_point)
    constants |= {"w": weight, "w_s": np.array([0.01, 0.02, 0.003], np.float32)}
    constants["w_z"] = np.zeros(3, weight.dtype) if weight_zero is None else weight_zero
    nodes.append(node("DequantizeLinear", ["w", "w_s", "w_z"], "w_d", axis=0))
    inputs = ["x_d", "w_d"]
    if bias:
        constants |= {"b": np.array([500, -7, 12345], np.int32), "b_s": np.float32(0.02) * constants["w_s"]}
        nodes.append(node("DequantizeLinear", ["b", "b_s"], "b_d", axis=0))
        inputs.append("b_d")
    nodes.append(node("Conv", inputs, "y", **attributes))
    return make_model(nodes, [tensor("x", [1, 2, 5, 5])], [tensor("y", [1, 3, None, None])], constants)


def operators(model):
    return [each.op_type for each in model.graph.node]


def constant(model, name):
    (found,) = (numpy_helper.to_array(each) for each in model.graph.initializer if each.name == name)
    return found


def attributes_of(model, operator):
    (found,) = (each for each in model.graph.node if each.op_type == operator)
    return {each.name: helper.get_attribute_value(each) for each in found.attribute}


def with_float_and_integer_readers():
    """A residual block: one tensor is read by two convolutions and an Add; MaxPool and Concat move integers."""
    weights = {
        **random_arrays({"a": (4, 3, 3, 3), "b": (4, 4, 1, 1), "c": (4, 8)}, seed=5),
        "d": np.ones((4,), np.float32),
    }
    nodes = [
        node("Conv", ["x", "a"], "first", pads=[1, 1, 1, 1]),
        node("Relu", ["first"], "bent"),
        node("Conv", ["bent", "b"], "second"),
        node("Add", ["bent", "second"], "sum"),
        node("MaxPool", ["sum"], "pooled", kernel_shape=[2, 2], strides=[2, 2]),
        node("Concat", ["pooled", "pooled"], "joined", axis=1),
        node("GlobalAveragePool", ["joined"], "mean"),
        node("Flatten", ["mean"], "flat"),
        node("Gemm", ["flat", "c", "d"], "y", transB=1),
    ]
    model = make_model(nodes, [tensor("x", ["N", 3, 8, 8])], [tensor("y", ["N", 4])], weights)
    return onnx.shape_inference.infer_shapes(model)


CALLS = [random_arrays({"x": (2, 3, 8, 8)}, seed=seed) for seed in range(3)]


def test_convolution_computes_with_the_integers_themselves():
    deploy = to_deploy(one_conv(pads=[1, 1, 1, 1]))
    assert operators(deploy) == ["AscendQuant", "Conv", "AscendDequant"]
    assert integer_nodes(deploy) == ("y",)
    conv = deploy.graph.node[1]
    assert [constant(deploy, name).dtype for name in conv.input[1:]] == [np.int8, np.int32]
    assert attributes_of(deploy, "AscendQuant") == {
        "scale": pytest.approx(1 / np.float32(0.02)),
        "offset": 100 - 128,
        "dst_type": b"INT8",
    }
    assert attributes_of(deploy, "AscendDequant") == {"dtype": 0}
    scales = constant(deploy, deploy.graph.node[2].input[1])
    assert scales.dtype == np.uint64
    np.testing.assert_array_equal(
        scales.astype(np.uint32).view(np.float32), np.float32(0.02) * constant(one_conv(), "w_s")
    )


@pytest.mark.parametrize("zero_point", [np.uint8(0), np.uint8(100), np.uint8(255), np.int8(-128), np.int8(7)])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 2, 0, 1]])
def test_definitions_written_once_more_give_the_same(zero_point, pads):
    model = one_conv(zero_point=zero_point, pads=pads)
    x = random_arrays({"x": (1, 2, 5, 5)}, seed=2)["x"]
    offset = int(zero_point) - (128 if zero_point.dtype == np.uint8 else 0)
    stored = np.clip(np.rint(x.astype(np.float64) / np.float32(0.02) + offset), -128, 127).astype(np.int64) - offset
    stored = np.pad(stored, [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])])
    weight, bias = constant(model, "w").astype(np.int64), constant(model, "b").astype(np.int64)
    height, width = (size - 2 for size in stored.shape[2:])
    sums = np.array(
        [
            [
                [(stored[0, :, row : row + 3, column : column + 3] * weight[channel]).sum() for column in range(width)]
                for row in range(height)
            ]
            for channel in range(3)
        ]
    )
    scale = (np.float32(0.02) * constant(model, "w_s")).astype(np.float64)
    expected = (sums + bias[:, None, None]) * scale[:, None, None]
    got = run_directly(in_standard_onnx(to_deploy(model)), {"x": x})["y"]
    np.testing.assert_allclose(got[0], expected, rtol=1e-6, atol=1e-7)


def test_classifier_equals_its_qdq_graph_within_a_step():
    model = conv_classifier(features=16)
    calls = [random_arrays({"image": (2, 3, 8, 8)}, seed=seed) for seed in range(4)]
    quantised = in_int8(model, calls[0])
    deploy = to_deploy(quantised)
    assert {"QuantizeLinear", "DequantizeLinear"}.isdisjoint(operators(deploy))
    assert len(integer_nodes(deploy)) == 2
    assert difference(quantised, deploy, calls).steps <= 1.0


def test_tensor_with_readers_of_both_kinds_is_stored_once_and_read_as_both():
    quantised = in_int8(with_float_and_integer_readers(), CALLS[0])
    deploy = to_deploy(quantised)
    assert operators(deploy).count("AscendDequant") == 3
    assert "AscendAntiQuant" in operators(deploy)
    stored = [each.input[0] for each in deploy.graph.node if each.op_type == "AscendQuant"]
    assert len(stored) == len(set(stored))
    assert difference(quantised, deploy, CALLS).steps <= 1.0


def test_wrong_scale_is_found():
    quantised = in_int8(with_float_and_integer_readers(), CALLS[0])
    deploy = to_deploy(quantised)
    scales = next(each for each in deploy.graph.initializer if each.name.endswith("deq_scale"))
    broken = dequantization(2 * numpy_helper.to_array(scales).astype(np.uint32).view(np.float32))
    scales.CopyFrom(numpy_helper.from_array(broken, scales.name))
    assert difference(quantised, deploy, CALLS).steps > 1.0


def test_wrong_offset_is_found():
    quantised = in_int8(with_float_and_integer_readers(), CALLS[0])
    deploy = to_deploy(quantised)
    quant = next(each for each in deploy.graph.node if each.op_type == "AscendQuant")
    next(each for each in quant.attribute if each.name == "offset").f += 3
    assert difference(quantised, deploy, CALLS).steps > 1.0


def test_unsigned_weights_become_signed():
    unsigned = np.random.default_rng(3).integers(1, 256, (3, 2, 3, 3)).astype(np.uint8)
    model = one_conv(weight=unsigned, weight_zero=np.full(3, 128, np.uint8))
    deploy = to_deploy(model)
    np.testing.assert_array_equal(constant(deploy, "y_weight_int8"), unsigned.astype(np.int16) - 128)
    assert difference(model, deploy, [random_arrays({"x": (1, 2, 5, 5)})]).steps <= 1.0


def test_weights_beyond_eight_signed_bits_stay_float():
    unsigned = np.full((3, 2, 3, 3), 255, np.uint8)
    model = one_conv(weight=unsigned, weight_zero=np.zeros(3, np.uint8))
    deploy = to_deploy(model)
    assert operators(deploy) == ["AscendQuant", "AscendAntiQuant", "Conv"]
    assert integer_nodes(deploy) == ()
    assert difference(model, deploy, [random_arrays({"x": (1, 2, 5, 5)})]).steps <= 1.0


def test_float_bias_is_rounded_to_the_sums_steps():
    model = one_conv(bias=False)
    conv = model.graph.node[-1]
    conv.input.append("b")
    model.graph.initializer.append(numpy_helper.from_array(np.array([0.5, -0.001, 2.0], np.float32), "b"))
    deploy = to_deploy(model)
    scale = np.float32(0.02) * np.array([0.01, 0.02, 0.003], np.float32)
    np.testing.assert_array_equal(constant(deploy, "y_bias_int32"), np.rint(np.array([0.5, -0.001, 2.0]) / scale))


def test_bias_beyond_32_bits_keeps_the_node_float():
    model = one_conv(bias=False)
    model.graph.node[-1].input.append("b")
    model.graph.initializer.append(numpy_helper.from_array(np.full(3, 1e9, np.float32), "b"))
    assert integer_nodes(to_deploy(model)) == ()


@pytest.mark.parametrize("operator", ["MatMul", "Gemm"])
def test_matrix_products_compute_in_integers(operator):
    nodes, constants = qdq("x", 0.05, np.uint8(30))
    constants |= {"w": np.arange(-6, 6, dtype=np.int8).reshape(4, 3), "w_s": np.array([0.1, 0.2, 0.3], np.float32)}
    nodes.append(node("DequantizeLinear", ["w", "w_s"], "w_d", axis=1))
    nodes.append(node(operator, ["x_d", "w_d"], "y"))
    model = make_model(nodes, [tensor("x", [2, 4])], [tensor("y", [2, 3])], constants)
    deploy = to_deploy(model)
    assert integer_nodes(deploy) == ("y",)
    assert difference(model, deploy, [random_arrays({"x": (2, 4)})]).steps <= 1.0


def test_scale_along_the_wrong_axis_keeps_the_node_float():
    nodes, constants = qdq("x", 0.05, np.uint8(30))
    constants |= {"w": np.ones((4, 4), np.int8), "w_s": np.array([0.1, 0.2, 0.3, 0.4], np.float32)}
    nodes.append(node("DequantizeLinear", ["w", "w_s"], "w_d", axis=0))
    nodes.append(node("MatMul", ["x_d", "w_d"], "y"))
    model = make_model(nodes, [tensor("x", [2, 4])], [tensor("y", [2, 4])], constants)
    assert integer_nodes(to_deploy(model)) == ()
    assert difference(model, to_deploy(model), [random_arrays({"x": (2, 4)})]).steps <= 1.0


def test_tiny_steps_are_given_as_a_root():
    nodes, constants = qdq("x", 1e-6, np.uint8(30))
    model = make_model([*nodes, node("Relu", ["x_d"], "y")], [tensor("x", [4])], [tensor("y", [4])], constants)
    deploy = to_deploy(model)
    attributes = attributes_of(deploy, "AscendQuant")
    assert attributes["sqrt_mode"] == 1
    assert attributes["scale"] ** 2 == pytest.approx(1e6, rel=1e-5)
    calls = [{"x": np.array([-2e-5, 1e-6, 3.4e-5, 1e-4], np.float32)}]
    assert difference(model, deploy, calls).steps <= 1.0


def test_quantised_constant_is_written_as_what_it_stands_for():
    nodes, constants = qdq("x", 0.1, np.uint8(128))
    more, others = qdq("c", 0.25, np.uint8(0))
    constants |= {**others, "c": np.array([0.3, 1.0, 99.0], np.float32)}
    add = node("Add", ["x_d", "c_d"], "y")
    model = make_model([*nodes, *more, add], [tensor("x", [3])], [tensor("y", [3])], constants)
    deploy = to_deploy(model)
    assert operators(deploy) == ["AscendQuant", "AscendAntiQuant", "Add"]
    np.testing.assert_array_equal(constant(deploy, "c_d"), np.array([0.25, 1.0, 63.75], np.float32))


def test_graph_with_weights_alone_in_eight_bits_becomes_float():
    constants = {"w": np.arange(-6, 6, dtype=np.int8).reshape(4, 3), "w_s": np.float32(0.1)}
    nodes = [node("DequantizeLinear", ["w", "w_s"], "w_d"), node("MatMul", ["x", "w_d"], "y")]
    model = make_model(nodes, [tensor("x", [2, 4])], [tensor("y", [2, 3])], constants)
    deploy = to_deploy(model)
    assert operators(deploy) == ["MatMul"]
    found = difference(model, deploy, [random_arrays({"x": (2, 4)})])
    assert (found.steps, found.share) == (0.0, 0.0)


def reading_integers():
    nodes, constants = qdq("x", 0.1, np.uint8(0))
    return make_model(
        [*nodes, node("Cast", ["x_q"], "y", to=onnx.TensorProto.FLOAT)],
        [tensor("x", [3])],
        [tensor("y", [3])],
        constants,
    )


def returning_integers():
    nodes, constants = qdq("x", 0.1, np.uint8(0))
    return make_model(nodes[:1], [tensor("x", [3])], [tensor("x_q", [3], "uint8")], constants)


def fed_with_integers():
    constants = {"s": np.float32(0.1), "z": np.uint8(0)}
    dequantize = node("DequantizeLinear", ["x", "s", "z"], "y")
    return make_model([dequantize], [tensor("x", [3], "uint8")], [tensor("y", [3])], constants)


def many_scales():
    constants = {"s": np.array([0.1, 0.2, 0.3], np.float32), "z": np.zeros(3, np.uint8)}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], "q", axis=0),
        node("DequantizeLinear", ["q", "s", "z"], "y", axis=0),
    ]
    return make_model(nodes, [tensor("x", [3])], [tensor("y", [3])], constants)


def sixteen_bits():
    nodes, constants = qdq("x", 0.1, np.uint16(0))
    return make_model(nodes, [tensor("x", [3])], [tensor("x_d", [3])], constants, opset=21)


def computed_scale():
    nodes, constants = qdq("x", 0.1, np.uint8(0))
    del constants["x_s"]
    scale = node("ReduceMax", ["x"], "x_s", keepdims=0)
    return make_model([scale, *nodes], [tensor("x", [3])], [tensor("x_d", [3])], constants)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (reading_integers(), r"node 'y' \(Cast\) reads 'x_q' in eight bits"),
        (returning_integers(), "output 'x_q' is stored in eight bits"),
        (fed_with_integers(), "node 'y' reads the integers 'x', which no QuantizeLinear makes"),
        (many_scales(), "tensor 'x' is stored as uint8 with 3 scales"),
        (sixteen_bits(), "tensor 'x' is stored as uint16 with 1 scales"),
        (computed_scale(), "node 'x_q' computes its scale while the graph runs"),
    ],
)
def test_what_the_chip_does_not_have_is_refused(model, told):
    with pytest.raises(ModelError, match=told):
        to_deploy(model)


def test_graph_is_left_alone():
    model = one_conv()
    before = model.SerializeToString(deterministic=True)
    to_deploy(model)
    assert model.SerializeToString(deterministic=True) == before


POSITIVE = st.floats(2.0**-40, 2.0**20, width=32)


@given(st.lists(POSITIVE, min_size=1, max_size=8), st.integers(-128, 127))
@settings(deadline=None)
def test_scale_and_offset_share_64_bits(scales, offset):
    given_scales = np.array(scales, np.float32)
    packed = dequantization(given_scales, weight_offset=offset)
    np.testing.assert_array_equal((packed & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.float32), given_scales)
    assert ((packed >> np.uint64(32)).astype(np.uint8).view(np.int8) == offset).all()


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), POSITIVE), min_size=1, max_size=8))
@settings(deadline=None)
def test_bias_is_within_half_a_step_or_does_not_fit(pairs):
    bias, scale = np.array([b for b, _ in pairs]), np.array([s for _, s in pairs], np.float32)
    steps = integer_bias(bias, scale)
    if steps is None:
        assert np.abs(bias / scale.astype(np.float64)).max() > 2**31 - 2
    else:
        assert steps.dtype == np.int32
        assert (np.abs(steps * scale.astype(np.float64) - bias) <= scale * 0.5000001 + 1e-300).all()


@given(st.integers(-(2**31) + 1, 2**31 - 1), POSITIVE)
@settings(deadline=None)
def test_integers_of_a_bias_survive(steps, scale):
    scale = np.array([scale], np.float32)
    (found,) = integer_bias(steps * scale.astype(np.float64), scale)
    assert found == steps
