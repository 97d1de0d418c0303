"""What a ``.ms`` holds, read without MindSpore: operators, tensors, dtypes, and how codes stand for numbers.

Source: the schema ``model.fbs`` of MindSpore Lite; fields are found by their place in it.
"""

from __future__ import annotations

import functools
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from flatbuffers import number_types
from flatbuffers.table import Table

from sanderling.core.errors import ModelError, first_line

_IDENTIFIER = b"MSL2"
_IDENTIFIER_AT = 4
_VTABLE_BYTES = 4  # before the first field's entry
_DTYPES = {  # MindSpore's numbers
    30: "bool",
    32: "int8",
    33: "int16",
    34: "int32",
    35: "int64",
    37: "uint8",
    38: "uint16",
    39: "uint32",
    40: "uint64",
    42: "float16",
    43: "float32",
    44: "float64",
}
_CAST = "QuantDTypeCast"
_CODES = "int8"


@dataclass(frozen=True)
class Scale:
    """How the codes of a tensor, or of one channel of it, stand for real numbers."""

    scale: float
    zero_point: int
    bits: int


@dataclass(frozen=True)
class MsTensor:
    """One tensor of the file.

    Attributes:
        data: its elements, where they are in the file.
        scales: none, one, or one a channel.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes
    scales: tuple[Scale, ...]


@dataclass(frozen=True)
class MsNode:
    """One operator of the file; inputs and outputs are places in the list of tensors."""

    name: str
    operator: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class MsModel:
    """A whole file."""

    tensors: tuple[MsTensor, ...]
    nodes: tuple[MsNode, ...]
    inputs: tuple[MsTensor, ...]
    outputs: tuple[MsTensor, ...]


@dataclass(frozen=True)
class Description:
    """A ``.ms`` in numbers.

    Attributes:
        operators: how many nodes of each operator it has.
        weight_bytes: of its constants, by dtype.
        quantized_share: of the operators that compute something, those that read or make eight-bit codes;
            casts are not counted.
    """

    inputs: tuple[MsTensor, ...]
    outputs: tuple[MsTensor, ...]
    operators: dict[str, int]
    weight_bytes: dict[str, int]
    quantized_share: float


def describe(model: MsModel) -> Description:
    """Count what a ``.ms`` holds."""
    computing = [node for node in model.nodes if node.operator != _CAST]
    quantized = [
        node
        for node in computing
        if any(model.tensors[place].dtype == _CODES for place in (*node.inputs, *node.outputs))
    ]
    sizes: Counter[str] = Counter()
    for tensor in model.tensors:
        sizes[tensor.dtype] += len(tensor.data)
    return Description(
        model.inputs,
        model.outputs,
        dict(Counter(node.operator for node in model.nodes).most_common()),
        {dtype: size for dtype, size in sizes.most_common() if size},
        len(quantized) / len(computing) if computing else 0.0,
    )


def read(path: Path) -> MsModel:
    """Read a ``.ms``.

    Raises:
        ModelError: it is no ``.ms``, or is broken.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or first_line(error)}") from error
    if data[_IDENTIFIER_AT : _IDENTIFIER_AT + len(_IDENTIFIER)] != _IDENTIFIER:
        raise ModelError(f"{path} is no .ms of MindSpore Lite: its bytes do not say {_IDENTIFIER.decode()}")
    try:
        return _model(data)
    except (struct.error, IndexError, ValueError, TypeError) as error:
        raise ModelError(f"{path} is a damaged .ms: {first_line(error)}") from error


def nodes_of(data: bytes) -> Iterator[tuple[str, Fields]]:
    """Operator of each node, and the fields of its own that are in the file."""
    for fields in _root(data).tables(6):
        primitive = fields.inner(2)
        yield _operator(primitive), primitive.inner(1)


def _root(data: bytes) -> Fields:
    return Fields(Table(data, struct.unpack_from("<I", data)[0]))


