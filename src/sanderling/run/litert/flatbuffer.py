"""A TFLite program in memory, and its flatbuffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sanderling.core.tensor import Array
from sanderling.run.litert.quantization import Quantization

TYPES = {
    "float32": "FLOAT32",
    "float16": "FLOAT16",
    "float64": "FLOAT64",
    **{f"{kind}{bits}": f"{kind.upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    "bool": "BOOL",
}
Options = tuple[str, Mapping[str, Any]]
_SCHEMA_VERSION = 3
_VERSIONS = {"BROADCAST_TO": 2}  # kernels look at types, not at the version; this one has no first version left
_ALIGNMENT_BYTES = 16  # that the schema asks for, and the generated writer forgets
_LAST_OLD_OPERATOR = 127  # later ones do not fit the older field


@dataclass(eq=False)
class Tensor:
    """One tensor of the program; ``data`` only for constants."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Array | None = None
    quantization: Quantization | None = None


@dataclass(frozen=True, eq=False)
class Operation:
    """One operator of the program.

    Attributes:
        code: TFLite's name, such as ``CONV_2D``.
        inputs: None for an optional one that is left out.
        options: name of the schema's options table, and its fields.
        origin: the ONNX operator that it was written for.
    """

    code: str
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    options: Options | None
    origin: str


@dataclass(eq=False)
class Program:
    """Operators in the order in which they run."""

    operations: list[Operation] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    def used(self) -> list[Operation]:
        """The operators whose results are needed."""
        needed = set(self.outputs)
        kept = []
        for operation in reversed(self.operations):
            if not needed.isdisjoint(operation.outputs):
                needed.update(tensor for tensor in operation.inputs if tensor is not None)
                kept.append(operation)
        return kept[::-1]


def serialize(program: Program) -> bytes:
    """The program as a ``.tflite`` file; operators whose results nobody reads are left out."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    operations = program.used()
    tensors = _tensors(program, operations)
    place = {tensor: position for position, tensor in enumerate(tensors)}
    codes = sorted({operation.code for operation in operations})
    buffers = [_buffer(None), *(_buffer(tensor.data) for tensor in tensors if tensor.data is not None)]
    graph = schema.SubGraphT()
    graph.name = "main"
    graph.tensors = _tensor_tables(tensors)
    graph.inputs = [place[tensor] for tensor in program.inputs]
    graph.outputs = [place[tensor] for tensor in program.outputs]
    graph.operators = [_operator_table(operation, place, codes.index(operation.code)) for operation in operations]
    model = schema.ModelT()
    model.version = _SCHEMA_VERSION
    model.description = "sanderling"
    model.operatorCodes = [_code_table(code) for code in codes]
    model.subgraphs = [graph]
    model.buffers = buffers
    size = sum(tensor.data.nbytes + _ALIGNMENT_BYTES for tensor in tensors if tensor.data is not None)
    builder = flatbuffers.Builder(size + 512 * (len(tensors) + len(operations)) + 4096)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _tensors(program: Program, operations: Sequence[Operation]) -> list[Tensor]:
    found = dict.fromkeys((*program.inputs, *program.outputs))
    for operation in operations:
        found.update(dict.fromkeys(tensor for tensor in operation.inputs if tensor is not None))
        found.update(dict.fromkeys(operation.outputs))
    return list(found)


def _buffer(data: Array | None) -> Any:  # noqa: ANN401 - the schema is untyped
    from ai_edge_litert import schema_py_generated as schema

    class AlignedBuffer(schema.BufferT):  # type: ignore[misc]
        """Packs its bytes where the schema's ``force_align`` wants them."""

        def Pack(self, builder: Any) -> Any:  # noqa: ANN401, N802 - the generated writer calls it so
            start = None
            if data is not None:
                raw = np.ascontiguousarray(data).tobytes()
                builder.StartVector(1, len(raw), _ALIGNMENT_BYTES)
                builder.head -= len(raw)
                builder.Bytes[builder.head : builder.head + len(raw)] = raw
                start = builder.EndVector()
            schema.BufferStart(builder)
            if start is not None:
                schema.BufferAddData(builder, start)
            return schema.BufferEnd(builder)

    return AlignedBuffer()


def _tensor_tables(tensors: Sequence[Tensor]) -> list[Any]:
    from ai_edge_litert import schema_py_generated as schema

    tables = []
    constants = 0
    for tensor in tensors:
        table = schema.TensorT()
        table.name = tensor.name
        table.type = getattr(schema.TensorType, TYPES[tensor.dtype])
        table.shape = list(tensor.shape)
        table.hasRank = True
        if tensor.data is not None:
            constants += 1
            table.buffer = constants
        if tensor.quantization is not None:
            table.quantization = schema.QuantizationParametersT()
            table.quantization.scale = [float(scale) for scale in tensor.quantization.scales]
            table.quantization.zeroPoint = [int(point) for point in tensor.quantization.zero_points]
            table.quantization.quantizedDimension = tensor.quantization.axis
        tables.append(table)
    return tables


def _operator_table(operation: Operation, place: Mapping[Tensor, int], code: int) -> Any:  # noqa: ANN401 - untyped
    from ai_edge_litert import schema_py_generated as schema

    table = schema.OperatorT()
    table.opcodeIndex = code
    table.inputs = [-1 if tensor is None else place[tensor] for tensor in operation.inputs]
    table.outputs = [place[tensor] for tensor in operation.outputs]
    if operation.options:
        name, fields = operation.options
        table.builtinOptionsType = getattr(schema.BuiltinOptions, name)
        table.builtinOptions = getattr(schema, f"{name}T")()
        for key, value in fields.items():
            setattr(table.builtinOptions, key, value)
    return table


def _code_table(code: str) -> Any:  # noqa: ANN401 - the schema is untyped
    from ai_edge_litert import schema_py_generated as schema

    table = schema.OperatorCodeT()
    table.builtinCode = getattr(schema.BuiltinOperator, code)
    table.deprecatedBuiltinCode = min(table.builtinCode, _LAST_OLD_OPERATOR)
    table.version = _VERSIONS.get(code, 1)
    return table
