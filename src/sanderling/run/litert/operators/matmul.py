"""Gemm, MatMul: fully connected where the right side is constant."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sanderling.core.tensor import Array
from sanderling.run.litert.flatbuffer import Tensor
from sanderling.run.litert.graph import Node
from sanderling.run.litert.lowering import Ending, Lowering
from sanderling.run.litert.operators.convolution import Operands, operands
from sanderling.run.litert.operators.windows import Activation

_MATRIX = 2  # axes


def gemm(lowering: Lowering, node: Node) -> None:
    """``alpha * A @ B + beta * C``, A and B turned where asked."""
    alpha, beta = node.attributes.get("alpha", 1.0), node.attributes.get("beta", 1.0)
    turned_a, turned_b = bool(node.attributes.get("transA", 0)), bool(node.attributes.get("transB", 0))
    known = lowering.value(node.inputs[1]).constant is not None
    small = not node.has(2) or lowering.value(node.inputs[2]).constant is not None
    if known and small and not turned_a and _is_row(lowering, node):
        ending = lowering.ending(node)
        if (alpha, beta) != (1.0, 1.0):
            ending = replace(ending, quantization=None)  # computed as real numbers
        layer = operands(lowering, node, ending, 0 if turned_b else 1)
        if layer.quantization is None:
            weights = layer.weights * np.float32(alpha)
            layer = Operands(layer.image, weights, None, layer.bias * np.float32(beta), None, None)
        _fully_connected(lowering, node, layer, ending, turned=turned_b)
        return
    left, right = (lowering.tensor(lowering.real(name)) for name in node.inputs[:2])
    product = _product(lowering, left, right, node.shapes[0], turned_a, turned_b)
    product = _scaled(lowering, product, alpha)
    if node.has(2):
        addend = _scaled(lowering, lowering.tensor(lowering.real(node.inputs[2])), beta)
        product = lowering.emit("ADD", [product, addend], node.shapes[0], ("AddOptions", {}))
    lowering.define(node.outputs[0], node.shapes[0], product)


def matmul(lowering: Lowering, node: Node) -> None:
    """A product of matrices, or of stacks of them."""
    left, right = lowering.value(node.inputs[0]), lowering.value(node.inputs[1])
    if right.constant is not None and len(right.shape) == _MATRIX and len(left.shape) >= _MATRIX:
        ending = lowering.ending(node)
        layer = operands(lowering, node, ending, 1)
        _fully_connected(lowering, node, layer, ending, turned=False)
        return
    tensors = [lowering.tensor(lowering.real(name)) for name in node.inputs]
    if len(tensors[0].shape) == 1:
        tensors[0] = lowering.reshape(tensors[0], (1, *tensors[0].shape))
    if len(tensors[1].shape) == 1:
        tensors[1] = lowering.reshape(tensors[1], (*tensors[1].shape, 1))
    stacked = np.broadcast_shapes(tensors[0].shape[:-2], tensors[1].shape[:-2])
    shape = (*stacked, tensors[0].shape[-2], tensors[1].shape[-1])
    rank = len(shape)
    tensors = [
        lowering.reshape(tensor, (1,) * (rank - len(tensor.shape)) + tensor.shape)
        if len(tensor.shape) < rank
        else tensor
        for tensor in tensors
    ]
    product = _product(lowering, tensors[0], tensors[1], shape, turned_a=False, turned_b=False)
    if shape != node.shapes[0]:
        product = lowering.reshape(product, node.shapes[0])
    lowering.define(node.outputs[0], node.shapes[0], product)


def _is_row(lowering: Lowering, node: Node) -> bool:
    """Whether what Gemm adds is one row, a number, or nothing."""
    if not node.has(2):
        return True
    shape = lowering.value(node.inputs[2]).shape
    return all(size == 1 for size in shape[:-1])


def _fully_connected(lowering: Lowering, node: Node, layer: Operands, ending: Ending, *, turned: bool) -> None:
    weights: Array = layer.weights if turned else layer.weights.T
    result = lowering.emit(
        "FULLY_CONNECTED",
        [
            lowering.tensor(layer.image),
            lowering.constant(weights, layer.weights_quantization and layer.weights_quantization.along(0)),
            lowering.constant(layer.bias, layer.bias_quantization),
        ],
        node.shapes[0],
        (
            "FullyConnectedOptions",
            {"fusedActivationFunction": Activation[ending.activation], "keepNumDims": len(node.shapes[0]) != _MATRIX},
        ),
        quantization=layer.quantization,
    )
    lowering.define(ending.name, node.shapes[0], result)


def _product(
    lowering: Lowering, left: Tensor, right: Tensor, shape: tuple[int, ...], turned_a: bool, turned_b: bool
) -> Tensor:
    return lowering.emit(
        "BATCH_MATMUL", [left, right], shape, ("BatchMatMulOptions", {"adjX": turned_a, "adjY": turned_b})
    )


def _scaled(lowering: Lowering, tensor: Tensor, factor: float) -> Tensor:
    if factor == 1:
        return tensor
    factors = lowering.constant(np.array(factor, np.float32))
    return lowering.emit("MUL", [tensor, factors], tensor.shape, ("MulOptions", {}))


WRITERS = {"Gemm": gemm, "MatMul": matmul}
