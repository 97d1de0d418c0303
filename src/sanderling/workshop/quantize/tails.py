"""The part of a graph behind one tensor, run with another value in its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx
from onnx import helper

from sanderling.core.closing import Closing
from sanderling.core.tensor import Array
from sanderling.model.graph import with_outputs
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions, Executable

Values = Mapping[str, Array]


def record(model: onnx.ModelProto, tensors: Sequence[str], feeds: Sequence[Values], threads: int) -> list[Values]:
    """Values of ``tensors``, of the inputs and of the outputs for each call."""
    executable = engine().load(with_outputs(model, tensors).SerializeToString(), EngineOptions(threads=threads))
    values: list[Values] = [{**call, **executable.run(call)} for call in feeds]
    executable.close()
    return values


class Tail(Closing):
    """What follows a tensor. Each of its readers can get another value.

    Attributes:
        readers: names of the nodes that read the tensor.
        outputs: names of the graph's outputs that depend on it.
        is_output: whether the graph returns the tensor itself.
    """

    def __init__(self, model: onnx.ModelProto, tensor: str, known: Iterable[str], threads: int) -> None:
        nodes = _behind(model.graph, tensor)
        self.readers = tuple(node.name for node in nodes if tensor in node.input)
        made = {name for node in nodes for name in node.output}
        self.outputs = tuple(value.name for value in model.graph.output if value.name in made)
        self.is_output = any(value.name == tensor for value in model.graph.output)
        self._tensor = tensor
        self._model, self._threads = model, threads
        self._nodes = _with_sources(model.graph, nodes, set(known) | {tensor})
        self._executable: Executable | None = None

    def run(self, values: Values, replaced: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs when the readers in ``replaced`` get other values of the tensor.

        Args:
            values: what the graph computed, of ``record``.
            replaced: per reader, the value that it reads instead.
        """
        if not self.outputs:
            return {}
        if self._executable is None:
            graph = self._cut(values)
            self._executable = engine().load(graph.SerializeToString(), EngineOptions(threads=self._threads))
        feeds = {
            spec.name: replaced.get(self._reader(spec.name), values[self._tensor])
            if self._reader(spec.name)
            else values[spec.name]
            for spec in self._executable.inputs
        }
        return self._executable.run(feeds)

    def close(self) -> None:
        """Give back the loaded part."""
        if self._executable is not None:
            self._executable.close()

    def _reader(self, name: str) -> str:
        """The reader that an input of the cut graph belongs to, or empty."""
        start = _own_name(self._tensor, "")
        return name[len(start) :] if name.startswith(start) else ""

    def _cut(self, values: Values) -> onnx.ModelProto:
        """The nodes behind the tensor as a graph of their own."""
        constants = {tensor.name: tensor for tensor in self._model.graph.initializer}
        nodes = []
        for node in self._nodes:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            for index, name in enumerate(node.input):
                if name == self._tensor and node.name in self.readers:
                    copy.input[index] = _own_name(name, node.name)
            nodes.append(copy)
        made = {name for node in nodes for name in node.output}
        read = dict.fromkeys(name for node in nodes for name in node.input if name and name not in made)
        inputs = [name for name in read if name not in constants]
        graph = helper.make_graph(
            nodes,
            "tail",
            [_value(name, values[self._tensor if self._reader(name) else name]) for name in inputs],
            [value for value in self._model.graph.output if value.name in self.outputs],
            [constants[name] for name in read if name in constants],
        )
        cut = helper.make_model(graph, opset_imports=self._model.opset_import)
        cut.ir_version = self._model.ir_version
        return cut


def _value(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), None)


def _own_name(tensor: str, reader: str) -> str:
    return f"{tensor} for {reader}"


def _behind(graph: onnx.GraphProto, tensor: str) -> list[onnx.NodeProto]:
    moved, nodes = {tensor}, []
    for node in graph.node:
        if not moved.isdisjoint(node.input):
            nodes.append(node)
            moved.update(node.output)
    return nodes


def _with_sources(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto], known: set[str]) -> list[onnx.NodeProto]:
    """The nodes, and those that make what is not known otherwise (integers that describe shapes)."""
    makers = {name: node for node in graph.node for name in node.output}
    chosen = {node.name for node in nodes}
    made = {name for node in nodes for name in node.output}
    wanted = [name for node in nodes for name in node.input]
    while wanted:
        name = wanted.pop()
        if name in makers and name not in known and name not in made:
            made.update(makers[name].output)
            chosen.add(makers[name].name)
            wanted.extend(makers[name].input)
    return [node for node in graph.node if node.name in chosen]
