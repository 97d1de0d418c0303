"""Products whose input is rounded to eight bits twice: itself, and what that lost.

``MatMulNBits`` rounds each block of its input to eight bits. A product with the identity does the same to the same
input, so what was lost is known, and is the second row of one product: its weights are read once for both rows. The sum
of the two has the input in 16 bits.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from sanderling.model.text import RESIDUAL
from sanderling.workshop.text.constants import Constants
from sanderling.workshop.text.decoder import Product

_DOMAIN = "com.microsoft"


class Residuals:
    """Writes nodes around products; an input that several of them read is split once.

    Attributes:
        constants: initialisers that the nodes read.
    """

    def __init__(self, block: int) -> None:
        self.constants = Constants(RESIDUAL)
        self._block = block
        self._split: set[str] = set()

    def of_product(self, product: Product, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Nodes in a product's place: ``node``, between those that make two rows of its input and add their results.

        Args:
            product: its input has the shape (batch, tokens, depth).
            node: MatMulNBits in blocks as wide as here; it is changed to read the rows.
        """
        pair = f"{RESIDUAL}{product.input}/pair"
        nodes = [] if product.input in self._split else self._pair(product.input, product.depth, pair)
        self._split.add(product.input)
        result, rows = node.output[0], f"{RESIDUAL}{node.output[0]}/rows"
        node.input[0], node.output[0] = pair, rows
        axis = self.constants.name("axis", np.array([2], np.int64))
        add = helper.make_node("ReduceSum", [rows, axis], [result], f"{RESIDUAL}{node.name}/Sum", keepdims=0)
        return [*nodes, node, add]

    def _pair(self, source: str, depth: int, target: str) -> list[onnx.NodeProto]:
        """Nodes from (batch, tokens, depth) to (batch, tokens, 2, depth)."""
        blocks, rounded, lost, both = (f"{RESIDUAL}{source}/{part}" for part in ("blocks", "rounded", "lost", "both"))
        in_blocks = self.constants.name(
            f"blocks.{depth}", np.array([0, 0, depth // self._block, self._block], np.int64)
        )
        in_rows = self.constants.name(f"rows.{depth}", np.array([0, 0, 2, depth], np.int64))
        identity = [
            self.constants.name("identity.codes", np.eye(self._block, dtype=np.uint8)[:, None]),
            self.constants.name("identity.scales", np.ones((self._block, 1), np.float32)),
            self.constants.name("identity.zero_points", np.zeros((self._block, 1), np.uint8)),
        ]
        return [
            helper.make_node("Reshape", [source, in_blocks], [blocks], blocks),
            helper.make_node(
                "MatMulNBits",
                [blocks, *identity],
                [rounded],
                rounded,
                domain=_DOMAIN,
                K=self._block,
                N=self._block,
                bits=8,
                block_size=self._block,
                accuracy_level=4,
            ),
            helper.make_node("Sub", [blocks, rounded], [lost], lost),
            helper.make_node("Concat", [blocks, lost], [both], both, axis=2),
            helper.make_node("Reshape", [both, in_rows], [target], target),
        ]
