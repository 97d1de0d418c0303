"""Operators that compute each element by itself, broadcast where shapes differ."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from sanderling.run.litert.flatbuffer import TYPES, Options, Tensor
from sanderling.run.litert.graph import Node
from sanderling.run.litert.layout import Layout, arranged, cheapest
from sanderling.run.litert.lowering import Lowering, Writer
from sanderling.run.litert.operators.windows import Activation
from sanderling.run.litert.values import Value

_FUSED = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions", "DIV": "DivOptions"}
_SQUARE = 2
_IN_CODES = ("ADD", "SUB", "MUL")
_UNARY = {
    "Abs": "ABS", "Ceil": "CEIL", "Cos": "COS", "Exp": "EXP", "Floor": "FLOOR", "Log": "LOG", "Neg": "NEG",
    "Not": "LOGICAL_NOT", "Round": "ROUND", "Sign": "SIGN", "Sin": "SIN", "Sqrt": "SQRT",
}  # fmt: skip
_BINARY = {"Add": "ADD", "Sub": "SUB", "Mul": "MUL", "Div": "DIV", "And": "LOGICAL_AND",
    "Or": "LOGICAL_OR", "Equal": "EQUAL", "Greater": "GREATER", "GreaterOrEqual": "GREATER_EQUAL", "Less": "LESS",
    "LessOrEqual": "LESS_EQUAL",
}  # fmt: skip
_OPTIONS = {  # tables without fields, that some kernels want to see
    "ABS": "AbsOptions", "COS": "CosOptions", "EXP": "ExpOptions", "NEG": "NegOptions", "SIGN": "SignOptions",
    "LOGICAL_NOT": "LogicalNotOptions", "POW": "PowOptions", "LOGICAL_AND": "LogicalAndOptions",
    "LOGICAL_OR": "LogicalOrOptions", "EQUAL": "EqualOptions", "GREATER": "GreaterOptions", "LESS": "LessOptions",
    "GREATER_EQUAL": "GreaterEqualOptions", "LESS_EQUAL": "LessEqualOptions", "MAXIMUM": "MaximumMinimumOptions",
    "MINIMUM": "MaximumMinimumOptions",
}  # fmt: skip


def aligned(lowering: Lowering, values: Sequence[Value], rank: int) -> tuple[list[Tensor], Layout]:
    """Tensors of one layout whose axes can be broadcast against each other."""
    layout = cheapest([value for value in values if len(value.shape) == rank])
    return [_expanded(lowering, value, rank, layout) for value in values], layout


def _expanded(lowering: Lowering, value: Value, rank: int, layout: Layout) -> Tensor:
    missing = rank - len(value.shape)
    if layout is Layout.GRAPH or not missing or not value.shape:
        return lowering.tensor(value, layout)
    shape = (1,) * missing + value.shape
    wide = Value(value.name, shape, value.dtype, quantization=value.quantization)
    if value.constant is not None:
        wide.constant = value.constant.reshape(shape)
    else:
        wide.forms[Layout.GRAPH] = lowering.reshape(lowering.tensor(value), shape)
    return lowering.tensor(wide, layout)


def unary(lowering: Lowering, node: Node, code: str) -> None:
    """One tensor, one result."""
    tensor, layout = lowering.any_form(lowering.real(node.inputs[0]))
    options: Options | None = (_OPTIONS[code], {}) if code in _OPTIONS else None
    lowering.define(node.outputs[0], node.shapes[0], lowering.like(code, [tensor], tensor.shape, options), layout)


def binary(lowering: Lowering, node: Node, code: str) -> None:
    """Two tensors, one result; in int8 where both and the result have their codes."""
    shape = node.shapes[0]
    if code == "DIV" and node.dtypes[0] != "float32":
        raise node.refused("only float32 is divided exactly")  # ONNX cuts off, TFLite rounds down
    if code == "POW" and node.dtypes[0] != "float32":
        raise node.refused("only float32 has an exact form")
    ending = lowering.ending(node) if code in _FUSED and node.dtypes[0] == "float32" else None
    values = [lowering.value(name) for name in node.inputs]
    quantization = ending.quantization if ending and code in _IN_CODES else None
    if quantization is None or any(value.quantization is None or not value.quantization.per_tensor for value in values):
        quantization = None
        values = [lowering.real(name) for name in node.inputs]
    tensors, layout = aligned(lowering, values, len(shape))
    options: Options = (_FUSED[code], {}) if code in _FUSED else (_OPTIONS[code], {})
    if ending:
        options = (_FUSED[code], {"fusedActivationFunction": Activation[ending.activation]})
    result = lowering.emit(
        code, tensors, arranged(shape, layout), options, dtype=node.dtypes[0], quantization=quantization
    )
    lowering.define(ending.name if ending else node.outputs[0], shape, result, layout)


def power(lowering: Lowering, node: Node) -> None:
    """A square is a product, for which XNNPACK has a kernel; other powers are left to LiteRT's own."""
    exponent = lowering.value(node.inputs[1]).constant
    value = lowering.real(node.inputs[0])
    squared = exponent is not None and exponent.size == 1 and exponent.item() == _SQUARE
    if not squared or value.shape != node.shapes[0]:
        binary(lowering, node, "POW")
        return
    tensor, layout = lowering.any_form(value)
    result = lowering.emit("MUL", [tensor, tensor], tensor.shape, ("MulOptions", {}))
    lowering.define(node.outputs[0], node.shapes[0], result, layout)


