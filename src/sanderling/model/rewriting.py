"""What rewrites of ONNX graphs are made of: look at a graph, replace single nodes, name what cannot be replaced."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sanderling.core.errors import ModelError
from sanderling.core.tensor import Array
from sanderling.model.graph import all_nodes, opset_of
from sanderling.model.shapes import Shape, infer_shapes

_AXES_ARE_INPUTS = 18  # of reductions, since this opset


class GraphView:
    """What a rewrite may ask of the graph, and the tensors that it adds."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self._constants = {tensor.name: tensor for tensor in proto.graph.initializer}
        self._taken = {name for node in all_nodes(proto.graph) for name in (*node.input, *node.output, node.name)}
        self._taken |= set(self._constants)
        self._taken |= {value.name for value in proto.graph.input}
        self._proto = proto
        self.opset = opset_of(proto)
        self._shapes: dict[str, Shape] | None = None
        self.added: list[onnx.TensorProto] = []

    def constant(self, name: str) -> Array | None:
        """The value of an initialiser."""
        return numpy_helper.to_array(self._constants[name]) if name in self._constants else None

    def shape(self, name: str) -> Shape | None:
        """Inferred sizes of a tensor's axes; text where they are not fixed."""
        if self._shapes is None:
            self._shapes = infer_shapes(self._proto)
        return self._shapes.get(name)

    def add(self, array: Array) -> str:
        """Add an initialiser."""
        name = self.fresh("constant")
        self.added.append(numpy_helper.from_array(array, name))
        return name

    def fresh(self, wish: str) -> str:
        """A name that nothing has."""
        for number in itertools.count():
            name = f"{wish}_{number}" if number else wish
            if name not in self._taken:
                self._taken.add(name)
                return name
        raise AssertionError("counting ends nowhere")


class Parts:
    """The nodes that take the place of one node; calling it adds a node and gives the name of its output."""

    def __init__(self, node: onnx.NodeProto, graph: GraphView) -> None:
        self._node, self._graph = node, graph
        self._made: list[onnx.NodeProto] = []

    def __call__(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:  # noqa: ANN401 - ONNX's own
        """Add a node with one output; returns its name."""
        name = self._graph.fresh(f"{self._node.name or self._node.output[0]}_{operator}")
        self._made.append(helper.make_node(operator, list(inputs), [name], name, **attributes))
        return name

    def constant(self, value: float) -> str:
        """A float32 scalar."""
        return self._graph.add(np.array(value, np.float32))

    def scaled(self, name: str, factor: float) -> str:
        """A tensor times a number."""
        return name if factor == 1 else self("Mul", [name, self.constant(factor)])

    def mean(self, name: str, axes: list[int]) -> str:
        """Mean along ``axes``, which stay; opset 18 made them an input."""
        if self._graph.opset < _AXES_ARE_INPUTS:
            return self("ReduceMean", [name], axes=axes, keepdims=1)
        return self("ReduceMean", [name, self._graph.add(np.array(axes, np.int64))], keepdims=1)

    def finished(self, last: str) -> list[onnx.NodeProto]:
        """All nodes; the one that makes ``last`` makes the output of the node that they replace."""
        assert self._made[-1].output[0] == last
        self._made[-1].output[0] = self._node.output[0]
        self._made[-1].name = self._node.name or last
        return self._made


def rewritten(
    model: onnx.ModelProto, rewrite: Callable[[onnx.NodeProto, GraphView], list[onnx.NodeProto] | None]
) -> onnx.ModelProto:
    """Replace every node of the outer graph for which ``rewrite`` has others."""
    graph = GraphView(model)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        own = node.domain in ("", "ai.onnx")
        nodes.extend((rewrite(node, graph) if own else None) or [node])
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(graph.added)
    return model


def attribute_of(node: onnx.NodeProto, name: str, default: Any) -> Any:  # noqa: ANN401 - ONNX's own
    """Value of a node's attribute, or ``default`` where it is not written."""
    found = next((item for item in node.attribute if item.name == name), None)
    return default if found is None else helper.get_attribute_value(found)


def replacement(operator: str, old: onnx.NodeProto, inputs: list[str], **attributes: Any) -> onnx.NodeProto:  # noqa: ANN401
    """A node in the place of ``old``, with its name and outputs."""
    return helper.make_node(operator, inputs, list(old.output), old.name, **attributes)


def cannot_lower(node: onnx.NodeProto, reason: str) -> ModelError:
    """The error for a node without an exact form."""
    return ModelError(
        f"operator {node.op_type} ('{node.name or next(iter(node.output), '')}') cannot be lowered: {reason}"
    )
