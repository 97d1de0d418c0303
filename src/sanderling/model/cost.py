"""What one run of a graph costs: multiply–accumulates, weight bytes, activation bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx

from sanderling.core.errors import ModelError, first_line
from sanderling.model.graph import input_specs, lifted, set_shape, tensor_spec, weight_bytes

Shape = tuple[int, ...]
_HEAVY_BUT_NOT_COUNTED = {
    "Einsum",
    "Attention",
    "MultiHeadAttention",
    "GroupQueryAttention",
    "Loop",
    "If",
    "Scan",
}


@dataclass(frozen=True)
class NodeCost:
    """Cost of one node: multiply–accumulates, and the bytes of its weights and outputs."""

    name: str
    op_type: str
    macs: int
    weight_bytes: int
    output_bytes: int


@dataclass(frozen=True)
class GraphCost:
    """Cost of one run.

    Attributes:
        nodes: in execution order.
        peak_activation_bytes: most bytes of inputs and intermediate tensors alive at once, in that order.
        assumed: dynamic axes and the size taken for each.
        unknown: nodes whose cost could not be told, as ``OpType name``.
    """

    nodes: tuple[NodeCost, ...]
    peak_activation_bytes: int
    assumed: dict[str, int]
    unknown: tuple[str, ...]

    @property
    def macs(self) -> int:
        """Multiply–accumulates of the whole graph."""
        return sum(node.macs for node in self.nodes)

    @property
    def moved_bytes(self) -> int:
        """Weight bytes plus output bytes of all nodes."""
        return sum(node.weight_bytes + node.output_bytes for node in self.nodes)

    @property
    def compute_density(self) -> float:
        """MACs per byte moved."""
        return self.macs / self.moved_bytes if self.moved_bytes else 0.0


def graph_cost(model: onnx.ModelProto) -> GraphCost:
    """Count the cost of one run with every dynamic axis taken as 1.

    Raises:
        ModelError: the graph's shapes contradict each other.
    """
    sized, assumed = _with_sizes(model)
    values = _values(sized)
    initializers = {tensor.name: tensor for tensor in sized.graph.initializer}
    shapes = {name: shape for name, (shape, _) in values.items()}
    shapes |= {name: tuple(tensor.dims) for name, tensor in initializers.items()}
    nodes, unknown = [], []
    charged: set[str] = set()
    for node in sized.graph.node:
        macs = _macs(node, shapes)
        if macs is None:
            unknown.append(f"{node.op_type} {node.name}".strip())
        read = {name for name in node.input if name in initializers} - charged
        charged |= read
        nodes.append(
            NodeCost(
                name=node.name or (node.output[0] if node.output else ""),
                op_type=node.op_type,
                macs=macs or 0,
                weight_bytes=sum(weight_bytes(initializers[name]) for name in read),
                output_bytes=sum(_bytes(values, name) for name in node.output),
            )
        )
    return GraphCost(tuple(nodes), _peak_bytes(sized.graph, values), assumed, tuple(unknown))


def _with_sizes(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, int]]:
    sized = lifted(model)
    assumed: dict[str, int] = {}
    specs = {spec.name: spec for spec in input_specs(sized)}
    for value in sized.graph.input:
        if value.name in specs:
            spec = specs[value.name]
            assumed |= {str(spec.shape[axis]): 1 for axis in spec.dynamic_axes}
            set_shape(value, spec.concrete_shape())
    for value in sized.graph.output:
        value.type.tensor_type.ClearField("shape")
    del sized.graph.value_info[:]
    try:
        return onnx.shape_inference.infer_shapes(sized, data_prop=True), assumed
    except (onnx.shape_inference.InferenceError, ValueError) as error:
        raise ModelError(f"the model's shapes contradict each other: {first_line(error)}") from error


def _values(model: onnx.ModelProto) -> dict[str, tuple[Shape, int]]:
    """Concrete shape and bytes per element of every value whose shape is known."""
    known = {}
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        if not value.type.tensor_type.HasField("shape"):
            continue
        spec = tensor_spec(value)
        if not spec.dynamic_axes:
            width = int(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).itemsize)
            known[value.name] = (spec.concrete_shape(), width)
    return known


def _bytes(values: Mapping[str, tuple[Shape, int]], name: str) -> int:
    shape, width = values.get(name, ((0,), 0))
    return math.prod(shape) * width


def _peak_bytes(graph: onnx.GraphProto, values: Mapping[str, tuple[Shape, int]]) -> int:
    last_use = {value.name: len(graph.node) for value in graph.output}
    for position, node in enumerate(graph.node):
        for name in node.input:
            last_use[name] = max(position, last_use.get(name, -1))
    initializers = {tensor.name for tensor in graph.initializer}
    alive = {value.name for value in graph.input if value.name not in initializers}
    peak = current = sum(_bytes(values, name) for name in alive)
    for position, node in enumerate(graph.node):
        for name in node.output:
            if name not in alive:
                alive.add(name)
                current += _bytes(values, name)
        peak = max(peak, current)
        for name in {*node.input, *node.output} & alive:
            if last_use.get(name, position) <= position:
                alive.discard(name)
                current -= _bytes(values, name)
    return peak


def _macs(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> int | None:
    """Multiply–accumulates of one node; None when they cannot be told."""
    if node.op_type in _HEAVY_BUT_NOT_COUNTED:
        return None
    count = _COUNTERS.get(node.op_type)
    if count is None:
        return 0
    try:
        macs = count(node, shapes)
    except (KeyError, IndexError, ValueError):
        return None
    return macs if macs >= 0 else None  # an axis taken as 1 can be smaller than the kernel


def _conv(node: onnx.NodeProto, shapes: Mapping[str, Shape], *, weight: int = 1) -> int:
    kernel = shapes[node.input[weight]]  # (C_out, C_in / group, k...)
    return math.prod(shapes[node.output[0]]) * math.prod(kernel[1:])


def _conv_transpose(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> int:
    kernel = shapes[node.input[1]]  # (C_in, C_out / group, k...)
    return math.prod(shapes[node.input[0]]) * math.prod(kernel[1:])


def _matmul(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> int:
    return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]


def _gemm(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> int:
    transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][0 if transposed else 1]


def _recurrent(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> int:
    length, batch, features = shapes[node.input[0]]
    directions, gates, _ = shapes[node.input[1]]  # (directions, gates * hidden, features)
    hidden = shapes[node.input[2]][2]
    return length * batch * directions * gates * (features + hidden)


_COUNTERS: dict[str, Callable[[onnx.NodeProto, Mapping[str, Shape]], int]] = {
    "Conv": _conv,
    "FusedConv": _conv,
    "ConvInteger": _conv,
    "QLinearConv": lambda node, shapes: _conv(node, shapes, weight=3),
    "ConvTranspose": _conv_transpose,
    "MatMul": _matmul,
    "FusedMatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "MatMulNBits": _matmul,
    "Gemm": _gemm,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
}

COUNTED = frozenset(_COUNTERS)
"""Operators that have multiply–accumulates to count."""
