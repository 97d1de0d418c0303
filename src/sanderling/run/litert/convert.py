"""From an ONNX graph to the bytes of a TFLite model."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sanderling.run.litert.flatbuffer import Program, serialize
from sanderling.run.litert.graph import read_fixed
from sanderling.run.litert.lowering import Lowering
from sanderling.run.litert.operators import WRITERS

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Converted:
    """A TFLite model, and the ONNX operator that each of its operators was written for."""

    data: bytes
    origins: tuple[str, ...]


def convert(proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> Converted:
    """Write a graph for inputs of these shapes.

    Raises:
        ContradictionError: shapes or dtypes do not fit each other.
        ModelError: an operator has no exact form in TFLite.
    """
    program: Program = Lowering(read_fixed(proto, shapes, WRITERS)).run(WRITERS)
    return Converted(serialize(program), tuple(operation.origin for operation in program.used()))


@functools.cache
def sources_sha256() -> str:
    """Hash of this package's own files: a model that another writer wrote is not taken for one of this."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
