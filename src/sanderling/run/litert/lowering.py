"""The walk: ONNX nodes in order, each written by the function that ``operators`` has for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sanderling.core.errors import ModelError
from sanderling.core.tensor import Array
from sanderling.run.litert.flatbuffer import TYPES, Operation, Options, Program, Tensor
from sanderling.run.litert.gelu import Chain, find_gelu
from sanderling.run.litert.graph import Graph, Node
from sanderling.run.litert.layout import Layout, arranged, cheapest, moves_nothing, order, place_of, turn
from sanderling.run.litert.quantization import Quantization, read_quantization
from sanderling.run.litert.values import Value

Writer = Callable[["Lowering", Node], None]
_RELU6 = (0.0, 6.0)
_SHARED_BYTES = 1024  # constants up to this size are written once


@dataclass(frozen=True)
class Ending:
    """What follows a node, as far as TFLite's operators do it on their way out.

    Attributes:
        name: of the tensor that comes out in the end.
        activation: NONE, RELU or RELU6.
        quantization: with which it is quantised, by everything that reads it.
    """

    name: str
    activation: str
    quantization: Quantization | None


class Lowering:
    """Knows what every name of the ONNX graph has become so far."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._values: dict[str, Value] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], Tensor] = {}
        self._codes: set[str] = set()  # names that hold codes, which only DequantizeLinear may read
        self._written: set[Node] = set()  # together with the node before
        self._node: Node | None = None
        self.program = Program()
        for name, (shape, dtype) in graph.inputs.items():
            if dtype not in TYPES:
                raise ModelError(f"input '{name}' is {dtype}, which TFLite does not have")
            tensor = Tensor(name, dtype, shape)
            self.program.inputs.append(tensor)
            self._values[name] = Value(name, shape, dtype, forms={Layout.GRAPH: tensor})

    def run(self, writers: Mapping[str, Writer]) -> Program:
        """Write all nodes.

        Raises:
            ModelError: one has no exact form in TFLite.
        """
        for node in self._graph.nodes:
            if node in self._written:
                continue
            if node.operator != "DequantizeLinear" and not self._codes.isdisjoint(node.inputs):
                raise node.refused("it reads quantised codes; only DequantizeLinear may")
            self._node = node
            writers[node.operator](self, node)
            self._check(node)
        for name in self._graph.outputs:
            self._write_output(name)
        return self.program

    def _check(self, node: Node) -> None:
        """Whether what was written has the dtype that ONNX gives it: kernels are asked for by dtype."""
        for name, dtype in zip(node.outputs, node.dtypes, strict=False):
            value = self._values.get(name)
            if value is not None and value.quantization is None and value.dtype != dtype:
                raise node.refused(f"{dtype} has no exact form in TFLite")

    def _write_output(self, name: str) -> None:
        if name in self._codes:
            raise ModelError(f"output '{name}' is quantised: only real numbers come out")
        tensor = self.tensor(self.real(name), Layout.GRAPH)
        if tensor.data is not None or tensor in (*self.program.inputs, *self.program.outputs):
            tensor = self.reshape(tensor, tensor.shape)
        self.program.outputs.append(tensor)

    def value(self, name: str) -> Value:
        """What a name has become; it may be quantised."""
        if name not in self._values:
            array = self._graph.constants[name]
            self._values[name] = Value(name, array.shape, str(array.dtype), array)
        return self._values[name]

    def real(self, name: str) -> Value:
        """What a name has become, not quantised."""
        value = self.value(name)
        if value.quantization is None:
            return value
        if value.real is None:
            value.real = Value(name, value.shape, "float32")
            if value.constant is not None:
                value.real.constant = value.quantization.dequantize(value.constant)
            else:
                layout, tensor = next(iter(value.forms.items()))
                value.real.forms[layout] = self.emit("DEQUANTIZE", [tensor], tensor.shape)
        return value.real

    def moved(self, name: str) -> Value:
        """What a name has become, for an operator that only moves elements: it may do so with codes."""
        value = self.value(name)
        quantized = value.quantization is not None and value.quantization.per_tensor and value.constant is None
        return value if quantized else self.real(name)

    def constant_of(self, node: Node, position: int) -> Array:
        """The elements of an input that must be known.

        Raises:
            ModelError: they are computed from the graph's inputs.
        """
        found = self.real(node.inputs[position]).constant
        if found is None:
            raise node.refused(f"input {position} ('{node.inputs[position]}') is computed, and must be constant")
        return found

    def argument(self, node: Node, name: str, position: int) -> Array | None:
        """An argument that older opsets give as an attribute and newer ones as an input; None if left out."""
        if name in node.attributes:
            return np.asarray(node.attributes[name])
        return self.constant_of(node, position) if node.has(position) else None

    def tensor(self, value: Value, layout: Layout = Layout.GRAPH) -> Tensor:
        """The TFLite tensor that holds a value in a layout, turned if it must be."""
        rank = len(value.shape)
        if order(rank, layout) == order(rank, Layout.GRAPH):
            layout = Layout.GRAPH
        if layout not in value.forms:
            if value.constant is not None:
                array = value.constant.transpose(order(rank, layout))
                quantization = value.quantization and value.quantization.along(
                    place_of(value.quantization.axis, rank, layout) if rank else 0
                )
                value.forms[layout] = self.constant(array, quantization)
            else:
                found, tensor = next(iter(value.forms.items()))
                value.forms[layout] = self.transpose(tensor, turn(rank, found, layout))
        return value.forms[layout]

    def any_form(self, value: Value) -> tuple[Tensor, Layout]:
        """A value in the layout that costs nothing."""
        layout = cheapest([value])
        return self.tensor(value, layout), layout

    def constant(self, array: Array, quantization: Quantization | None = None) -> Tensor:
        """A tensor of known elements."""
        data = np.ascontiguousarray(array).reshape(array.shape)
        tensor = Tensor("constant", str(data.dtype), data.shape, data, quantization)
        if data.nbytes > _SHARED_BYTES:
            return tensor
        key = (f"{data.dtype} {quantization}", data.shape, data.tobytes())
        return self._constants.setdefault(key, tensor)

    def ints(self, values: Sequence[int] | Array) -> Tensor:
        """A tensor of int32, in which TFLite takes axes, shapes and pads."""
        return self.constant(np.asarray(values, np.int32))

    def emit(
        self,
        code: str,
        inputs: Sequence[Tensor | None],
        shape: Sequence[int],
        options: Options | None = None,
        *,
        dtype: str = "float32",
        quantization: Quantization | None = None,
    ) -> Tensor:
        """Write one operator with one output."""
        return self.emit_several(code, inputs, [shape], options, dtype=dtype, quantization=quantization)[0]

    def emit_several(
        self,
        code: str,
        inputs: Sequence[Tensor | None],
        shapes: Sequence[Sequence[int]],
        options: Options | None = None,
        *,
        dtype: str = "float32",
        quantization: Quantization | None = None,
    ) -> tuple[Tensor, ...]:
        """Write one operator; its outputs differ in their shapes at most."""
        number = len(self.program.operations)
        kept = "int8" if quantization else dtype
        if kept not in TYPES:
            raise ModelError(f"operator {self._origin()}: {kept} is no dtype of TFLite")
        outputs = tuple(
            Tensor(f"{code.lower()}_{number}_{index}", kept, tuple(map(int, shape)), quantization=quantization)
            for index, shape in enumerate(shapes)
        )
        self.program.operations.append(Operation(code, tuple(inputs), outputs, options, self._origin()))
        return outputs

    def like(
        self,
        code: str,
        inputs: Sequence[Tensor | None],
        shape: Sequence[int],
        options: Options | None = None,
    ) -> Tensor:
        """Write an operator whose output has the dtype and quantization of its first input."""
        first = inputs[0]
        assert first is not None
        return self.emit(code, inputs, shape, options, dtype=first.dtype, quantization=first.quantization)

    def reshape(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """The same elements in another shape."""
        sizes = self.ints(np.array(shape, np.int32).reshape(-1))
        return self.like("RESHAPE", [tensor, sizes], shape, ("ReshapeOptions", {"newShape": list(map(int, shape))}))

    def transpose(self, tensor: Tensor, permutation: Sequence[int]) -> Tensor:
        """The same elements with axes in another order; reshaped only, where that is enough."""
        shape = [tensor.shape[axis] for axis in permutation]
        if list(permutation) == sorted(permutation):
            return tensor
        if moves_nothing(tensor.shape, permutation):
            return self.reshape(tensor, shape)
        return self.like("TRANSPOSE", [tensor, self.ints(permutation)], shape, ("TransposeOptions", {}))

    def quantize(self, tensor: Tensor, quantization: Quantization) -> Tensor:
        """The same numbers as other codes."""
        if tensor.quantization == quantization:
            return tensor
        return self.emit("QUANTIZE", [tensor], tensor.shape, ("QuantizeOptions", {}), quantization=quantization)

    def define(self, name: str, shape: Sequence[int], tensor: Tensor, layout: Layout = Layout.GRAPH) -> None:
        """Say which tensor holds what the ONNX graph calls ``name``, of a shape that the graph has.

        Raises:
            ModelError: the tensor has another shape, which would be a fault of the operator's function.
        """
        if tensor.shape != arranged(shape, layout):
            raise ModelError(f"operator {self._origin()} would give shape {tensor.shape}: expected {tuple(shape)}")
        if order(len(shape), layout) == order(len(shape), Layout.GRAPH):
            layout = Layout.GRAPH
        forms = {layout: tensor}
        self._values[name] = Value(name, tuple(shape), tensor.dtype, None, tensor.quantization, forms)

    def set_value(self, name: str, value: Value) -> None:
        """Say that ``name`` is what another name is."""
        self._values[name] = value

    def set_codes(self, name: str, value: Value) -> None:
        """Say that ``name`` holds codes, as QuantizeLinear makes them."""
        self._values[name] = value
        self._codes.add(name)

    def quantization_of(self, node: Node, codes: str) -> Quantization:
        """Parameters of a QuantizeLinear or DequantizeLinear whose codes have that dtype."""
        scale = self.constant_of(node, 1)
        zero_point = self.constant_of(node, 2) if node.has(2) else None
        try:
            return read_quantization(scale, zero_point, codes, node.attributes.get("axis", 1), len(node.shapes[0]))
        except ModelError as error:
            raise node.refused(str(error)) from error

    def ending(self, node: Node) -> Ending:
        """What follows ``node`` and can be written with it; the nodes meant by it are not written again."""
        name, activation = node.outputs[0], "NONE"
        follower = self._only_reader(name)
        if follower is not None and (found := self._activation(follower)):
            self._written.add(follower)
            name, activation = follower.outputs[0], found
        readers = self._graph.readers[name]
        quantization = None
        if readers and name not in self._graph.outputs and all(user.operator == "QuantizeLinear" for user in readers):
            first, *others = {self.quantization_of(user, user.dtypes[0]) for user in readers}
            quantization = first if not others and first.per_tensor else None
        return Ending(name, activation, quantization)

    def gelu_around(self, node: Node) -> Chain | None:
        """The GELU that an Erf is part of; its other nodes are not written again."""
        chain = find_gelu(self._graph, node, self._scalar)
        if chain is not None:
            self._written.update(chain.nodes)
        return chain

    def _scalar(self, name: str) -> float | None:
        value = self._values.get(name)
        array = self._graph.constants.get(name) if value is None else value.constant
        quantized = value is not None and value.quantization is not None
        return float(array.item()) if array is not None and array.size == 1 and not quantized else None

    def clip_range(self, node: Node) -> tuple[float, float]:
        """Lowest and highest value that a Clip lets through."""
        low, high = self.argument(node, "min", 1), self.argument(node, "max", 2)
        return (-np.inf if low is None else float(low), np.inf if high is None else float(high))

    def _only_reader(self, name: str) -> Node | None:
        readers = self._graph.readers[name]
        return readers[0] if len(readers) == 1 and name not in self._graph.outputs else None

    def _activation(self, node: Node) -> str:
        """TFLite's name of the activation that a node is; empty if it is none."""
        if node.operator == "Relu":
            return "RELU"
        if node.operator != "Clip" or any(node.has(i) and self.real(node.inputs[i]).constant is None for i in (1, 2)):
            return ""
        return {_RELU6: "RELU6", (0.0, np.inf): "RELU"}.get(self.clip_range(node), "")

    def _origin(self) -> str:
        return self._node.label if self._node else "output"
