"""The units that INT8 takes or leaves: a node, together with the activation function that only it feeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from sanderling.model.graph import initializer_array, subgraph_names
from sanderling.workshop.quantize.thresholds import Range
from sanderling.workshop.quantize.weights import output_axis

HEAVY = ("Conv", "ConvTranspose", "MatMul", "Gemm")
PASSING = ("MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split")
_JOINING = ("Add", "Mul", "Concat")
_SINGLE = ("AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid", "Resize", "Relu", "Clip", "Pad")
_ACTIVATIONS = ("Relu", "Clip")


@dataclass(frozen=True)
class Block:
    """A unit that is quantised as a whole.

    Attributes:
        name: of its first node.
        op_type: of its first node.
        activation: name of the Relu or Clip that follows, or empty.
        inputs: activations that it reads in eight bits.
        constants: float initialisers that it reads in eight bits, besides a weight and a bias.
        weight: initialiser of a heavy block's weight, or empty.
        outputs: what it makes, after the activation.
    """

    name: str
    op_type: str
    activation: str
    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    weight: str
    outputs: tuple[str, ...]

    @property
    def heavy(self) -> bool:
        """Whether it multiplies matrices or convolves."""
        return self.op_type in HEAVY

    def fits(self, ranges: Mapping[str, Range]) -> bool:
        """Whether every tensor that would be stored in eight bits has a known range."""
        stored = (*self.inputs, *(() if self.op_type in PASSING else self.outputs))
        return all(name in ranges and np.isfinite(ranges[name]).all() for name in stored)


def find_blocks(model: onnx.ModelProto) -> list[Block]:
    """Every unit that INT8 could take, in the graph's order.

    Args:
        model: simplified FP32 graph whose nodes have names, each its own.
    """
    graph = model.graph
    floats = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT}
    constants = {tensor.name for tensor in graph.initializer}
    following = _activations(graph)
    taken = {activation.name for activation in following.values()}
    blocks = []
    for node in graph.node:
        if node.name in taken or not _quantizes(node, floats):
            continue
        read = _read(node)
        activation = following.get(node.output[0])
        blocks.append(
            Block(
                name=node.name,
                op_type=node.op_type,
                activation=activation.name if activation else "",
                inputs=tuple(name for name in read if name not in constants),
                constants=tuple(name for name in read if name in floats),
                weight=node.input[1] if node.op_type in HEAVY and node.input[1] in floats else "",
                outputs=tuple(activation.output if activation else (name for name in node.output if name)),
            )
        )
    return blocks


def _activations(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """Per tensor that a Relu, or a Clip with constant bounds, alone reads: that node."""
    uses = Counter(name for node in graph.node for name in node.input)
    makers = {name: node for node in graph.node for name in node.output}
    constants = {tensor.name for tensor in graph.initializer}
    kept = {value.name for value in graph.output} | subgraph_names(graph)
    found = {}
    for node in graph.node:
        source = node.input[0] if node.input else ""
        maker = makers.get(source)
        if node.op_type not in _ACTIVATIONS or maker is None or maker.op_type not in (*HEAVY, *_JOINING):
            continue
        if uses[source] == 1 and source not in kept and constants.issuperset(filter(None, node.input[1:])):
            found[source] = node
    return found


def _read(node: onnx.NodeProto) -> tuple[str, ...]:
    """Inputs that carry data, but for the weight and bias of a heavy node."""
    if node.op_type == "MatMul" or node.op_type in _JOINING:
        return tuple(node.input)
    return (node.input[0],)


def _quantizes(node: onnx.NodeProto, floats: Mapping[str, onnx.TensorProto]) -> bool:
    """Whether the node is of a kind and form that computes in integers."""
    if node.domain not in ("", "ai.onnx") or not node.output:
        return False
    if node.op_type in HEAVY:
        return _heavy_fits(node, floats)
    if node.op_type == "Pad":
        mode = next((attribute.s for attribute in node.attribute if attribute.name == "mode"), b"constant")
        return mode != b"constant" or len(node.input) < 3 or not node.input[2]
    if node.op_type == "MaxPool":
        return len(node.output) == 1  # with places of the largest, it is not computed in integers
    if node.op_type in _JOINING:
        return all(_finite(floats[name]) for name in node.input if name in floats)
    return node.op_type in (*PASSING, *_SINGLE)


def _heavy_fits(node: onnx.NodeProto, floats: Mapping[str, onnx.TensorProto]) -> bool:
    weight, bias = node.input[1], node.input[2] if len(node.input) > 2 else ""
    if node.input[0] in floats or (weight not in floats and node.op_type != "MatMul"):
        return False
    if weight in floats and (len(floats[weight].dims) < 2 or not _finite(floats[weight])):
        return False
    if not bias:
        return True
    if node.op_type == "Gemm":
        attributes = {attribute.name: attribute for attribute in node.attribute}
        plain = all(attributes[name].f == 1.0 for name in ("alpha", "beta") if name in attributes)
        channels = floats[weight].dims[output_axis(node, initializer_array(floats[weight]))]
        return plain and bias in floats and list(floats[bias].dims) == [channels] and _finite(floats[bias])
    return bias in floats and _finite(floats[bias])


def _finite(tensor: onnx.TensorProto) -> bool:
    return bool(np.isfinite(initializer_array(tensor)).all())
