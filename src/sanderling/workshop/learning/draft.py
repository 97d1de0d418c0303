"""A graph while it is written: nodes in order, constants, and the shapes that the rules ask for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sanderling.core.errors import ModelError
from sanderling.core.tensor import Array, TensorSpec
from sanderling.model.graph import tensor_spec

Shape = tuple[int | str, ...]
PRODUCER = "sanderling"


@dataclass
class Draft:
    """Nodes, constants and what is known of every value.

    Attributes:
        nodes: each after those it reads from.
        initializers: by name; frozen weights are ``frozen.NAME``.
        shapes: of values, as far as known; a string is a dynamic axis.
        types: dtypes of values, as far as known.
        opset: version of the default operators.
        ir_version: of the file format.
        open_clips: outputs of Clip nodes whose limits themselves have no slope, as those of ReLU6: a channel that is
            always 0 must not learn. PyTorch's clamp has the slope 1 there.
    """

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, Array] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    opset: int = 18
    ir_version: int = 10
    open_clips: set[str] = field(default_factory=set)
    _constants: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)
    _count: int = 0

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:  # noqa: ANN401 - of any operator
        """Write a node with one output and return that output's name."""
        return self.ops(kind, inputs, 1, **attributes)[0]

    def ops(self, kind: str, inputs: Sequence[str], outputs: int, **attributes: Any) -> list[str]:  # noqa: ANN401
        """Write a node with several outputs and return their names."""
        names = [self.name(kind) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=names[0], **attributes))
        return names

    def name(self, kind: str) -> str:
        """A name that no value has yet."""
        self._count += 1
        return f"learn.{kind.lower()}.{self._count}"

    def constant(self, value: Array) -> str:
        """An initialiser with this content; equal ones are one."""
        array = np.ascontiguousarray(value).reshape(np.shape(value))
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = self._constants[key] = self.name("constant")
            self.initializers[name] = array
            self.shapes[name] = array.shape
        return self._constants[key]

    def integers(self, values: Iterable[int]) -> str:
        """An int64 vector."""
        return self.constant(np.asarray(list(values), np.int64))

    def number(self, value: float) -> str:
        """A float32 scalar."""
        return self.constant(np.asarray(value, np.float32))

    def shape(self, name: str) -> Shape:
        """Shape of a value.

        Raises:
            ModelError: it is not known.
        """
        if name not in self.shapes:
            raise ModelError(
                f"the shape of '{name}' in the exported graph is not known: its gradient cannot be written"
            )
        return self.shapes[name]

    def known(self, name: str) -> Array | None:
        """Content of a value that is constant, or None."""
        return self.initializers.get(name)

    def forget(self, names: set[str]) -> None:
        """Drop initialisers that nothing reads."""
        self.initializers = {name: array for name, array in self.initializers.items() if name not in names}
        self._constants = {key: name for key, name in self._constants.items() if name not in names}

    def copy(self) -> Draft:
        """Another draft that begins with the same nodes; arrays are shared."""
        return Draft(
            list(self.nodes),
            dict(self.initializers),
            dict(self.shapes),
            dict(self.types),
            self.opset,
            self.ir_version,
            set(self.open_clips),
            dict(self._constants),
            self._count,
        )


def attribute(node: onnx.NodeProto, name: str, default: object = None) -> object:
    """Value of a node's attribute, or the default."""
    for entry in node.attribute:
        if entry.name == name:
            value = helper.get_attribute_value(entry)
            return value.decode() if isinstance(value, bytes) else value
    return default


def integer(node: onnx.NodeProto, name: str, default: int) -> int:
    """An attribute that is a whole number."""
    value = attribute(node, name, default)
    assert isinstance(value, int)
    return value


def number(node: onnx.NodeProto, name: str, default: float) -> float:
    """An attribute that is a number."""
    value = attribute(node, name, default)
    assert isinstance(value, (int, float))
    return float(value)


def integers(node: onnx.NodeProto, name: str, default: Sequence[int]) -> list[int]:
    """An attribute that is a list of whole numbers."""
    value = attribute(node, name, default)
    assert isinstance(value, Sequence)
    return [int(entry) for entry in value]


def needed(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> list[onnx.NodeProto]:
    """The nodes that these values depend on, in their order."""
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(name for name in node.input if name)
    return kept[::-1]


def without_unread_outputs(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> list[onnx.NodeProto]:
    """The nodes, without optional outputs that nobody reads: statistics of a norm, indices of a pooling."""
    read = {name for node in nodes for name in node.input} | set(outputs)
    trimmed = []
    for node in nodes:
        last = max((place for place, name in enumerate(node.output) if name in read), default=0)
        if last + 1 < len(node.output) and node.op_type in ("LayerNormalization", "MaxPool"):
            short = onnx.NodeProto()
            short.CopyFrom(node)
            del short.output[last + 1 :]
            node = short
        trimmed.append(node)
    return trimmed


def extract(
    draft: Draft, name: str, inputs: Sequence[TensorSpec], outputs: Sequence[tuple[str, TensorSpec]]
) -> onnx.ModelProto:
    """The part of a draft that computes some values, as a model; weights are inside.

    Args:
        draft: to take it from.
        name: of the graph.
        inputs: of the graph, in this order; all are kept, read or not.
        outputs: value and what the graph calls it.
    """
    nodes = [*draft.nodes]
    renamed = []
    for value, spec in outputs:
        if value != spec.name:
            renamed.append(helper.make_node("Identity", [value], [spec.name], name=spec.name))
    nodes = needed([*nodes, *renamed], [spec.name for _, spec in outputs])
    nodes = without_unread_outputs(nodes, [spec.name for _, spec in outputs])
    read = {entry for node in nodes for entry in node.input} | {spec.name for _, spec in outputs}
    tensors = [
        numpy_helper.from_array(array, key)
        for key, array in draft.initializers.items()
        if key in read and key not in {spec.name for spec in inputs}
    ]
    graph = helper.make_graph(
        nodes,
        name,
        [_value(spec) for spec in inputs],
        [_value(spec) for _, spec in outputs],
        tensors,
    )
    opset = [helper.make_opsetid("", draft.opset)]
    return helper.make_model(graph, opset_imports=opset, ir_version=draft.ir_version, producer_name=PRODUCER)


def _value(spec: TensorSpec) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
    return helper.make_tensor_value_info(spec.name, kind, list(spec.shape))


def known_shapes(model: onnx.ModelProto) -> dict[str, Shape]:
    """Shapes of all values of known rank."""
    shapes: dict[str, Shape] = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        if value.type.tensor_type.HasField("shape"):
            shapes.setdefault(value.name, tensor_spec(value).shape)
    return shapes
