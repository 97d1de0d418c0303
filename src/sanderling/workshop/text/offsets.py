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
from sanderling.workshop.text.decoder import Product
from sanderling.workshop.text.surroundings import Surroundings


class BlockMeans(Surroundings):
    """Puts the means of an input's blocks behind it."""

    def __init__(self, block: int) -> None:
        super().__init__(OFFSETS, block)

    def of_product(self, product: Product, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Nodes in a product's place: those that put the means behind its input, and ``node``, which reads both."""
        both = f"{OFFSETS}{product.input}/both"
        nodes = self._with_means(product.input, product.depth, both) if self._is_new(product.input) else []
        node.input[0] = both
        for attribute in node.attribute:
            if attribute.name == "K":
                attribute.i += product.depth // self._block
        return [*nodes, node]

    def _with_means(self, source: str, depth: int, target: str) -> list[onnx.NodeProto]:
        """Nodes from (batch, tokens, depth) to (batch, tokens, depth and blocks)."""
        in_blocks, means = self._in_blocks(source, depth), f"{OFFSETS}{source}/means"
        axis = self._constant("axis", np.array([3], np.int64))
        return [  # AveragePool would be one node fewer, and takes longer for many tokens
            in_blocks,
            helper.make_node("ReduceMean", [in_blocks.output[0], axis], [means], means, keepdims=0),
            helper.make_node("Concat", [source, means], [target], target, axis=2),
        ]
