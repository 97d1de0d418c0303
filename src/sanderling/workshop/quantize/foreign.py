"""Graphs that were quantised elsewhere: what is refused, and the float graph that they stand for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from sanderling.core.errors import ModelError
from sanderling.model.graph import all_nodes, initializer_array, input_specs, lifted, output_specs, used_names

Bounds = tuple[float, float]

_MOVING = ("MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Gather", "Identity")
_AVERAGING = ("AveragePool", "GlobalAveragePool")
_INTEGER_OPERATORS = ("ConvInteger", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeLinear", "MatMulNBits")
_INTEGER_PREFIXES = ("QLinear", "QGemm", "QAttention", "QEmbed", "DynamicQuantize", "QOrdered")
_NO_BOUNDS = (-np.inf, np.inf)
_SLACK = 0.5  # of a step: what is cut off by less would be rounded to the bound anyway


def integer_operators(model: onnx.ModelProto) -> tuple[str, ...]:
    """Names of the operators that compute in integers by themselves, without Q/DQ nodes around float ones."""
    names = {node.op_type for node in all_nodes(model.graph)}
    return tuple(sorted(name for name in names if name in _INTEGER_OPERATORS or name.startswith(_INTEGER_PREFIXES)))


def comparable(model: onnx.ModelProto, reference: onnx.ModelProto) -> onnx.ModelProto:
    """The quantised graph with its outputs called as the float one's are: exporters invent their names.

    Raises:
        ModelError: the inputs or outputs of the two graphs differ in more than the outputs' names.
    """
    for kind, describe in (("input", input_specs), ("output", output_specs)):
        own, theirs = describe(model), describe(reference)
        names = [("" if kind == "output" else spec.name) for spec in (*own, *theirs)]
        kinds = [(name, spec.dtype, len(spec.shape)) for name, spec in zip(names, (*own, *theirs), strict=True)]
        if kinds[: len(own)] != kinds[len(own) :]:
            raise ModelError(
                f"the reference has the {kind}s {'; '.join(map(str, theirs))}: expected those of the quantised graph, "
                f"{'; '.join(map(str, own))}"
            )
    wanted = [spec.name for spec in output_specs(reference)]
    return model if wanted == [spec.name for spec in output_specs(model)] else _with_output_names(model, wanted)


def _with_output_names(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    import onnx_ir

    renamed = onnx_ir.from_proto(model)
    for value, name in zip(renamed.graph.outputs, names, strict=True):
        for node in renamed.graph:
            for other in node.outputs:
                if other.name == name and other is not value:
                    other.name = f"{name}_inner"
        value.name = name
    return onnx_ir.to_proto(renamed)


def dequantized(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph without rounding: weights as what their integers stand for, activations float.

    Where eight bits bounded an activation it stays bounded, as quantisers drop a Relu or Clip whose work the range
    does. A bound that the graph keeps already is not repeated.

    Raises:
        ModelError: an operator that computes in integers, or integers that come from no QuantizeLinear.

    Source: ONNX operators QuantizeLinear and DequantizeLinear, opsets 10 to 25.
    """
    named = integer_operators(model)
    if named:
        raise ModelError(
            f"the graph computes with {', '.join(named)}, whose float form it does not hold: give the float model as "
            "--reference FLOAT.onnx, or quantise in QDQ form (ONNX Runtime: QuantFormat.QDQ)"
        )
    return _Dequantizer(lifted(model)).rewritten()


