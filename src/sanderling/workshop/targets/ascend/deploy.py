"""QDQ to the form that `atc` computes in INT8: AscendQuant, a Conv of integers, AscendDequant.

Every rounding of the QDQ graph stays where it is: QuantizeLinear becomes AscendQuant, a Conv, Gemm or MatMul between
dequantised operands computes with the integers themselves, and what float nodes read goes through AscendAntiQuant.
uint8 becomes int8 by moving the zero point by 128. `atc` itself corrects the bias by the offset of the AscendQuant that
the node reads, and pads with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from sanderling.core.errors import ModelError
from sanderling.model.graph import initializer_array, lifted
from sanderling.model.half import LARGEST
from sanderling.model.lowering import drop_unread
from sanderling.model.rewriting import attribute_of
from sanderling.workshop.quantize.weights import along, output_axis

_HEAVY = ("Conv", "Gemm", "MatMul")
_LARGEST_BIAS = 2**31 - 1

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]
Attributes = dict[str, float | int | str]


@dataclass(frozen=True)
class Activation:
    """How a tensor is kept in eight bits.

    Attributes:
        integers: name of the tensor that holds them.
        scale: real units per step, > 0.
        offset: the int8 that stands for 0.
    """

    integers: str
    scale: float
    offset: int


@dataclass(frozen=True)
class Constant:
    """Integers of an initialiser, zero point taken off, with their scales: shape (1,), or (C,) along ``axis``."""

    values: npt.NDArray[np.int64]
    scale: Floats
    axis: int

    def real(self) -> npt.NDArray[np.float64]:
        """What they stand for."""
        scale = self.scale if self.scale.size == 1 else along(self.scale, self.axis, self.values.ndim)
        return np.multiply(self.values, scale, dtype=np.float64)


def to_deploy(model: onnx.ModelProto) -> onnx.ModelProto:
    """The deploy form of a QDQ graph; the graph is left alone.

    Raises:
        ModelError: a tensor is quantised in a way that the chip does not have; the message names it.
    """
    return drop_unread(_Writer(lifted(model)).written())


def integer_nodes(model: onnx.ModelProto) -> tuple[str, ...]:
    """Names of the nodes of a deploy graph that compute in integers."""
    makers = {name: node for node in model.graph.node for name in node.output}
    dequantised = [node.input[0] for node in model.graph.node if node.op_type == "AscendDequant"]
    return tuple(makers[name].name for name in dequantised)


def dequantization(scale: Floats, *, weight_offset: int = 0) -> npt.NDArray[np.uint64]:
    """The second input of AscendDequant: ``weight_offset << 32``, and the bits of the float32 scale below it.

    Args:
        scale: float32, shape (C,) or (1,), > 0: scale of the activation times that of the weight.
        weight_offset: zero point of the weight; 0 for all that is made here.
    """
    return scale.view(np.uint32).astype(np.uint64) | np.uint64((weight_offset & 0xFF) << 32)


def integer_bias(bias: npt.NDArray[np.float64], scale: Floats) -> Integers | None:
    """A bias in the steps of the sums that it is added to; None where it does not fit 32 bits.

    Args:
        bias: shape (C,).
        scale: float32, shape (C,) or (1,), > 0: scale of the activation times that of the weight.
    """
    steps = np.round(bias / scale.astype(np.float64))
    if not np.isfinite(steps).all() or np.abs(steps).max(initial=0) > _LARGEST_BIAS:
        return None
    return steps.astype(np.int32)


class _Writer:
    """One graph on its way to the deploy form; what nobody reads in the end is left in it."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model, self._graph = model, model.graph
        self._initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self._activations: dict[str, Activation] = {}  # by the name of the integers, and of what is dequantised
        self._constants: dict[str, Constant] = {}  # likewise
        self._nodes: list[onnx.NodeProto] = []

    def written(self) -> onnx.ModelProto:
        """Write every node anew, in the graph's order."""
        for node in self._graph.node:
            if node.op_type == "QuantizeLinear":
                self._quantize(node)
            elif node.op_type == "DequantizeLinear":
                self._dequantize(node)
            else:
                self._nodes.extend(self._in_integers(node) or [self._in_float(node)])
        returned = [value.name for value in self._graph.output if self._holds_integers(value.name)]
        if returned:
            raise ModelError(f"output '{returned[0]}' is stored in eight bits: an Ascend deploy model returns floats")
        del self._graph.node[:], self._graph.initializer[:], self._graph.value_info[:]
        self._graph.node.extend(self._nodes)
        self._graph.initializer.extend(self._initializers.values())
        return self._model

    def _quantize(self, node: onnx.NodeProto) -> None:
        scale, zero_point = self._parameters(node)
        source, made = node.input[0], node.output[0]
        if scale.size != 1 or zero_point.dtype not in (np.uint8, np.int8):
            kind = f"{zero_point.dtype} with {scale.size} scales"
            raise ModelError(f"tensor '{source}' is stored as {kind}: an Ascend chip takes eight bits and one scale")
        if source in self._initializers:
            real = initializer_array(self._initializers[source]).astype(np.float32)
            low, high = (0, 255) if zero_point.dtype == np.uint8 else (-128, 127)
            steps = (np.round(real / scale) + zero_point.astype(np.float32)).clip(low, high)
            self._constants[made] = _constant(node, steps, scale, zero_point)
            return
        step = float(scale.item())
        offset = int(zero_point.item()) - (128 if zero_point.dtype == np.uint8 else 0)
        self._activations[made] = Activation(made, step, offset)
        self._nodes.append(_node("AscendQuant", [source], made, _quantization(step, offset)))

    def _dequantize(self, node: onnx.NodeProto) -> None:
        scale, zero_point = self._parameters(node)
        source, made = node.input[0], node.output[0]
        if source in self._activations:
            activation = self._activations[made] = self._activations[source]
            attributes: Attributes = {"scale": activation.scale, "offset": float(-activation.offset), "dtype": 0}
            self._nodes.append(_node("AscendAntiQuant", [source], made, attributes))
            return
        if source in self._initializers:
            values = initializer_array(self._initializers[source])
            self._constants[made] = _constant(node, values, scale, zero_point)
        elif source in self._constants:
            self._constants[made] = self._constants[source]
        else:
            raise ModelError(f"node '{node.name}' reads the integers '{source}', which no QuantizeLinear makes")
        self._add(made, self._constants[made].real().astype(np.float32))

    def _in_float(self, node: onnx.NodeProto) -> onnx.NodeProto:
        integers = [name for name in node.input if self._holds_integers(name)]
        if integers:
            raise ModelError(
                f"node '{node.name}' ({node.op_type}) reads '{integers[0]}' in eight bits: only a DequantizeLinear may"
            )
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        return copy

    def _in_integers(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The node and its AscendDequant; nothing where it stays float."""
        if node.op_type not in _HEAVY:
            return []
        activation, weight = self._activations.get(node.input[0]), self._constants.get(node.input[1])
        if activation is None or weight is None or not _fits(node, weight):
            return []
        scale = (np.float64(activation.scale) * weight.scale).astype(np.float32)
        inputs = [activation.integers, self._add(f"{node.name}_weight_int8", weight.values.astype(np.int8))]
        if len(node.input) > 2 and node.input[2]:
            bias = self._bias(node.input[2], scale)
            if bias is None:
                return []
            inputs.append(self._add(f"{node.name}_bias_int32", bias))
        sums, parameter = f"{node.output[0]}_int32", self._add(f"{node.name}_deq_scale", dequantization(scale))
        whole = onnx.NodeProto(op_type=node.op_type, name=node.name, input=inputs, output=[sums])
        whole.attribute.extend(node.attribute)
        return [whole, _node("AscendDequant", [sums, parameter], node.output[0], {"dtype": 0})]

    def _bias(self, name: str, scale: Floats) -> Integers | None:
        """The bias in steps of the sums; None where it is no constant, or does not fit."""
        if name in self._constants:
            return integer_bias(self._constants[name].real(), scale)
        tensor = self._initializers.get(name)
        return None if tensor is None else integer_bias(initializer_array(tensor).astype(np.float64), scale)

    def _holds_integers(self, name: str) -> bool:
        return name in self._activations and self._activations[name].integers == name

    def _parameters(self, node: onnx.NodeProto) -> tuple[Floats, npt.NDArray[np.generic]]:
        """Scale, shape (C,) or (1,), and zero point of the same shape."""
        names = [name for name in node.input[1:] if name]
        if not self._initializers.keys() >= set(names):
            raise ModelError(f"node '{node.name}' computes its scale while the graph runs: atc needs a constant")
        scale = np.atleast_1d(initializer_array(self._initializers[names[0]]).astype(np.float32))
        if len(names) == 1:
            return scale, np.zeros(scale.shape, np.uint8)
        return scale, np.atleast_1d(initializer_array(self._initializers[names[1]]))

    def _add(self, name: str, array: npt.NDArray[np.generic]) -> str:
        self._initializers[name] = numpy_helper.from_array(array, name)
        return name


def _constant(
    node: onnx.NodeProto, values: npt.NDArray[np.generic], scale: Floats, zero_point: npt.NDArray[np.generic]
) -> Constant:
    """Integers with their zero point taken off."""
    axis = attribute_of(node, "axis", 1) % max(values.ndim, 1)
    middle = zero_point.astype(np.int64)
    shape = [-1 if index == axis else 1 for index in range(values.ndim)] if middle.size > 1 else []
    return Constant(np.subtract(values.astype(np.int64), middle.reshape(shape)), scale, axis)


def _quantization(step: float, offset: int) -> Attributes:
    """Attributes of AscendQuant; the chip may hold the scale in FP16, which takes the root of a large one."""
    scale, rooted = 1 / step, 1 / step > LARGEST
    attributes: Attributes = {"scale": math.sqrt(scale) if rooted else scale}
    return {**attributes, "offset": float(offset), "dst_type": "INT8", **({"sqrt_mode": 1} if rooted else {})}


def _fits(node: onnx.NodeProto, weight: Constant) -> bool:
    """Whether a chip computes the node with these integers: int8, one scale for each output or for all."""
    values = weight.values
    if values.ndim < 2 or values.min(initial=0) < -128 or values.max(initial=0) > 127:
        return False
    if node.op_type == "MatMul" and values.ndim != 2:
        return False
    if node.op_type == "Gemm":
        plain = attribute_of(node, "alpha", 1.0) == attribute_of(node, "beta", 1.0) == 1.0
        if not plain or attribute_of(node, "transA", 0):
            return False
    return weight.scale.size == 1 or weight.axis == output_axis(node, values)


def _node(operator: str, inputs: list[str], output: str, attributes: Attributes) -> onnx.NodeProto:
    node = helper.make_node(operator, inputs, [output], f"{output}_{operator}")
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    return node
