"""Each backward rule against PyTorch's autograd of the same function."""

import numpy as np
import onnxruntime
import pytest
import torch
from torch.nn import functional as F

from sanderling.core.errors import ModelError
from sanderling.core.tensor import TensorSpec
from sanderling.workshop.learning.backward import write_backward
from sanderling.workshop.learning.draft import Draft, extract
from sanderling.workshop.learning.forward import infer_shapes

TOLERANCE = 1e-5
X = (2, 3, 8, 8)


def ints(*values):
    return np.asarray(values, np.int64)


def gradients_of(kind, arrays, constants=(), outputs=1, **attributes):
    """Gradients of Σ r · y for fixed weights r, by the rule, and the r of each output."""
    draft = Draft()
    specs = [TensorSpec(name=f"x{i}", dtype="float32", shape=a.shape) for i, a in enumerate(arrays)]
    places = [draft.constant(np.asarray(c)) if c is not None else "" for c in constants]
    made = draft.ops(kind, [*(spec.name for spec in specs), *places], outputs, **attributes)
    infer_shapes(draft, specs, made)
    generator = np.random.default_rng(1)
    weights = [generator.standard_normal(draft.shapes[name]).astype(np.float32) for name in made]
    parts = [
        draft.op("ReduceSum", draft.op("Mul", y, draft.constant(r)), keepdims=0)
        for y, r in zip(made, weights, strict=True)
    ]
    loss = draft.op("Sum", *parts)
    infer_shapes(draft, specs, [loss])
    found = write_backward(draft, loss, [spec.name for spec in specs])
    answers = [(found[s.name], s.model_copy(update={"name": f"g.{s.name}"})) for s in specs]
    session = onnxruntime.InferenceSession(extract(draft, "rule", specs, answers).SerializeToString())
    got = session.run(None, {spec.name: array for spec, array in zip(specs, arrays, strict=True)})
    return got, weights


def check(kind, function, arrays, constants=(), outputs=1, **attributes):
    arrays = [np.asarray(a, np.float32) for a in arrays]
    got, weights = gradients_of(kind, arrays, constants, outputs, **attributes)
    leaves = [torch.from_numpy(a).requires_grad_() for a in arrays]
    results = function(*leaves)
    results = results if isinstance(results, (tuple, list)) else [results]
    sum((y * torch.from_numpy(r)).sum() for y, r in zip(results, weights, strict=True)).backward()
    for ours, leaf in zip(got, leaves, strict=True):
        reference = leaf.grad.numpy()
        assert ours.shape == reference.shape
        assert np.abs(ours - reference).max() <= TOLERANCE * max(1e-3, np.abs(reference).max())


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def positive(*shape):
    return np.abs(normal(*shape)) + 0.5


@pytest.mark.parametrize(
    ("kind", "function", "attributes"),
    [
        ("Relu", torch.relu, {}),
        ("LeakyRelu", lambda x: F.leaky_relu(x, 0.2), {"alpha": 0.2}),
        ("Elu", lambda x: F.elu(x, 0.7), {"alpha": 0.7}),
        ("Sigmoid", torch.sigmoid, {}),
        ("Tanh", torch.tanh, {}),
        ("Softplus", F.softplus, {}),
        ("Exp", torch.exp, {}),
        ("Neg", torch.neg, {}),
        ("Abs", torch.abs, {}),
        ("Sin", torch.sin, {}),
        ("Cos", torch.cos, {}),
        ("Erf", torch.erf, {}),
        ("HardSigmoid", F.hardsigmoid, {"alpha": 1 / 6, "beta": 0.5}),
        ("HardSwish", F.hardswish, {}),
        ("Softmax", lambda x: x.softmax(1), {"axis": 1}),
        ("LogSoftmax", lambda x: x.log_softmax(-1), {"axis": -1}),
        ("GlobalAveragePool", lambda x: x.mean((2, 3), keepdim=True), {}),
        ("GlobalMaxPool", lambda x: x.amax((2, 3), keepdim=True), {}),
        ("Transpose", lambda x: x.permute(0, 3, 1, 2), {"perm": [0, 3, 1, 2]}),
        ("Flatten", lambda x: x.flatten(1), {"axis": 1}),
    ],
)
def test_rule_of_one_input_is_autograd(kind, function, attributes):
    check(kind, function, [3 * normal(*X)], **attributes)


