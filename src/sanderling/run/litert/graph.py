"""An ONNX graph with all shapes fixed: nodes in order, constants folded, shapes and dtypes inferred node by node."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from sanderling.core.errors import ModelError, first_line
from sanderling.core.tensor import Array

if TYPE_CHECKING:
    import onnx

_KEPT_FOLDED = ("QuantizeLinear", "DequantizeLinear")  # of constants: their codes are what is written
_LARGEST_TOLD = 1024  # elements of a constant that shape inference may look at
_DEFAULT_DOMAINS = ("", "ai.onnx")


class ContradictionError(ModelError):
    """Shapes or dtypes inside the graph do not fit each other, with the inputs' sizes at hand."""


@dataclass(frozen=True, eq=False)
class Node:
    """One operator of the ONNX graph that computes something.

    Attributes:
        inputs: names; empty for an optional one that is left out.
        shapes: of its outputs.
        dtypes: of its outputs, NumPy's names.
        opset: of the graph; the meaning of some operators depends on it.
    """

    operator: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    opset: int

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"{self.operator} ('{self.name or self.outputs[0]}')"

    def has(self, position: int) -> bool:
        """Whether the optional input at ``position`` is given."""
        return len(self.inputs) > position and bool(self.inputs[position])

    def refused(self, reason: str) -> ModelError:
        """The error that says why it cannot be written."""
        return ModelError(f"operator {self.label}: {reason}")


@dataclass(eq=False)
class Graph:
    """What is left of an ONNX graph after folding.

    Attributes:
        inputs: shape and dtype by name, in the graph's order.
        outputs: names, in the graph's order.
        readers: by name, the nodes that read it.
    """

    inputs: dict[str, tuple[tuple[int, ...], str]]
    outputs: tuple[str, ...]
    constants: dict[str, Array]
    nodes: list[Node] = field(default_factory=list)
    readers: dict[str, list[Node]] = field(default_factory=lambda: defaultdict(list))


def read_fixed(proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], known: Container[str]) -> Graph:
    """Fix the shapes of a graph's inputs, and infer all others.

    Args:
        proto: a checked graph with its weights.
        shapes: of every input.
        known: operators that can be written.

    Raises:
        ContradictionError: shapes or dtypes do not fit each other.
        ModelError: an operator is not known, or the shape of its output depends on values.
    """
    import onnx

    from sanderling.model.graph import input_specs

    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    inputs = {spec.name: (shapes[spec.name], spec.dtype) for spec in input_specs(proto)}
    graph = Graph(inputs, tuple(value.name for value in proto.graph.output), constants)
    reader = _Reader(proto, graph, known)
    for node in proto.graph.node:
        reader.read(node)
    for node in graph.nodes:
        for name in node.inputs:
            graph.readers[name].append(node)
    reader.check_outputs()
    return graph