class _Dequantizer:
    """One graph on its way back to float; what no longer does anything becomes an Identity, which passes drop."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._graph = model.graph
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self._bounds: dict[str, Bounds] = {}
        self._integers: set[str] = set()  # activations that were integers, and are float now
        self._nodes: list[onnx.NodeProto] = []

    def rewritten(self) -> onnx.ModelProto:
        """Go through the nodes in order, and replace those that quantise."""
        for node in self._graph.node:
            if node.op_type == "QuantizeLinear":
                self._quantize(node)
            elif node.op_type == "DequantizeLinear":
                self._dequantize(node)
            else:
                self._keep(node)
        returned = self._integers & {value.name for value in self._graph.output}
        inner = {node.op_type for node in all_nodes(self._graph)} - {node.op_type for node in self._graph.node}
        if returned or inner & {"QuantizeLinear", "DequantizeLinear"}:
            where = f"output '{min(returned)}'" if returned else "a subgraph"
            raise ModelError(f"{where} is quantised: give the float model as --reference FLOAT.onnx")
        self._replace()
        return self._model

    def _quantize(self, node: onnx.NodeProto) -> None:
        source, made = node.input[0], node.output[0]
        self._integers.add(made)
        bounds = self._bounds.get(source, _NO_BOUNDS)
        scale = _known(node, 1, self._constants)
        low, high = bounds if source in self._constants else _representable(node, scale, self._constants)
        slack = _SLACK * float(scale.max())
        if low - slack <= bounds[0] and bounds[1] <= high + slack:
            self._pass_on(node)
            return
        ends = [self._constant(f"{made}_{end}", scale.dtype.type(at)) for end, at in (("low", low), ("high", high))]
        self._nodes.append(helper.make_node("Clip", [source, *ends], [made], node.name))
        self._bounds[made] = (max(low, bounds[0]), min(high, bounds[1]))

    def _dequantize(self, node: onnx.NodeProto) -> None:
        source, made = node.input[0], node.output[0]
        if source in self._constants:
            self._add(made, _real_values(node, self._constants))
        elif source in self._integers:
            self._pass_on(node)
        else:
            raise ModelError(
                f"node '{node.name}' reads the integers '{source}', which no QuantizeLinear makes: give the float "
                "model as --reference FLOAT.onnx"
            )

    def _pass_on(self, node: onnx.NodeProto) -> None:
        source, made = node.input[0], node.output[0]
        self._nodes.append(helper.make_node("Identity", [source], [made], node.name))
        self._bounds[made] = self._bounds.get(source, _NO_BOUNDS)

    def _keep(self, node: onnx.NodeProto) -> None:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        self._nodes.append(copy)
        source = node.input[0] if node.input else ""
        low, high = self._bounds.get(source, _NO_BOUNDS)
        if node.op_type in _MOVING and source in self._integers:
            self._integers.update(node.output)
        if node.op_type == "Relu":
            low, high = max(0.0, low), max(0.0, high)
        elif node.op_type == "Clip":
            least, most = (_clip_bound(node, index, self._constants) for index in (1, 2))
            low, high = max(least, low), min(most, high)
        elif node.op_type in ("Sigmoid", "HardSigmoid", "Softmax"):
            low, high = 0.0, 1.0
        elif node.op_type not in (*_MOVING, *_AVERAGING):
            return
        self._bounds |= dict.fromkeys(node.output, (low, high))

    def _add(self, name: str, value: npt.NDArray[np.generic]) -> None:
        self._constants[name] = numpy_helper.from_array(value, name)

    def _constant(self, name: str, value: np.generic) -> str:
        self._add(name, np.asarray(value))
        return name

    def _replace(self) -> None:
        read = {name for node in self._nodes for name in node.input} | used_names(self._graph)
        kept = [tensor for name, tensor in self._constants.items() if name in read]
        tensors = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in kept]
        del self._graph.node[:], self._graph.initializer[:], self._graph.value_info[:]
        self._graph.node.extend(self._nodes)
        self._graph.initializer.extend(tensors)


def _representable(
    node: onnx.NodeProto, scale: npt.NDArray[np.generic], constants: dict[str, onnx.TensorProto]
) -> Bounds:
    """Lowest and highest value that the integers can stand for, over all scales of the node."""
    zero_point = _known(node, 2, constants) if len(node.input) > 2 and node.input[2] else np.zeros((), np.uint8)
    if zero_point.dtype.kind == "f" or zero_point.dtype.name.startswith("float"):  # FP8 bounds nothing that matters
        return _NO_BOUNDS
    limits = _integer_limits(zero_point)
    middle, step = zero_point.astype(np.float64), scale.astype(np.float64)
    return float(((limits[0] - middle) * step).min()), float(((limits[1] - middle) * step).max())


def _integer_limits(zero_point: npt.NDArray[np.generic]) -> tuple[int, int]:
    four_bit = {"int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3)}
    if zero_point.dtype.name in four_bit:
        return four_bit[zero_point.dtype.name]
    limits = np.iinfo(zero_point.dtype)  # type: ignore[type-var]
    return int(limits.min), int(limits.max)


def _real_values(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> npt.NDArray[np.generic]:
    """What the integers of a weight or bias stand for: (q - zero_point) * scale, per tensor, axis or block."""
    tensor = initializer_array(constants[node.input[0]])
    scale = _known(node, 1, constants)
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    middle = np.zeros((), np.float64)
    if len(node.input) > 2 and node.input[2]:
        middle = _spread(_known(node, 2, constants), tensor.shape, attributes)
    real = (tensor.astype(np.float64) - middle) * _spread(scale, tensor.shape, attributes)
    return real.astype(scale.dtype)


def _spread(
    parameters: npt.NDArray[np.generic], shape: tuple[int, ...], attributes: dict[str, int]
) -> npt.NDArray[np.float64]:
    """Scales or zero points shaped so that they broadcast over a tensor of ``shape``."""
    values = parameters.astype(np.float64)
    if values.size == 1:
        return values.reshape(())
    axis = attributes.get("axis", 1) % len(shape)
    if values.ndim == 1:
        return values.reshape([-1 if index == axis else 1 for index in range(len(shape))])
    size = attributes.get("block_size", 1)
    return np.take(np.repeat(values, size, axis=axis), np.arange(shape[axis]), axis=axis)


def _known(node: onnx.NodeProto, index: int, constants: dict[str, onnx.TensorProto]) -> npt.NDArray[np.generic]:
    tensor = constants.get(node.input[index])
    if tensor is None:
        raise ModelError(
            f"node '{node.name}' computes its scale while the graph runs: give the float model as "
            "--reference FLOAT.onnx"
        )
    return initializer_array(tensor)


def _clip_bound(node: onnx.NodeProto, index: int, constants: dict[str, onnx.TensorProto]) -> float:
    unbounded = _NO_BOUNDS[index - 1]
    tensor = constants.get(node.input[index]) if len(node.input) > index else None
    return unbounded if tensor is None else float(initializer_array(tensor).item())
