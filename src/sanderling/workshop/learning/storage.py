"""The files of a task: graphs that share one file of frozen weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import numpy_helper

WEIGHTS = "weights.bin"
_INLINE_BYTES = 1024
_ALIGNMENT = 64


class SharedWeights:
    """A file that grows by every array that it does not hold yet."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("wb")
        self._places: dict[tuple[str, int], int] = {}

    def place(self, data: bytes) -> int:
        """Where these bytes are, written now if they were not there."""
        key = (hashlib.sha256(data).hexdigest(), len(data))
        if key not in self._places:
            self._stream.write(b"\0" * (-self._stream.tell() % _ALIGNMENT))
            self._places[key] = self._stream.tell()
            self._stream.write(data)
        return self._places[key]

    def close(self) -> None:
        """End the file."""
        self._stream.close()


def write_graphs(folder: Path, graphs: Mapping[str, onnx.ModelProto]) -> None:
    """Write graphs whose larger weights are in one file, each of them once.

    Args:
        folder: of the graphs; ``weights.bin`` is made in it.
        graphs: by file name; their weights are moved out of them.

    Raises:
        OSError: a file cannot be written.
    """
    shared = SharedWeights(folder / WEIGHTS)
    try:
        for name, model in graphs.items():
            for tensor in model.graph.initializer:
                _move_out(tensor, shared)
            (folder / name).write_bytes(model.SerializeToString(deterministic=True))
    finally:
        shared.close()


def _move_out(tensor: onnx.TensorProto, shared: SharedWeights) -> None:
    data = tensor.raw_data or numpy_helper.to_array(tensor).tobytes()
    if len(data) < _INLINE_BYTES:
        return
    offset = shared.place(data)
    kind, dims, name = tensor.data_type, list(tensor.dims), tensor.name
    tensor.Clear()
    tensor.data_type, tensor.name = kind, name
    tensor.dims.extend(dims)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", WEIGHTS), ("offset", offset), ("length", len(data))):
        tensor.external_data.add(key=key, value=str(value))
