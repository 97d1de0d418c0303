"""What nodes around products in blocks have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sanderling.core.tensor import Array
from sanderling.workshop.text.decoder import Product


class Surroundings(ABC):
    """Writes nodes around products; what several products read is made once.

    Args:
        prefix: begins the names of nodes, tensors and initialisers.
        block: values of an input that belong together.

    Attributes:
        constants: initialisers that the nodes read, by name.
    """

    def __init__(self, prefix: str, block: int) -> None:
        self.constants: dict[str, onnx.TensorProto] = {}
        self._prefix = prefix
        self._block = block
        self._known: set[str] = set()

    @abstractmethod
    def of_product(self, product: Product, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Nodes in a product's place.

        Args:
            product: its input has the shape (batch, tokens, depth).
            node: MatMulNBits in blocks as wide as here; it is changed, and is among the nodes.
        """

    def _is_new(self, source: str) -> bool:
        """Whether an input was not asked for before."""
        is_new = source not in self._known
        self._known.add(source)
        return is_new

    def _in_blocks(self, source: str, depth: int) -> onnx.NodeProto:
        """A node from (batch, tokens, depth) to (batch, tokens, blocks, values a block)."""
        shape = self._constant(f"blocks.{depth}", np.array([0, 0, depth // self._block, self._block], np.int64))
        target = f"{self._prefix}{source}/blocks"
        return helper.make_node("Reshape", [source, shape], [target], target)

    def _constant(self, name: str, array: Array) -> str:
        """The whole name of an initialiser; the array of the first time is kept."""
        full = f"{self._prefix}{name}"
        if full not in self.constants:
            self.constants[full] = numpy_helper.from_array(array, full)
        return full
