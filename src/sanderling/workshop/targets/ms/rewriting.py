"""Exact other forms of what MindSpore's converter does not read in TFLite, or its eight-bit kernels compute wrongly.

Version 2.0.0 was held against ONNX Runtime, one operator after another: its eight-bit mean is up to eight steps low,
its eight-bit sum of two shapes and its eight-bit padding of a pooling are wrong, a broadcast and a transposed
convolution with a bias are not read, and a QuantizeLinear before a DequantizeLinear is dropped with its rounding and
clipping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sanderling.core.errors import ModelError
from sanderling.run.litert.flatbuffer import Operation, Tensor

if TYPE_CHECKING:
    from sanderling.run.litert.flatbuffer import Program

Rewrite = Callable[[Operation], list[Operation]]
_FLOAT_ALWAYS = ("MEAN", "SUM", "REDUCE_PROD", "PADV2", "MAX_POOL_2D", "AVERAGE_POOL_2D", "TRANSPOSE_CONV")
_FLOAT_WHERE_SHAPES_DIFFER = ("ADD", "SUB")
_BIAS = 3  # of a transposed convolution


def rewrite(program: Program) -> None:
    """Put the other forms into a program."""
    for step in (_tiled, _in_float, _biased_afterwards, _with_rows_open):
        program.operations = [made for operation in program.operations for made in step(operation)]
    program.operations = _kept_roundings(program.operations)


def _tiled(operation: Operation) -> list[Operation]:
    """Write a broadcast as repeats along each axis.

    Raises:
        ModelError: it adds axes.
    """
    if operation.code != "BROADCAST_TO":
        return [operation]
    given, made = operation.inputs[0], operation.outputs[0]
    if given is None or len(given.shape) != len(made.shape):
        raise ModelError(f"operator {operation.origin}: MindSpore's converter does not read a broadcast that adds axes")
    repeats = [size // own for size, own in zip(made.shape, given.shape, strict=True)]
    return [replace(operation, code="TILE", inputs=(given, _ints(repeats)))]


def _in_float(operation: Operation) -> list[Operation]:
    """Compute in float what the eight-bit kernels get wrong: between a Dequantize and a Quantize, as it is defined."""
    (made, *others), given = operation.outputs, operation.inputs
    shapes = {tensor.shape for tensor in given if tensor is not None}
    wrong = operation.code in _FLOAT_ALWAYS
    wrong = wrong or (operation.code in _FLOAT_WHERE_SHAPES_DIFFER and len(shapes) > 1)
    if not wrong or made.quantization is None or others:
        return [operation]
    before: list[Operation] = []
    inputs = tuple(_real(tensor, before, operation.origin) for tensor in given)
    real = Tensor(f"{made.name}_real", "float32", made.shape)
    return [
        *before,
        replace(operation, inputs=inputs, outputs=(real,)),
        Operation("QUANTIZE", (real,), (made,), ("QuantizeOptions", {}), operation.origin),
    ]


def _real(tensor: Tensor | None, before: list[Operation], origin: str) -> Tensor | None:
    """A tensor as float32, by an operation that is added to ``before`` where it is no constant."""
    if tensor is None or tensor.quantization is None:
        return tensor
    if tensor.data is not None:
        return Tensor(tensor.name, "float32", tensor.shape, tensor.quantization.dequantize(tensor.data))
    real = Tensor(f"{tensor.name}_real", "float32", tensor.shape)
    before.append(Operation("DEQUANTIZE", (tensor,), (real,), None, origin))
    return real


def _biased_afterwards(operation: Operation) -> list[Operation]:
    """Add the bias of a transposed convolution after it, with its activation."""
    if operation.code != "TRANSPOSE_CONV" or len(operation.inputs) <= _BIAS:
        return [operation]
    assert operation.options is not None
    (made,), (table, fields) = operation.outputs, operation.options
    activation = fields["fusedActivationFunction"]
    raw = Tensor(f"{made.name}_raw", made.dtype, made.shape)
    plain = (table, {**fields, "fusedActivationFunction": type(activation)(0)})
    return [
        replace(operation, inputs=operation.inputs[:_BIAS], outputs=(raw,), options=plain),
        Operation(
            "ADD",
            (raw, operation.inputs[_BIAS]),
            (made,),
            ("AddOptions", {"fusedActivationFunction": activation}),
            operation.origin,
        ),
    ]


def _with_rows_open(operation: Operation) -> list[Operation]:
    """Let a Reshape that keeps the first axis take any number of rows, so that the file can be resized."""
    if operation.code != "RESHAPE":
        return [operation]
    given, made = operation.inputs[0], operation.outputs[0]
    if given is None or not made.shape or given.shape[:1] != made.shape[:1]:
        return [operation]
    sizes = [-1, *made.shape[1:]]
    return [replace(operation, inputs=(given, _ints(sizes)), options=("ReshapeOptions", {"newShape": sizes}))]


def _kept_roundings(operations: Sequence[Operation]) -> list[Operation]:
    """Part each Dequantize from a Quantize before it, which the converter would drop together."""
    rounded: set[Tensor] = set()
    kept: list[Operation] = []
    for operation in operations:
        codes = operation.inputs[0]
        if operation.code == "QUANTIZE" or (operation.code == "TRANSPOSE" and codes in rounded):
            rounded.add(operation.outputs[0])
        if operation.code == "DEQUANTIZE" and codes in rounded and codes is not None and codes.shape:
            same = Tensor(f"{codes.name}_kept", codes.dtype, codes.shape, quantization=codes.quantization)
            sizes = [-1, *codes.shape[1:]]
            options = ("ReshapeOptions", {"newShape": sizes})
            kept.append(Operation("RESHAPE", (codes, _ints(sizes)), (same,), options, operation.origin))
            kept.append(replace(operation, inputs=(same,)))
        else:
            kept.append(operation)
    return kept


def _ints(values: Sequence[int]) -> Tensor:
    return Tensor("constant", "int32", (len(values),), np.array(values, np.int32))