def folded(lowering: Lowering, node: Node, code: str) -> None:
    """Max, Min, Sum of any number of tensors."""
    values = [lowering.real(name) for name in node.inputs]
    if len(values) == 1:
        lowering.set_value(node.outputs[0], values[0])
        return
    tensors, layout = aligned(lowering, values, len(node.shapes[0]))
    options: Options = (_OPTIONS.get(code) or _FUSED[code], {})
    result = tensors[0]
    for other in tensors[1:]:
        shape = np.broadcast_shapes(result.shape, other.shape)
        result = lowering.emit(code, [result, other], shape, options, dtype=node.dtypes[0])
    lowering.define(node.outputs[0], node.shapes[0], result, layout)


def reciprocal(lowering: Lowering, node: Node) -> None:
    """One over each element."""
    tensor, layout = lowering.any_form(lowering.real(node.inputs[0]))
    one = lowering.constant(np.ones((), np.float32))
    result = lowering.emit("DIV", [one, tensor], tensor.shape, ("DivOptions", {}))
    lowering.define(node.outputs[0], node.shapes[0], result, layout)


def where(lowering: Lowering, node: Node) -> None:
    """One of two tensors, element by element."""
    tensors, layout = aligned(lowering, [lowering.real(name) for name in node.inputs], len(node.shapes[0]))
    shape = arranged(node.shapes[0], layout)
    result = lowering.emit("SELECT_V2", tensors, shape, ("SelectV2Options", {}), dtype=node.dtypes[0])
    lowering.define(node.outputs[0], node.shapes[0], result, layout)


def cast(lowering: Lowering, node: Node) -> None:
    """Another dtype; floats become integers by cutting off, as in ONNX."""
    tensor, layout = lowering.any_form(lowering.real(node.inputs[0]))
    dtype = node.dtypes[0]
    if dtype not in TYPES:
        raise node.refused(f"{dtype} is no dtype of TFLite")
    if dtype == tensor.dtype:
        lowering.set_value(node.outputs[0], lowering.real(node.inputs[0]))
        return
    if dtype in ("int8", "uint8") and tensor.dtype.startswith("float"):
        raise node.refused(f"from {tensor.dtype} to {dtype} numbers out of range differ between engines")
    result = lowering.emit("CAST", [tensor], tensor.shape, ("CastOptions", {}), dtype=dtype)
    lowering.define(node.outputs[0], node.shapes[0], result, layout)


WRITERS: dict[str, Writer] = {
    **{operator: partial(unary, code=code) for operator, code in _UNARY.items()},
    **{operator: partial(binary, code=code) for operator, code in _BINARY.items()},
    "Max": partial(folded, code="MAXIMUM"),
    "Min": partial(folded, code="MINIMUM"),
    "Sum": partial(folded, code="ADD"),
    "Pow": power,
    "Reciprocal": reciprocal,
    "Where": where,
    "Cast": cast,
}