@pytest.mark.parametrize(
    ("kind", "function"), [("Log", torch.log), ("Sqrt", torch.sqrt), ("Reciprocal", torch.reciprocal)]
)
def test_rule_of_positive_values_is_autograd(kind, function):
    check(kind, function, [positive(*X)])


@pytest.mark.parametrize("shapes", [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (4,)), ((3, 1), (2, 1, 4)), ((2, 3), ())])
@pytest.mark.parametrize(
    ("kind", "function"), [("Add", torch.add), ("Sub", torch.sub), ("Mul", torch.mul), ("Div", torch.div)]
)
def test_what_was_broadcast_is_summed(kind, function, shapes):
    check(kind, function, [normal(*shapes[0]), positive(*shapes[1])])


@pytest.mark.parametrize(("kind", "function"), [("Max", torch.maximum), ("Min", torch.minimum)])
def test_extreme_of_two_is_autograd_ties_too(kind, function):
    a, b = normal(2, 5), normal(2, 5, seed=1)
    a[0, 0] = b[0, 0]
    check(kind, function, [a, b])


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, -1.0])
def test_power_is_autograd(exponent):
    check("Pow", lambda x: x**exponent, [positive(2, 5)], [np.float32(exponent)])


def test_clip_is_autograd():
    check("Clip", lambda x: x.clamp(-0.5, 0.7), [normal(2, 9)], [np.float32(-0.5), np.float32(0.7)])


def test_prelu_trains_its_slope():
    check("PRelu", lambda x, w: F.prelu(x, w.reshape(-1)), [normal(*X), positive(3, 1, 1)])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((4, 5), (5, 3)),
        ((2, 4, 5), (5, 3)),
        ((2, 3, 4, 5), (5, 6)),
        ((2, 3, 4, 5), (2, 3, 5, 6)),
        ((3, 4, 5), (2, 3, 5, 6)),
    ],
)
def test_product_is_autograd(left, right):
    check("MatMul", torch.matmul, [normal(*left), normal(*right)])


@pytest.mark.parametrize("turn_a", [0, 1])
@pytest.mark.parametrize("turn_b", [0, 1])
def test_gemm_is_autograd(turn_a, turn_b):
    def function(a, b, c):
        return 0.5 * ((a.T if turn_a else a) @ (b.T if turn_b else b)) + 2 * c

    arrays = [normal(*((5, 4) if turn_a else (4, 5))), normal(*((3, 5) if turn_b else (5, 3))), normal(3)]
    check("Gemm", function, arrays, alpha=0.5, beta=2.0, transA=turn_a, transB=turn_b)