class _Reader:
    """Goes through the nodes, and knows the type of everything so far."""

    def __init__(self, proto: onnx.ModelProto, graph: Graph, known: Container[str]) -> None:
        import onnx

        self._proto = proto
        self._graph = graph
        self._known = known
        self._opset = next((entry.version for entry in proto.opset_import if entry.domain in _DEFAULT_DOMAINS), 0)
        self._types = {
            name: _type(np.dtype(dtype), shape) for name, (shape, dtype) in graph.inputs.items() if dtype != "str"
        }
        self._types |= {name: _type(array.dtype, array.shape) for name, array in graph.constants.items()}
        self._onnx = onnx

    def read(self, node: onnx.NodeProto) -> None:
        """Fold a node, or keep it with its inferred types."""
        if node.domain not in _DEFAULT_DOMAINS:
            raise ModelError(f"operator {node.domain}.{node.op_type} ('{node.name}') is of a foreign domain")
        folded = self._folded(node)
        if folded is not None:
            for name, array in zip(node.output, folded, strict=False):
                self._graph.constants[name] = array
                self._types[name] = _type(array.dtype, array.shape)
            return
        if node.op_type not in self._known:
            raise ModelError(f"operator {node.op_type} ('{node.name or node.output[0]}') has no exact form in TFLite")
        inferred = self._inferred(node)
        self._types |= inferred
        told = [_told(inferred[name], node) for name in node.output if name]
        self._graph.nodes.append(
            Node(
                node.op_type,
                node.name,
                tuple(node.input),
                tuple(node.output),
                {entry.name: self._onnx.helper.get_attribute_value(entry) for entry in node.attribute},
                tuple(shape for shape, _ in told),
                tuple(dtype for _, dtype in told),
                self._opset,
            )
        )

    def check_outputs(self) -> None:
        """Compare what the graph declares with what its nodes make."""
        for value in self._proto.graph.output:
            declared = value.type.tensor_type
            made = self._types[value.name].tensor_type
            if declared.elem_type != made.elem_type:
                wanted, got = (_dtype(kind.elem_type) for kind in (declared, made))
                raise ModelError(f"'{value.name}' is declared as {wanted}, but its nodes make it {got}")
            sizes = tuple(dim.dim_value for dim in made.shape.dim)
            wanted_sizes = tuple(dim.dim_value for dim in declared.shape.dim)
            if len(sizes) != len(wanted_sizes) or any(
                want and want != got for want, got in zip(wanted_sizes, sizes, strict=True)
            ):
                raise ContradictionError(f"'{value.name}' is declared with shape {wanted_sizes}, but becomes {sizes}")

    def _folded(self, node: onnx.NodeProto) -> list[Array] | None:
        """The node's outputs where they are known already; None otherwise."""
        constants = self._graph.constants
        if node.op_type in ("Shape", "Size") and node.input[0] in self._types:
            return [self._shape(node)]
        if node.op_type in _KEPT_FOLDED or any(name and name not in constants for name in node.input):
            return None
        if any(entry.HasField("g") for entry in node.attribute) or node.op_type.startswith("Random"):
            return None
        if node.op_type not in self._known and not _is_standard(node, self._opset):
            return None
        from onnx.reference import ReferenceEvaluator

        try:
            evaluator = ReferenceEvaluator(node, opsets={"": self._opset})
            return cast("list[Array]", evaluator.run(None, {name: constants[name] for name in node.input if name}))
        except Exception as error:
            raise ContradictionError(f"operator {node.op_type} ('{node.name}'): {first_line(error)}") from error

    def _shape(self, node: onnx.NodeProto) -> Array:
        sizes = [dim.dim_value for dim in self._types[node.input[0]].tensor_type.shape.dim]
        if node.op_type == "Size":
            return np.array(math.prod(sizes), np.int64)
        cut = {entry.name: entry.i for entry in node.attribute}
        return np.array(sizes[cut.get("start", 0) : cut.get("end", len(sizes))], np.int64)

    def _inferred(self, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
        import onnx

        told = {
            name: onnx.numpy_helper.from_array(self._graph.constants[name], name)
            for name in node.input
            if name in self._graph.constants and self._graph.constants[name].size <= _LARGEST_TOLD
        }
        try:
            schema = onnx.defs.get_schema(node.op_type, self._opset, "")
            inferred: dict[str, onnx.TypeProto] = onnx.shape_inference.infer_node_outputs(
                schema,
                node,
                {name: self._types[name] for name in node.input if name},
                told,
                opset_imports=list(self._proto.opset_import),
                ir_version=self._proto.ir_version,
            )
        except Exception as error:
            raise ContradictionError(f"operator {node.op_type} ('{node.name}'): {first_line(error)}") from error
        return inferred


def _is_standard(node: onnx.NodeProto, opset: int) -> bool:
    import onnx

    return bool(onnx.defs.has(node.op_type, opset, ""))


def _type(dtype: np.dtype[Any], shape: tuple[int, ...]) -> onnx.TypeProto:
    import onnx

    return onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(dtype), shape)


def _dtype(kind: int) -> str:
    import onnx

    return str(onnx.helper.tensor_dtype_to_np_dtype(kind))


def _told(inferred: onnx.TypeProto, node: onnx.NodeProto) -> tuple[tuple[int, ...], str]:
    tensor = inferred.tensor_type
    sizes = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim)
    if not tensor.HasField("shape") or any(size < 0 for size in sizes):
        raise ModelError(f"operator {node.op_type} ('{node.name or node.output[0]}'): its shape depends on values")
    return sizes, _dtype(tensor.elem_type)
