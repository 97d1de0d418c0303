"""Activations, softmax included."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from sanderling.run.litert.flatbuffer import Tensor
from sanderling.run.litert.graph import Node
from sanderling.run.litert.layout import Layout, place_of
from sanderling.run.litert.lowering import Lowering, Writer
from sanderling.run.litert.operators.elementwise import aligned
from sanderling.run.litert.values import Value

_SINCE_AXIS_IS_ALONE = 13  # opset; before, Softmax flattened all axes from its own on

Pointwise = Callable[[Lowering, Node, Tensor], Tensor]


def pointwise(lowering: Lowering, node: Node, write: Pointwise) -> None:
    """An activation of each element by itself."""
    value = lowering.real(node.inputs[0])
    if value.dtype != "float32":
        raise node.refused(f"{value.dtype} has no exact form")
    tensor, layout = lowering.any_form(value)
    lowering.define(node.outputs[0], node.shapes[0], write(lowering, node, tensor), layout)


def _same(lowering: Lowering, _node: Node, tensor: Tensor, code: str) -> Tensor:
    return lowering.like(code, [tensor], tensor.shape)


def _with(lowering: Lowering, code: str, tensor: Tensor, number: float) -> Tensor:
    """An operator of a tensor and a number."""
    table = {"ADD": "AddOptions", "MUL": "MulOptions"}.get(code, "MaximumMinimumOptions")
    return lowering.like(code, [tensor, lowering.constant(np.array(number, np.float32))], tensor.shape, (table, {}))


def _bounded(lowering: Lowering, tensor: Tensor, low: float, high: float) -> Tensor:
    if (low, high) in ((0, 6), (0, np.inf)):
        return lowering.like("RELU6" if high == 6 else "RELU", [tensor], tensor.shape)
    if low != -np.inf:
        tensor = _with(lowering, "MAXIMUM", tensor, low)
    return tensor if high == np.inf else _with(lowering, "MINIMUM", tensor, high)


def _clip(lowering: Lowering, node: Node, tensor: Tensor) -> Tensor:
    return _bounded(lowering, tensor, *lowering.clip_range(node))


def _leaky_relu(lowering: Lowering, node: Node, tensor: Tensor) -> Tensor:
    alpha = node.attributes.get("alpha", 0.01)
    return lowering.like("LEAKY_RELU", [tensor], tensor.shape, ("LeakyReluOptions", {"alpha": alpha}))


def _hard_sigmoid(lowering: Lowering, node: Node, tensor: Tensor) -> Tensor:
    scaled = _with(lowering, "MUL", tensor, node.attributes.get("alpha", 0.2))
    return _bounded(lowering, _with(lowering, "ADD", scaled, node.attributes.get("beta", 0.5)), 0, 1)


def _elu(lowering: Lowering, node: Node, tensor: Tensor) -> Tensor:
    if node.attributes.get("alpha", 1.0) != 1:
        raise node.refused(f"alpha is {node.attributes['alpha']}: only 1 has an exact form")
    return lowering.like("ELU", [tensor], tensor.shape)


def _gelu(lowering: Lowering, node: Node, tensor: Tensor) -> Tensor:
    approximate = node.attributes.get("approximate", b"none") == b"tanh"
    return lowering.like("GELU", [tensor], tensor.shape, ("GeluOptions", {"approximate": approximate}))


def _softplus(lowering: Lowering, _node: Node, tensor: Tensor) -> Tensor:
    """``max(x, 0) + log(1 + exp(-|x|))``, which does not overflow."""
    shape = tensor.shape
    falling = lowering.like("NEG", [lowering.like("ABS", [tensor], shape, ("AbsOptions", {}))], shape)
    grown = _with(lowering, "ADD", lowering.like("EXP", [falling], shape, ("ExpOptions", {})), 1)
    rest = lowering.like("LOG", [grown], shape)
    return lowering.like("ADD", [lowering.like("RELU", [tensor], shape), rest], shape, ("AddOptions", {}))


def _mish(lowering: Lowering, node: Node, tensor: Tensor) -> Tensor:
    gate = lowering.like("TANH", [_softplus(lowering, node, tensor)], tensor.shape)
    return lowering.like("MUL", [tensor, gate], tensor.shape, ("MulOptions", {}))


def prelu(lowering: Lowering, node: Node) -> None:
    """A slope for negative elements, broadcast."""
    values = [lowering.real(name) for name in node.inputs]
    if values[0].shape != node.shapes[0]:
        raise node.refused("its slope has more elements than its input")
    (tensor, slope), layout = aligned(lowering, values, len(node.shapes[0]))
    lowering.define(node.outputs[0], node.shapes[0], lowering.like("PRELU", [tensor, slope], tensor.shape), layout)


def softmax(lowering: Lowering, node: Node, code: str) -> None:
    """Along one axis, which TFLite wants last; opsets before 13 flatten what follows it."""
    value, rank = lowering.real(node.inputs[0]), len(node.shapes[0])
    flattens = node.opset < _SINCE_AXIS_IS_ALONE
    axis = node.attributes.get("axis", 1 if flattens else -1) % rank
    if flattens:
        sizes = (math.prod(value.shape[:axis]), math.prod(value.shape[axis:]))
        flat = lowering.reshape(lowering.tensor(value), sizes)
        result = _last(lowering, flat, code)
        lowering.define(node.outputs[0], node.shapes[0], lowering.reshape(result, value.shape))
        return
    layout = next((found for found in value.forms if place_of(axis, rank, found) == rank - 1), Layout.GRAPH)
    tensor = lowering.tensor(value, layout)
    if place_of(axis, rank, layout) == rank - 1:
        lowering.define(node.outputs[0], node.shapes[0], _last(lowering, tensor, code), layout)
        return
    swap = list(range(rank))
    swap[axis], swap[-1] = swap[-1], swap[axis]
    turned = _last(lowering, lowering.transpose(tensor, swap), code)
    lowering.define(node.outputs[0], node.shapes[0], lowering.transpose(turned, swap))


def _last(lowering: Lowering, tensor: Tensor, code: str) -> Tensor:
    options = ("SoftmaxOptions", {"beta": 1.0}) if code == "SOFTMAX" else ("LogSoftmaxOptions", {})
    return lowering.like(code, [tensor], tensor.shape, options)


def erf(lowering: Lowering, node: Node) -> None:
    """``erf(x / sqrt 2)`` inside an exact GELU; TFLite has no kernel for erf alone."""
    chain = lowering.gelu_around(node)
    if chain is None:
        raise node.refused("it has an exact form only as part of GELU, x * (1 + erf(x / sqrt 2)) / 2")
    value: Value = lowering.real(chain.source)
    tensor, layout = lowering.any_form(value)
    result = lowering.like("GELU", [tensor], tensor.shape, ("GeluOptions", {"approximate": False}))
    lowering.define(chain.name, value.shape, result, layout)


_POINTWISE: dict[str, Pointwise] = {
    "Clip": _clip,
    "Elu": _elu,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": partial(_same, code="HARD_SWISH"),
    "LeakyRelu": _leaky_relu,
    "Mish": _mish,
    "Relu": partial(_same, code="RELU"),
    "Sigmoid": partial(_same, code="LOGISTIC"),
    "Softplus": _softplus,
    "Tanh": partial(_same, code="TANH"),
}
WRITERS: dict[str, Writer] = {
    **{operator: partial(pointwise, write=write) for operator, write in _POINTWISE.items()},
    "Erf": erf,
    "LogSoftmax": partial(softmax, code="LOG_SOFTMAX"),
    "PRelu": prelu,
    "Softmax": partial(softmax, code="SOFTMAX"),
}
