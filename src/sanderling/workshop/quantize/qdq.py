"""Insert QuantizeLinear and DequantizeLinear where a scheme says so.

A tensor has an eight-bit form when an INT8 block makes it or reads it. INT8 blocks read that form; a float node reads
it only where nothing else was kept, so a residual stream can stay float beside the INT8 convolutions that read it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from sanderling.model.graph import all_nodes, initializer_array, sorted_nodes, subgraph_names, used_names
from sanderling.workshop.quantize.blocks import PASSING, Block, find_blocks
from sanderling.workshop.quantize.thresholds import Range
from sanderling.workshop.quantize.weights import Float, QuantizedWeight, output_axis, round_to_nearest, widened

_QUANTIZED = (
    "QuantizeLinear",
    "DequantizeLinear",
    "QLinearConv",
    "QLinearMatMul",
    "ConvInteger",
    "MatMulInteger",
)
_LEVELS = 255
_LARGEST_BIAS = 2**31 - 1
_SLACK = 0.5


@dataclass(frozen=True)
class Scheme:
    """Everything that says how a graph is quantised.

    Attributes:
        ranges: lowest and highest value that each activation's eight bits cover.
        float_blocks: names of blocks that stay float.
        weights: eight-bit weights by block; the others are rounded to nearest.
    """

    ranges: Mapping[str, Range]
    float_blocks: frozenset[str] = frozenset()
    weights: Mapping[str, QuantizedWeight] = field(default_factory=dict)


def is_quantized(model: onnx.ModelProto) -> bool:
    """Whether the graph already computes in integers or carries Q/DQ nodes."""
    return any(node.op_type in _QUANTIZED for node in model.graph.node)


def quantized_blocks(model: onnx.ModelProto, scheme: Scheme) -> list[Block]:
    """The blocks that become INT8, in the graph's order.

    A heavy block does when the ranges of what it reads and makes are known. A light one does when something that it
    reads is in eight bits already: rounding a float tensor for it would cost accuracy and gain nothing.
    """
    chosen: list[Block] = []
    made: set[str] = set()
    for block in find_blocks(model):
        follows = block.heavy or not made.isdisjoint(block.inputs)
        if follows and block.name not in scheme.float_blocks and block.fits(scheme.ranges):
            chosen.append(block)
            made.update(block.outputs)
    return chosen


def to_int8(model: onnx.ModelProto, scheme: Scheme) -> onnx.ModelProto:
    """Quantise weights to int8 per output channel (symmetric) and activations to uint8 per tensor.

    Args:
        model: simplified FP32 graph with named nodes; it is left alone.
        scheme: what to quantise, and how.

    Source: ONNX operators QuantizeLinear and DequantizeLinear, opset 13.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return sorted_nodes(_Inserter(copy, quantized_blocks(model, scheme), scheme).insert())


def parameters(span: Range) -> tuple[np.float32, np.uint8]:
    """Scale and zero point of uint8 that cover a range; 0 is always exact."""
    low, high = min(span[0], 0.0), max(span[1], 0.0)
    scale = np.float32((high - low) / _LEVELS)
    if not scale >= np.finfo(np.float32).tiny:
        return np.float32(1), np.uint8(0)
    return scale, np.uint8(np.clip(np.round(-low / scale), 0, _LEVELS))