def _model(data: bytes) -> MsModel:
    root = _root(data)
    tensors = tuple(_tensor(fields) for fields in root.tables(7))
    nodes = tuple(_node(fields) for fields in root.tables(6))
    given, returned = root.numbers(3), root.numbers(4)
    named = {*given, *returned, *(place for node in nodes for place in (*node.inputs, *node.outputs))}
    if not all(0 <= place < len(tensors) for place in named):
        raise ValueError(f"it names tensors that are not among its {len(tensors)}")
    return MsModel(
        tensors, nodes, tuple(tensors[place] for place in given), tuple(tensors[place] for place in returned)
    )


def _tensor(fields: Fields) -> MsTensor:
    kind = fields.number(1)
    return MsTensor(
        fields.text(9),
        _DTYPES.get(kind, f"dtype {kind}"),
        tuple(fields.numbers(2)),
        fields.raw(6),
        tuple(_scale(inner) for inner in fields.tables(7)),
    )


def _scale(fields: Fields) -> Scale:
    return Scale(fields.real(0, 1.0), fields.number(1), fields.number(5, 8))


def _node(fields: Fields) -> MsNode:
    return MsNode(fields.text(0), _operator(fields.inner(2)), tuple(fields.numbers(3)), tuple(fields.numbers(4)))


def _operator(primitive: Fields) -> str:
    kind, names = primitive.byte(0), _operators()
    return names[kind - 1] if 0 < kind <= len(names) else f"operator {kind}"


class Fields:
    """One table of a flatbuffer; its fields by their place in the schema."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def place(self, place: int) -> int:
        """Where a field is, from the start of the file; 0 where it has its default."""
        offset = self._table.Offset(_VTABLE_BYTES + 2 * place)
        return offset + self._table.Pos if offset else 0

    def number(self, place: int, default: int = 0) -> int:
        """A field of type int."""
        at = self.place(place)
        return int(self._table.Get(number_types.Int32Flags, at)) if at else default

    def byte(self, place: int) -> int:
        """A field of type ubyte, such as the kind of a union."""
        at = self.place(place)
        return int(self._table.Get(number_types.Uint8Flags, at)) if at else 0

    def real(self, place: int, default: float) -> float:
        """A field of type double."""
        at = self.place(place)
        return float(self._table.Get(number_types.Float64Flags, at)) if at else default

    def text(self, place: int) -> str:
        """A string."""
        at = self.place(place)
        return self._table.String(at).decode(errors="replace") if at else ""

    def length(self, place: int) -> int:
        """How many elements a vector has."""
        at = self.place(place)
        return int(self._table.VectorLen(at - self._table.Pos)) if at else 0

    def numbers(self, place: int) -> list[int]:
        """A vector of 32-bit integers."""
        count = self.length(place)
        start = self._table.Vector(self.place(place) - self._table.Pos) if count else 0
        return list(struct.unpack_from(f"<{count}i", self._table.Bytes, start))

    def raw(self, place: int) -> bytes:
        """A vector of bytes."""
        count = self.length(place)
        start = self._table.Vector(self.place(place) - self._table.Pos) if count else 0
        if start + count > len(self._table.Bytes):
            raise ValueError(f"{count} bytes reach beyond its end")
        return bytes(self._table.Bytes[start : start + count])

    def tables(self, place: int) -> Iterator[Fields]:
        """A vector of tables."""
        count = self.length(place)
        start = self._table.Vector(self.place(place) - self._table.Pos) if count else 0
        for index in range(count):
            yield Fields(Table(self._table.Bytes, self._table.Indirect(start + 4 * index)))

    def inner(self, place: int) -> Fields:
        """A table."""
        return Fields(Table(self._table.Bytes, self._table.Indirect(self.place(place))))


@functools.cache
def _operators() -> tuple[str, ...]:
    """Names of all operators; the first has number 1."""
    return tuple(resources.files(__package__).joinpath("ms_operators.txt").read_text("utf-8").split())
