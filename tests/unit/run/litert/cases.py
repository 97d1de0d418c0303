"""Small graphs, one for each operator and form of it: what comes out must be what ONNX Runtime computes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tests.models import Shape, make_model, tensor

IMAGE = (2, 4, 9, 10)
MATRIX = (3, 5)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def one(
    operator: str,
    shape: Shape = IMAGE,
    *,
    out: Shape | None = None,
    dtype: str = "float32",
    out_dtype: str | None = None,
    constants: dict[str, np.ndarray] | None = None,
    opset: int = 18,
    outputs: int = 1,
    convolved: bool = False,
    **attributes,
) -> onnx.ModelProto:
    """One operator of ``x`` and constants; ``convolved`` puts a 1×1 Conv before, so that channels are last."""
    constants = constants or {}
    names = [f"y{index}" for index in range(outputs)]
    nodes = [helper.make_node(operator, ["h" if convolved else "x", *constants], names, operator.lower(), **attributes)]
    if convolved:
        channels = shape[1]
        constants = {**constants, "mix": random(channels, channels, *[1] * (len(shape) - 2), seed=5)}
        nodes.insert(0, helper.make_node("Conv", ["x", "mix"], ["h"], "before"))
    model = make_model(nodes, [tensor("x", shape, dtype)], [], constants, opset=opset)
    values = [helper.make_empty_tensor_value_info(name) for name in names]
    model.graph.output.extend(values)
    if out is not None:
        kinds = [tensor(name, out, out_dtype or dtype) for name in names]
    else:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph.output
        kinds = list(inferred)
    del model.graph.output[:]
    model.graph.output.extend(kinds)
    return model


def two(operator: str, left: Shape, right: Shape, *, dtype: str = "float32", **attributes) -> onnx.ModelProto:
    """One operator of ``a`` and ``b``."""
    node = helper.make_node(operator, ["a", "b"], ["y"], operator.lower(), **attributes)
    model = make_model([node], [tensor("a", left, dtype), tensor("b", right, dtype)], [])
    model.graph.output.append(helper.make_empty_tensor_value_info("y"))
    inferred = onnx.shape_inference.infer_shapes(model).graph.output[0]
    model.graph.output[0].CopyFrom(inferred)
    return model


def conv(weight: tuple[int, ...], shape: Shape = IMAGE, *, bias: bool = True, operator="Conv", **attributes):
    constants = {"w": random(*weight, seed=1)}
    if bias:
        width = weight[0] if operator == "Conv" else weight[1] * attributes.get("group", 1)
        constants["b"] = random(width, seed=2)
    return one(operator, shape, constants=constants, **attributes)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


CONVOLUTIONS = {
    "plain": conv((6, 4, 3, 3)),
    "no bias": conv((6, 4, 3, 3), bias=False),
    "pads as SAME": conv((6, 4, 3, 3), pads=[1, 1, 1, 1]),
    "stride 2, even size": conv((6, 4, 3, 3), (1, 4, 8, 8), pads=[1, 1, 1, 1], strides=[2, 2]),
    "uneven pads": conv((6, 4, 3, 2), pads=[2, 0, 1, 3]),
    "uneven strides": conv((6, 4, 3, 3), strides=[1, 3], pads=[1, 0, 1, 2]),
    "dilated": conv((6, 4, 3, 3), dilations=[2, 3]),
    "dilated and padded": conv((6, 4, 3, 3), dilations=[2, 2], pads=[2, 2, 2, 2]),
    "SAME_UPPER": conv((6, 4, 2, 2), auto_pad="SAME_UPPER", strides=[2, 2]),
    "SAME_LOWER": conv((6, 4, 2, 2), auto_pad="SAME_LOWER"),
    "VALID": conv((6, 4, 2, 2), auto_pad="VALID"),
    "depthwise": conv((4, 1, 3, 3), group=4, pads=[1, 1, 1, 1]),
    "depthwise with multiplier": conv((8, 1, 3, 3), group=4),
    "depthwise, stride 2, dilated": conv((4, 1, 3, 3), group=4, strides=[2, 2], pads=[1, 1, 1, 1]),
    "groups": conv((6, 2, 3, 3), group=2),
    "one axis": conv((6, 4, 3), (2, 4, 9), pads=[1, 1]),
    "one axis, depthwise": conv((4, 1, 3), (2, 4, 9), group=4, strides=[2]),
    "transposed": conv((4, 6, 3, 3), operator="ConvTranspose"),
    "transposed, stride 2": conv((4, 6, 2, 2), operator="ConvTranspose", strides=[2, 2]),
    "transposed, padded": conv(
        (4, 6, 3, 3), operator="ConvTranspose", strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]
    ),
    "transposed, uneven": conv((4, 6, 4, 3), operator="ConvTranspose", strides=[3, 1], pads=[0, 1, 2, 0]),
    "transposed, SAME_UPPER": conv((4, 6, 3, 3), operator="ConvTranspose", strides=[2, 2], auto_pad="SAME_UPPER"),
    "transposed, one axis": conv((4, 6, 3), (2, 4, 9), operator="ConvTranspose", strides=[2]),
}

POOLS = {
    "max": one("MaxPool", kernel_shape=[2, 2], strides=[2, 2]),
    "max, padded": one("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "max, padded, after Conv": one(
        "MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], convolved=True
    ),
    "max, uneven pads": one("MaxPool", kernel_shape=[3, 2], pads=[2, 0, 1, 1]),
    "max, rounded up": one("MaxPool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    "max, SAME_UPPER": one("MaxPool", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    "max, one axis": one("MaxPool", (2, 4, 9), kernel_shape=[3], strides=[2]),
    "mean": one("AveragePool", kernel_shape=[3, 2], strides=[2, 2]),
    "mean, padded": one("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "mean, pads counted": one("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    "mean, uneven pads": one("AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[0, 1, 2, 1]),
    "mean, rounded up": one("AveragePool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, opset=19),
    "mean, rounded up, pads counted": one(
        "AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1, count_include_pad=1,
        opset=19,
    ),
    "mean of space": one("GlobalAveragePool"),
    "mean of space, one axis": one("GlobalAveragePool", (2, 4, 9)),
    "max of space": one("GlobalMaxPool"),
}  # fmt: skip

REDUCTIONS = {
    f"{operator} {axes} {keep}": one(
        operator, constants={"axes": ints(*axes)}, keepdims=keep, convolved=True
    )
    for operator in ("ReduceMean", "ReduceMax", "ReduceMin")
    for axes in ((2, 3), (1,), (-1,), (0, 2))
    for keep in (0, 1)
} | {
    "sum": one("ReduceSum", constants={"axes": ints(1)}, keepdims=0),
    "product": one("ReduceProd", constants={"axes": ints(1)}, keepdims=0),
    "sum of all": one("ReduceSum", MATRIX, keepdims=0),
    "mean, axes as attribute": one("ReduceMean", opset=13, axes=[2, 3]),
    "euclidean norm": one("ReduceL2", MATRIX, constants={"axes": ints(-1)}),
    "place of the largest": one("ArgMax", axis=1, keepdims=0),
    "place of the smallest": one("ArgMin", MATRIX, axis=-1),
}  # fmt: skip

_UNARY = (
    "Abs Ceil Cos Exp Floor Neg Round Sign Sin Relu Sigmoid Tanh HardSwish HardSigmoid Elu LeakyRelu Softplus Identity"
)
POINTWISE = {operator: one(operator, convolved=True) for operator in _UNARY.split()} | {
    "HardSigmoid, a sixth": one("HardSigmoid", alpha=1 / 6),
    "LeakyRelu, 0.2": one("LeakyRelu", alpha=0.2),
    "Gelu": one("Gelu", opset=20),
    "Gelu, tanh": one("Gelu", opset=20, approximate="tanh"),
    "Mish": one("Mish"),
    "Reciprocal": one("Reciprocal"),
    "Clip to 6": one("Clip", constants={"lo": np.float32(0), "hi": np.float32(6)}),
    "Clip": one("Clip", constants={"lo": np.float32(-0.5), "hi": np.float32(0.25)}, convolved=True),
    "Clip from below": one("Clip", constants={"lo": np.float32(0.5)}),
    "Clip, old": one("Clip", opset=10, min=0.0, max=6.0),
    "PRelu by channel": one("PRelu", constants={"s": random(4, 1, 1)}, convolved=True),
    "PRelu, one slope": one("PRelu", MATRIX, constants={"s": random(1)}),
    "BatchNormalization": one(
        "BatchNormalization",
        constants={"s": random(4), "b": random(4), "m": random(4), "v": np.abs(random(4))},
        convolved=True,
    ),
    "BatchNormalization of rows": one(
        "BatchNormalization", MATRIX, constants={"s": random(5), "b": random(5), "m": random(5), "v": abs(random(5))}
    ),
    "LayerNormalization": one("LayerNormalization", (2, 3, 8), constants={"s": random(8), "b": random(8)}),
    "LayerNormalization, two axes": one(
        "LayerNormalization", (2, 3, 8), constants={"s": random(3, 8)}, axis=1
    ),
    "LayerNormalization, large epsilon": one(
        "LayerNormalization", (2, 3, 8), constants={"s": random(8), "b": random(8)}, epsilon=0.5
    ),
    "Softmax, opset 11": one("Softmax", opset=11),
    "InstanceNormalization": one("InstanceNormalization", constants={"s": random(4), "b": random(4)}),
    "Cast to int": one("Cast", to=onnx.TensorProto.INT32),
    "Dropout": one("Dropout"),
} | {
    f"{operator} {axis}, opset {opset}": one(operator, axis=axis, opset=opset, convolved=True)
    for operator in ("Softmax", "LogSoftmax")
    for axis in (1, 2, -1)
    for opset in (11, 13)
}  # fmt: skip

_SHAPES = {
    "same": (IMAGE, IMAGE),
    "by channel": (IMAGE, (4, 1, 1)),
    "by column": (IMAGE, (10,)),
    "number": (IMAGE, ()),
    "outwards": ((3, 1), (1, 5)),
    "gate": (IMAGE, (2, 4, 1, 1)),
}
BROADCAST = {
    f"{operator}, {name}": two(operator, *shapes)
    for operator in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Greater", "LessOrEqual", "Equal")
    for name, shapes in _SHAPES.items()
} | {
    f"{operator} after Conv, {name}": one(operator, constants={"c": random(*shapes[1])}, convolved=True)
    for operator in ("Add", "Mul", "Sub", "Div")
    for name, shapes in _SHAPES.items()
    if name != "outwards"
} | {
    "Pow 2": one("Pow", constants={"p": np.float32(2)}),
    "Pow 3": one("Pow", constants={"p": np.float32(3)}),
    "Add, int64": two("Add", (3,), (3,), dtype="int64"),
    "Mul, int32": two("Mul", (3, 2), (2,), dtype="int32"),
    "Sum": two("Sum", MATRIX, (5,)),
}  # fmt: skip

PRODUCTS = {
    "Gemm": one("Gemm", MATRIX, constants={"w": random(5, 7), "b": random(7)}),
    "Gemm, turned": one("Gemm", MATRIX, constants={"w": random(7, 5), "b": random(7)}, transB=1),
    "Gemm, scaled": one("Gemm", MATRIX, constants={"w": random(7, 5), "b": random(7)}, transB=1, alpha=0.5, beta=2.0),
    "Gemm, no bias": one("Gemm", MATRIX, constants={"w": random(7, 5)}, transB=1),
    "Gemm, both turned": one("Gemm", MATRIX, constants={"w": random(7, 3), "b": random(5, 7)}, transA=1, transB=1),
    "Gemm, bias of rows": one("Gemm", MATRIX, constants={"w": random(5, 7), "b": random(3, 7)}),
    "Gemm of two inputs": two("Gemm", MATRIX, (7, 5), transB=1),
    "MatMul": one("MatMul", MATRIX, constants={"w": random(5, 7)}),
    "MatMul of a stack": one("MatMul", (2, 3, 4, 5), constants={"w": random(5, 7)}),
    "MatMul of stacks": two("MatMul", (2, 3, 4, 5), (2, 3, 5, 6)),
    "MatMul, broadcast": two("MatMul", (2, 3, 4, 5), (3, 5, 6)),
    "MatMul of a vector": two("MatMul", (5,), (5, 6)),
    "MatMul by a vector": two("MatMul", (3, 4, 5), (5,)),
    "MatMul by a stack": one("MatMul", (2, 4, 5), constants={"w": random(2, 5, 7)}),
}

MOVEMENTS = {
    "Reshape": one("Reshape", constants={"s": ints(2, -1, 5)}, convolved=True),
    "Flatten": one("Flatten", axis=1, convolved=True),
    "Squeeze": one("Squeeze", (2, 1, 3, 1), constants={"a": ints(1, 3)}),
    "Squeeze, old": one("Squeeze", (2, 1, 3, 1), opset=11, axes=[3]),
    "Unsqueeze": one("Unsqueeze", MATRIX, constants={"a": ints(0, 3)}),
    "Transpose": one("Transpose", perm=[0, 3, 1, 2], convolved=True),
    "Transpose to channels last": one("Transpose", perm=[0, 2, 3, 1], convolved=True),
    "Transpose, all": one("Transpose", convolved=True),
    "Transpose, five axes": one("Transpose", (1, 2, 3, 4, 5), perm=[0, 1, 3, 4, 2]),
    "Concat channels": one("Concat", constants={"c": random(2, 3, 9, 10)}, axis=1, convolved=True),
    "Concat rows": one("Concat", constants={"c": random(1, 4, 9, 10)}, axis=0),
    "Split": one("Split", constants={"s": ints(2, 2)}, axis=1, outputs=2, convolved=True),
    "Split, uneven": one("Split", constants={"s": ints(1, 5, 3)}, axis=2, outputs=3, convolved=True),
    "Split, old": one("Split", opset=11, axis=1, split=[1, 3], outputs=2),
    "Slice": one("Slice", constants={"s": ints(1, 2), "e": ints(3, 100), "a": ints(1, -1)}, convolved=True),
    "Slice, steps": one("Slice", constants={"s": ints(1), "e": ints(9), "a": ints(2), "t": ints(3)}, convolved=True),
    "Slice, backwards": one("Slice", constants={"s": ints(-1), "e": ints(-100), "a": ints(3), "t": ints(-2)}),
    "Slice, from the end": one("Slice", constants={"s": ints(-3), "e": ints(-1), "a": ints(2)}),
    "Slice, old": one("Slice", opset=9, starts=[0, 1], ends=[1, 3], axes=[0, 1]),
    "Pad": one("Pad", constants={"p": ints(0, 1, 2, 0, 0, 0, 1, 3)}, convolved=True),
    "Pad with a number": one("Pad", constants={"p": ints(0, 0, 2, 0, 0, 0, 1, 3), "v": np.float32(1.5)}),
    "Pad, reflected": one("Pad", constants={"p": ints(0, 0, 2, 1, 0, 0, 1, 3)}, mode="reflect"),
    "Pad some axes": one("Pad", constants={"p": ints(1, 2), "v": np.float32(0), "a": ints(-1)}),
    "Pad, old": one("Pad", opset=10, pads=[0, 0, 1, 1, 0, 0, 1, 1]),
    "Gather": one("Gather", constants={"i": ints(0, -1, 2)}, axis=1),
    "Gather one": one("Gather", constants={"i": np.array(-2)}, axis=2, convolved=True),
    "Gather, two axes": one("Gather", MATRIX, constants={"i": np.array([[0, 1], [2, 2]])}),
    "Expand": one("Expand", (3, 1), constants={"s": ints(2, 1, 5)}),
    "Tile": one("Tile", MATRIX, constants={"r": ints(2, 3)}),
    "DepthToSpace": one("DepthToSpace", (1, 8, 3, 4), blocksize=2),
    "DepthToSpace, CRD": one("DepthToSpace", (1, 8, 3, 4), blocksize=2, mode="CRD"),
    "SpaceToDepth": one("SpaceToDepth", (1, 3, 4, 6), blocksize=2),
}


def resized(height: float, width: float, *, sizes: bool = False, **attributes) -> onnx.ModelProto:
    """Resize by factors, or to sizes."""
    if sizes:
        constants = {"r": floats(), "s": floats(), "z": ints(2, 4, int(height), int(width))}
    else:
        constants = {"r": floats(), "s": floats(1, 1, height, width)}
    return one("Resize", constants=constants, **attributes)


RESIZES = {
    "nearest, twice": resized(2, 2, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    "nearest, by default": resized(2, 3, mode="nearest"),
    "nearest, smaller": resized(5, 4, sizes=True, mode="nearest"),
    "nearest, odd factor": resized(1.7, 2.5, mode="nearest", coordinate_transformation_mode="asymmetric"),
    "nearest, corners": resized(13, 7, sizes=True, mode="nearest", coordinate_transformation_mode="align_corners"),
    "linear": resized(2, 2, mode="linear"),
    "linear, to sizes": resized(13, 17, sizes=True, mode="linear"),
    "linear, smaller": resized(5, 4, sizes=True, mode="linear"),
    "linear, asymmetric": resized(2, 2, mode="linear", coordinate_transformation_mode="asymmetric"),
    "linear, corners": resized(18, 15, sizes=True, mode="linear", coordinate_transformation_mode="align_corners"),
    "linear, as PyTorch": resized(
        18, 15, sizes=True, mode="linear", coordinate_transformation_mode="pytorch_half_pixel"
    ),
}

EXACT = CONVOLUTIONS | POOLS | REDUCTIONS | POINTWISE | BROADCAST | PRODUCTS | MOVEMENTS | RESIZES
