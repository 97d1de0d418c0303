"""Activations in simpler operators, exactly as the standard defines them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx

from sanderling.model.rewriting import GraphView, Parts, attribute_of

_SELU = (1.67326319217681884765625, 1.05070102214813232421875)  # alpha and gamma, by default
_HARD_SIGMOID = (1 / 6, 0.5)  # slope and offset of the only hard sigmoid that converters know


def _hard_swish(node: onnx.NodeProto, graph: GraphView) -> list[onnx.NodeProto]:
    part = Parts(node, graph)
    slope, offset = _HARD_SIGMOID
    return part.finished(part("Mul", [node.input[0], part("HardSigmoid", [node.input[0]], alpha=slope, beta=offset)]))


def _hard_sigmoid(node: onnx.NodeProto, graph: GraphView) -> list[onnx.NodeProto] | None:
    slope, offset = attribute_of(node, "alpha", 0.2), attribute_of(node, "beta", 0.5)
    if np.allclose((slope, offset), _HARD_SIGMOID, rtol=1e-6):
        return None
    part = Parts(node, graph)
    line = part("Add", [part("Mul", [node.input[0], part.constant(slope)]), part.constant(offset)])
    return part.finished(part("Clip", [line, part.constant(0), part.constant(1)]))


def _gelu(node: onnx.NodeProto, graph: GraphView) -> list[onnx.NodeProto]:
    part, x = Parts(node, graph), node.input[0]
    if attribute_of(node, "approximate", b"none") == b"tanh":
        cube = part("Mul", [part("Mul", [x, x]), x])
        inner = part("Add", [x, part("Mul", [cube, part.constant(0.044715)])])
        bent = part("Tanh", [part("Mul", [inner, part.constant(math.sqrt(2 / math.pi))])])
    else:
        bent = part("Erf", [part("Div", [x, part.constant(math.sqrt(2))])])
    raised = part("Add", [bent, part.constant(1)])
    return part.finished(part("Mul", [part("Mul", [x, raised]), part.constant(0.5)]))


def _mish(node: onnx.NodeProto, graph: GraphView) -> list[onnx.NodeProto]:
    part, x = Parts(node, graph), node.input[0]
    return part.finished(part("Mul", [x, part("Tanh", [part("Softplus", [x])])]))


def _elu(node: onnx.NodeProto, graph: GraphView) -> list[onnx.NodeProto]:
    """Elu, Celu and Selu: factor · (max(x, 0) + alpha · (exp(min(x, 0) / slope) - 1))."""
    alpha, factor, slope = attribute_of(node, "alpha", 1.0), 1.0, 1.0
    if node.op_type == "Celu":
        slope = alpha
    if node.op_type == "Selu":
        alpha, factor = attribute_of(node, "alpha", _SELU[0]), attribute_of(node, "gamma", _SELU[1])
    part, x = Parts(node, graph), node.input[0]
    below = part.scaled(part("Min", [x, part.constant(0)]), 1 / slope)
    bent = part.scaled(part("Sub", [part("Exp", [below]), part.constant(1)]), alpha * factor)
    return part.finished(part("Add", [part.scaled(part("Relu", [x]), factor), bent]))


def _prelu(node: onnx.NodeProto, graph: GraphView) -> list[onnx.NodeProto]:
    part, (x, slope) = Parts(node, graph), node.input
    below = part("Mul", [part("Relu", [part("Neg", [x])]), slope])
    return part.finished(part("Sub", [part("Relu", [x]), below]))


COMPOSED: dict[str, Callable[[onnx.NodeProto, GraphView], list[onnx.NodeProto] | None]] = {
    "HardSwish": _hard_swish,
    "HardSigmoid": _hard_sigmoid,
    "Gelu": _gelu,
    "Mish": _mish,
    "Elu": _elu,
    "Celu": _elu,
    "Selu": _elu,
    "PRelu": _prelu,
}