class _Inserter:
    """One graph on its way to INT8."""

    def __init__(self, model: onnx.ModelProto, blocks: Sequence[Block], scheme: Scheme) -> None:
        self._graph, self._blocks, self._scheme = model.graph, blocks, scheme
        self._model = model
        self._nodes = {node.name: node for node in model.graph.node}
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self._names = used_names(model.graph) | {name for node in all_nodes(model.graph) for name in node.output}
        self._names |= {value.name for value in (*model.graph.input, *model.graph.initializer)}
        self._ranges = dict(scheme.ranges)
        self._readable: dict[str, str] = {}  # tensor to the name of its dequantised form
        self._weights: dict[tuple[str, int], tuple[str, QuantizedWeight]] = {}
        self._scales: dict[str, np.float32] = {}
        self._new: list[onnx.NodeProto] = []

    def insert(self) -> onnx.ModelProto:
        """Quantise every block, and let float nodes read what INT8 blocks make."""
        made = {name for block in self._blocks for name in block.outputs}
        for block in self._blocks:
            if block.op_type in PASSING:  # it moves values, so what it makes keeps their scale
                self._ranges |= dict.fromkeys(block.outputs, self._ranges[block.inputs[0]])
        self._absorb_activations()
        self._keep_output_names(made)
        quantized = {block.name for block in self._blocks}
        for node in self._graph.node:
            if node.name not in quantized:
                for index, name in enumerate(node.input):
                    if name in made:
                        node.input[index] = self._dequantized(name)
        for block in self._blocks:
            self._quantize(block)
            for name in block.outputs:
                self._dequantized(name)
        self._graph.node.extend(self._new)
        _drop_unread(self._graph)
        return self._model

    def _absorb_activations(self) -> None:
        """Drop each Relu or Clip whose bounds the eight bits enforce."""
        dropped = set()
        for block in self._blocks:
            if block.activation and self._enforced(block):
                self._nodes[block.name].output[0] = block.outputs[0]
                dropped.add(block.activation)
        kept = [_copied(node) for node in self._graph.node if node.name not in dropped]
        del self._graph.node[:]
        self._graph.node.extend(kept)
        self._nodes = {node.name: node for node in self._graph.node}

    def _enforced(self, block: Block) -> bool:
        scale, zero_point = parameters(self._ranges[block.outputs[0]])
        low, high = -float(scale) * int(zero_point), float(scale) * (_LEVELS - int(zero_point))
        activation = self._nodes[block.activation]
        if activation.op_type == "Relu":
            return low >= 0.0
        bounds = [self._constants.get(name) for name in activation.input[1:] if name]
        if len(activation.input) != 3 or not all(activation.input[1:]) or not all(bounds):
            return False
        least, most = (float(initializer_array(bound).item()) for bound in bounds if bound is not None)
        slack = _SLACK * float(scale)
        return low >= least - slack and high <= most + slack

    def _keep_output_names(self, made: set[str]) -> None:
        """What the graph returns, or a subgraph reads, is what is dequantised: what makes it gets another name."""
        kept = subgraph_names(self._graph) | {value.name for value in self._graph.output}
        for name in sorted(kept & made):
            maker = next(node for node in self._graph.node if name in node.output)
            raw = self._fresh(f"{name}_float")
            maker.output[list(maker.output).index(name)] = raw
            self._store(name, raw, name)

    def _quantize(self, block: Block) -> None:
        node = self._nodes[block.name]
        for index, name in enumerate(node.input):
            if name in block.inputs or name in block.constants:
                node.input[index] = self._dequantized(name)
        if block.weight:
            self._quantize_weight(block, node)

    def _dequantized(self, name: str) -> str:
        """Name of a tensor's dequantised form, which is made when it is asked for the first time."""
        if name not in self._readable:
            if name in self._constants:
                array = initializer_array(self._constants[name])
                self._ranges[name] = (float(array.min()), float(array.max()))
            self._store(name, name, self._fresh(f"{name}_dequantized"))
        return self._readable[name]

    def _store(self, name: str, source: str, readable: str) -> None:
        scale, zero_point = parameters(self._ranges[name])
        arguments = [self._constant(f"{name}_scale", scale), self._constant(f"{name}_zero_point", zero_point)]
        stored = self._fresh(f"{name}_quantized")
        self._new.append(_node("QuantizeLinear", [source, *arguments], stored))
        self._new.append(_node("DequantizeLinear", [stored, *arguments], readable))
        self._readable[name], self._scales[name] = readable, scale

    def _quantize_weight(self, block: Block, node: onnx.NodeProto) -> None:
        """Store the weight in eight bits, and the bias in 32 with the scale that the sums have."""
        array = initializer_array(self._constants[block.weight])
        weight = self._scheme.weights.get(block.name)
        weight = weight or round_to_nearest(array, axis=output_axis(node, array))
        bias = initializer_array(self._constants[node.input[2]]) if len(node.input) > 2 and node.input[2] else None
        step = np.float64(self._scales[block.inputs[0]])
        if bias is not None:
            weight = widened(weight, np.abs(bias) / (step * _LARGEST_BIAS))
        node.input[1] = self._dequantized_weight(block.weight, weight)
        if bias is not None:
            node.input[2] = self._dequantized_bias(node.input[2], bias, weight, step)

    def _dequantized_weight(self, name: str, weight: QuantizedWeight) -> str:
        readable, present = self._weights.get((name, weight.axis), ("", weight))
        if readable and np.array_equal(present.values, weight.values) and np.array_equal(present.scale, weight.scale):
            return readable
        arguments = [
            self._constant(f"{name}_quantized", weight.values),
            self._constant(f"{name}_scale", weight.scale),
            self._constant(f"{name}_zero_point", np.zeros(weight.scale.shape, np.int8)),
        ]
        readable = self._fresh(f"{name}_dequantized")
        self._new.append(_node("DequantizeLinear", arguments, readable, axis=weight.axis))
        self._weights[name, weight.axis] = readable, weight
        return readable

    def _dequantized_bias(self, name: str, bias: Float, weight: QuantizedWeight, step: np.float64) -> str:
        scale = (step * np.resize(weight.scale, bias.shape)).astype(np.float32)  # groups of a ConvTranspose share it
        values = np.clip(np.round(bias / scale.astype(np.float64)), -_LARGEST_BIAS, _LARGEST_BIAS).astype(np.int32)
        arguments = [
            self._constant(f"{name}_quantized", values),
            self._constant(f"{name}_scale", scale),
            self._constant(f"{name}_zero_point", np.zeros(scale.shape, np.int32)),
        ]
        readable = self._fresh(f"{name}_dequantized")
        self._new.append(_node("DequantizeLinear", arguments, readable, axis=0))
        return readable

    def _constant(self, name: str, value: npt.NDArray[np.generic] | np.generic) -> str:
        name = self._fresh(name)
        self._graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def _fresh(self, name: str) -> str:
        candidates = (name if count == 0 else f"{name}_{count}" for count in itertools.count())
        fresh = next(candidate for candidate in candidates if candidate not in self._names)
        self._names.add(fresh)
        return fresh


def _node(op_type: str, inputs: Sequence[str], output: str, axis: int | None = None) -> onnx.NodeProto:
    node = helper.make_node(op_type, inputs, [output], name=f"{output}_{op_type}")
    if axis is not None:
        node.attribute.append(helper.make_attribute("axis", axis))
    return node


def _copied(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


def _drop_unread(graph: onnx.GraphProto) -> None:
    """Drop eight-bit forms that nobody reads, and float weights and biases that eight bits replace."""
    for kind in ("DequantizeLinear", "QuantizeLinear"):  # the latter is unread once the former is gone
        read = used_names(graph)
        nodes = [_copied(node) for node in graph.node if node.op_type != kind or node.output[0] in read]
        del graph.node[:]
        graph.node.extend(nodes)
    read = used_names(graph)
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    tensors = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in kept]
    del graph.initializer[:]
    graph.initializer.extend(tensors)