@pytest.mark.parametrize(
    ("group", "kernel", "stride", "pad", "dilation"),
    [
        (1, 3, 1, 1, 1),
        (1, 3, 2, 1, 1),
        (1, 1, 1, 0, 1),
        (1, 1, 2, 0, 1),
        (1, 3, 1, 2, 2),
        (2, 3, 2, 1, 1),
        (4, 3, 2, 1, 1),
        (4, 5, 1, 2, 1),
    ],
)
def test_convolution_is_autograd(group, kernel, stride, pad, dilation):
    def function(x, w, b):
        return F.conv2d(x, w, b, stride, pad, dilation, group)

    arrays = [
        normal(2, 4, 9, 8),
        normal(4 if group == 4 else 6, 4 // group, kernel, kernel),
        normal(4 if group == 4 else 6),
    ]
    both = {"strides": [stride] * 2, "pads": [pad] * 4, "dilations": [dilation] * 2, "group": group}
    check("Conv", function, arrays, **both)


@pytest.mark.parametrize(
    ("channels", "size", "kernel", "stride", "pads", "dilation"),
    [
        (9, (4, 3), 3, 1, (1, 1, 1, 1), 1),
        (9, (7, 6), 3, 2, (1, 0, 2, 1), 1),
        (9, (9, 8), 3, 1, (2, 2, 2, 2), 2),
        (9, (9, 8), 5, 3, (2, 1, 2, 1), 1),
        (9, (5, 5), 1, 2, (0, 0, 0, 0), 1),
        (1, (12, 11), 3, 1, (1, 1, 1, 1), 1),
        (3, (15, 14), 7, 2, (3, 3, 3, 3), 1),
        (8, (12, 11), 3, 2, (0, 1, 1, 0), 1),
    ],
)
def test_convolution_with_few_places_or_channels_is_autograd(channels, size, kernel, stride, pads, dilation):
    def function(x, w, b):
        top, left, bottom, right = pads
        return F.conv2d(F.pad(x, (left, right, top, bottom)), w, b, stride, 0, dilation)

    arrays = [normal(3, channels, *size), normal(5, channels, kernel, kernel), normal(5)]
    both = {"strides": [stride] * 2, "pads": list(pads), "dilations": [dilation] * 2}
    check("Conv", function, arrays, **both)


def test_convolution_over_time_is_autograd():
    check(
        "Conv", lambda x, w: F.conv1d(x, w, None, 2, 1), [normal(2, 3, 11), normal(5, 3, 4)], strides=[2], pads=[1, 1]
    )


@pytest.mark.parametrize(("size", "pads"), [((5,), (3, 2)), ((5, 4, 7), (0, 1, 0, 1, 0, 2))])
def test_dilated_convolution_of_few_places_over_other_than_two_axes_is_autograd(size, pads):
    rank = len(size)
    function = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    both_ends = [pad for axis in reversed(range(rank)) for pad in (pads[axis], pads[axis + rank])]
    check(
        "Conv",
        lambda x, w: function(F.pad(x, both_ends), w, None, 2, 0, 2),
        [normal(2, 9, *size), normal(5, 9, *[2] * rank)],
        strides=[2] * rank,
        pads=list(pads),
        dilations=[2] * rank,
    )


def test_input_of_a_transposed_convolution_is_autograd():
    weight = normal(3, 4, 3, 3, seed=2)
    check(
        "ConvTranspose",
        lambda x: F.conv_transpose2d(x, torch.from_numpy(weight), None, 2, 1),
        [normal(2, 3, 5, 5)],
        [weight],
        strides=[2, 2],
        pads=[1] * 4,
    )


def test_weight_of_a_transposed_convolution_is_refused_by_name():
    with pytest.raises(ModelError, match=r"ConvTranspose.*not trained"):
        gradients_of("ConvTranspose", [normal(2, 3, 5, 5), normal(3, 4, 3, 3)])


@pytest.mark.parametrize(("size", "kernel", "stride", "pad"), [(8, 2, 2, 0), (9, 3, 2, 1), (8, 3, 1, 1), (9, 2, 2, 0)])
def test_pooling_is_autograd(size, kernel, stride, pad):
    x = normal(2, 3, size, size)
    window = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
    check("MaxPool", lambda x: F.max_pool2d(x, kernel, stride, pad), [x], **window)
    check("AveragePool", lambda x: F.avg_pool2d(x, kernel, stride, pad, count_include_pad=False), [x], **window)
    check("AveragePool", lambda x: F.avg_pool2d(x, kernel, stride, pad), [x], count_include_pad=1, **window)


def test_layer_normalization_is_autograd():
    def function(x, w, b):
        return F.layer_norm(x, (6,), w, b, 1e-5)

    check("LayerNormalization", function, [normal(2, 4, 6), positive(6), normal(6)], axis=-1, epsilon=1e-5)


def test_instance_normalization_is_autograd():
    def function(x, w, b):
        return F.instance_norm(x, weight=w, bias=b, eps=1e-5)

    check("InstanceNormalization", function, [normal(2, 3, 5, 4), positive(3), normal(3)], epsilon=1e-5)


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5, 4)])
def test_batch_normalization_with_running_statistics_is_autograd(shape):
    mean, variance = normal(3, seed=3), positive(3)

    def function(x, w, b):
        return F.batch_norm(x, torch.from_numpy(mean), torch.from_numpy(variance), w, b, eps=1e-5)

    check("BatchNormalization", function, [normal(*shape), positive(3), normal(3)], [mean, variance], epsilon=1e-5)


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("ReduceSum", lambda x, keep: x.sum((1, 3), keepdim=keep)),
        ("ReduceMean", lambda x, keep: x.mean((1, 3), keepdim=keep)),
        ("ReduceMax", lambda x, keep: x.amax((1, 3), keepdim=keep)),
        ("ReduceMin", lambda x, keep: x.amin((1, 3), keepdim=keep)),
        ("ReduceL2", lambda x, keep: x.norm(dim=(1, 3), keepdim=keep)),
        ("ReduceL1", lambda x, keep: x.abs().sum((1, 3), keepdim=keep)),
        ("ReduceSumSquare", lambda x, keep: x.square().sum((1, 3), keepdim=keep)),
        ("ReduceLogSumExp", lambda x, keep: x.logsumexp((1, 3), keepdim=keep)),
    ],
)
def test_reduction_is_autograd(kind, function, keep):
    check(kind, lambda x: function(x, bool(keep)), [normal(2, 3, 4, 5)], [ints(1, 3)], keepdims=keep)


