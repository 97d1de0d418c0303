"""Which nodes INT8 leaves in float, as eight bits a tensor cannot hold what they carry."""

from __future__ import annotations

import onnx

HEAVY = ("Conv", "ConvTranspose", "MatMul", "Gemm")
_NORMALISATIONS = (
    "LayerNormalization",
    "RMSNormalization",
    "SimplifiedLayerNormalization",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
)
_ACTIVATIONS = ("BiasGelu", "FastGelu", "Gelu", "Mul", "QuickGelu", "Relu", "Sigmoid", "Tanh")
_MIXING = ("Add", "Concat", "Div", "Exp", "Mul", "Pow", "Sigmoid", "Softmax", "Sub")


def sensitive_nodes(model: onnx.ModelProto) -> list[str]:
    """Names of the nodes that stay float.

    Two kinds. In a transformer, told by its layer normalisation, everything but matrix products and convolutions: a
    mask of -10,000 is added to attention scores of a few units, and the residual stream has channels a hundred times
    as large as others; and the products that read an activation function, whose outliers are as large. And what comes
    after the last heavy node on every path to an output, if it computes or joins: a detector's boxes in pixels and its
    scores in [0, 1] end in one tensor, whose step would be larger than a score.
    """
    nodes = model.graph.node
    if any(node.op_type in _NORMALISATIONS for node in nodes):
        activated = {output for node in nodes if node.op_type in _ACTIVATIONS for output in node.output}
        weights = {tensor.name for tensor in model.graph.initializer}
        return [
            node.name
            for node in nodes
            if node.op_type not in HEAVY or (node.input[0] in activated and node.input[1] in weights)
        ]
    feeding = _feeding_heavy(model.graph)
    tail = [node for node in nodes if node.op_type not in HEAVY and node.output[0] not in feeding]
    return [node.name for node in tail] if any(node.op_type in _MIXING for node in tail) else []


def _feeding_heavy(graph: onnx.GraphProto) -> set[str]:
    """Tensors that a heavy node reads, or that one of these is made from; nodes are in topological order."""
    found: set[str] = set()
    for node in reversed(graph.node):
        if node.op_type in HEAVY or not found.isdisjoint(node.output):
            found.update(node.input)
    return found
