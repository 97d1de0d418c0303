"""Activations that the converter cannot read in TFLite, though ``.ms`` has them.

Each goes through the converter as a LeakyRelu whose slope nobody would choose, and gets its own kind in the file
afterwards: there, all activations are one operator, whose kind is one byte.

Source: ``ActivationType`` of the schema ``ops_types.fbs`` of MindSpore Lite.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sanderling.core.errors import ModelError
from sanderling.workshop.targets.ms.reader import nodes_of

if TYPE_CHECKING:
    from sanderling.run.litert.flatbuffer import Operation, Program

_ACTIVATION = "Activation"
_LEAKY_RELU = 5


@dataclass(frozen=True)
class _Kind:
    """An activation: its number in the file, its parameter there, and the slope that stands for it meanwhile."""

    number: int
    alpha: float
    slope: float


_KINDS = {"GELU": _Kind(19, 0.0, -7.4142135), "ELU": _Kind(4, 1.0, -7.7320508)}


def stand_in(program: Program) -> int:
    """Put LeakyRelus in the places of exact GELUs and ELUs; returns how many there are."""
    replaced = [_stood_for(operation) for operation in program.operations]
    count = sum(new is not old for new, old in zip(replaced, program.operations, strict=True))
    program.operations = replaced
    return count


def _stood_for(operation: Operation) -> Operation:
    kind = _KINDS.get(operation.code)
    if kind is None or (operation.options and operation.options[1].get("approximate")):
        return operation
    return replace(operation, code="LEAKY_RELU", options=("LeakyReluOptions", {"alpha": kind.slope}))


def restored(data: bytes, count: int) -> bytes:
    """The file with the activations that LeakyRelus stand for.

    Args:
        data: of the ``.ms``.
        count: how many stand for something.

    Raises:
        ModelError: there are more or fewer of them in the file.
    """
    written, found = bytearray(data), 0
    kinds = {struct.pack("<f", kind.slope): kind for kind in _KINDS.values()}
    for operator, fields in nodes_of(data):
        if operator != _ACTIVATION or fields.byte(0) != _LEAKY_RELU:
            continue
        number, alpha = fields.place(0), fields.place(1)
        kind = kinds.get(bytes(data[alpha : alpha + 4])) if alpha else None
        if kind is not None:
            written[number] = kind.number
            struct.pack_into("<f", written, alpha, kind.alpha)
            found += 1
    if found != count:
        raise ModelError(f"the converter kept {found} of {count} activations that stand for GELU or ELU")
    return bytes(written)
