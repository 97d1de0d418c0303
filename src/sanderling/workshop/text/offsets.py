"""Products of four bits whose levels begin at any value.

``MatMulNBits`` computes scale · (code − zero point) with whole zero points. Levels that do not hold zero lie by some
offset beside that, the same for all values of a block, which adds the offset times the sum of the block's inputs. So
the means of the blocks are put behind the inputs, and the offsets are further rows of the weight, in four bits as well.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from sanderling.model.text import OFFSETS
from sanderling.workshop.text.constants import Constants
from sanderling.workshop.text.decoder import Product


class BlockMeans:
    """Writes nodes before products; an input that several of them read is averaged once.

    Attributes:
        constants: initialisers that the nodes read.
    """

    def __init__(self, block: int) -> None:
        self.constants = Constants(OFFSETS)
        self._block = block
        self._averaged: set[str] = set()

    def of_product(self, product: Product, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Nodes in a product's place: those that put the means behind its input, and ``node``, which reads both.

        Args:
            product: its input has the shape (batch, tokens, depth).
            node: MatMulNBits in blocks as wide as here; it is changed to read the means.
        """
        both = f"{OFFSETS}{product.input}/both"
        nodes = [] if product.input in self._averaged else self._with_means(product.input, product.depth, both)
        self._averaged.add(product.input)
        node.input[0] = both
        for attribute in node.attribute:
            if attribute.name == "K":
                attribute.i += product.depth // self._block
        return [*nodes, node]

    def _with_means(self, source: str, depth: int, target: str) -> list[onnx.NodeProto]:
        """Nodes from (batch, tokens, depth) to (batch, tokens, depth and blocks)."""
        blocks, means = f"{OFFSETS}{source}/blocks", f"{OFFSETS}{source}/means"
        in_blocks = self.constants.name(
            f"blocks.{depth}", np.array([0, 0, depth // self._block, self._block], np.int64)
        )
        axis = self.constants.name("axis", np.array([3], np.int64))
        return [  # AveragePool would be one node fewer, and takes longer for many tokens
            helper.make_node("Reshape", [source, in_blocks], [blocks], blocks),
            helper.make_node("ReduceMean", [blocks, axis], [means], means, keepdims=0),
            helper.make_node("Concat", [source, means], [target], target, axis=2),
        ]
