"""Small initialisers that nodes around products read."""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from sanderling.core.tensor import Array


class Constants:
    """Keeps each initialiser once.

    Args:
        prefix: begins their names.

    Attributes:
        tensors: by name.
    """

    def __init__(self, prefix: str) -> None:
        self.tensors: dict[str, onnx.TensorProto] = {}
        self._prefix = prefix

    def name(self, name: str, array: Array) -> str:
        """The whole name of an initialiser; the array of the first time is kept."""
        full = f"{self._prefix}{name}"
        if full not in self.tensors:
            self.tensors[full] = numpy_helper.from_array(array, full)
        return full