@pytest.mark.parametrize(
    ("kind", "function", "constants", "attributes"),
    [
        ("Reshape", lambda x: x.reshape(6, 20), [ints(6, 20)], {}),
        ("Unsqueeze", lambda x: x[:, None], [ints(1)], {}),
        ("Expand", lambda x: x.expand(7, 2, 3, 4, 5), [ints(7, 2, 3, 4, 5)], {}),
        ("Tile", lambda x: x.repeat(1, 2, 1, 3), [ints(1, 2, 1, 3)], {}),
        ("Slice", lambda x: x[:, 1:, :-1], [ints(1, 0), ints(1 << 40, -1), ints(1, 2)], {}),
        ("Slice", lambda x: x[:, :, ::2], [ints(0), ints(1 << 40), ints(2), ints(2)], {}),
        ("Pad", lambda x: F.pad(x, (1, 2, 0, 3)), [ints(0, 0, 0, 1, 0, 0, 3, 2)], {}),
        ("Gather", lambda x: x[:, :, 2], [ints(2)[0]], {"axis": 2}),
        ("Gather", lambda x: x[:, :, [3, 0, 3]], [ints(3, 0, 3)], {"axis": 2}),
        ("Gather", lambda x: x[..., [1, 1]], [ints(1, 1)], {"axis": 3}),
        ("Gather", lambda x: x[torch.tensor([[1, 0], [1, 1]])], [np.asarray([[1, 0], [1, 1]])], {"axis": 0}),
        ("Trilu", torch.tril, [None], {"upper": 0}),
        ("CumSum", lambda x: x.cumsum(2), [np.asarray(2)], {}),
        (
            "GatherElements",
            lambda x: x.gather(1, torch.zeros(2, 2, 4, 5, dtype=torch.long)),
            [np.zeros((2, 2, 4, 5), np.int64)],
            {"axis": 1},
        ),
    ],
)
def test_movement_is_autograd(kind, function, constants, attributes):
    check(kind, function, [normal(2, 3, 4, 5)], constants, **attributes)


def test_joining_and_splitting_are_autograd():
    check("Concat", lambda a, b: torch.cat([a, b], 1), [normal(2, 3), normal(2, 4)], axis=1)
    check("Split", lambda x: x.split([2, 3], 1), [normal(2, 5)], [ints(2, 3)], outputs=2, axis=1)


def test_space_and_depth_are_autograd():
    def function(x):  # DCR: the block's place is the slow part of the channel
        return x.reshape(2, 2, 2, 3, 4, 5).permute(0, 3, 4, 1, 5, 2).reshape(2, 3, 8, 10)

    check("DepthToSpace", function, [normal(2, 12, 4, 5)], blocksize=2)


def test_nearest_enlargement_is_autograd():
    function = lambda x: F.interpolate(x, scale_factor=2, mode="nearest")  # noqa: E731
    scales = np.asarray([1, 1, 2, 2], np.float32)
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    check("Resize", function, [normal(2, 3, 4, 5)], [None, scales], **how)


def test_other_enlargement_is_refused_by_name():
    with pytest.raises(ModelError, match=r"Resize.*mode linear"):
        gradients_of("Resize", [normal(1, 2, 4, 4)], [None, np.asarray([1, 1, 2, 2], np.float32)], mode="linear")


def test_operator_without_a_rule_is_named_with_its_place():
    with pytest.raises(ModelError, match="no gradient is known here for Selu"):
        gradients_of("Selu", [normal(2, 3)])
