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
from sanderling.workshop.text.decoder import Product
from sanderling.workshop.text.surroundings import Surroundings

_DOMAIN = "com.microsoft"


class Residuals(Surroundings):
    """Splits an input in two rows, and adds what a product makes of them."""

    def __init__(self, block: int) -> None:
        super().__init__(RESIDUAL, block)

    def of_product(self, product: Product, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Nodes in a product's place: ``node``, between those that make two rows of its input and add their results."""
        pair = f"{RESIDUAL}{product.input}/pair"
        nodes = self._pair(product.input, product.depth, pair) if self._is_new(product.input) else []
        result, rows = node.output[0], f"{RESIDUAL}{node.output[0]}/rows"
        node.input[0], node.output[0] = pair, rows
        axis = self._constant("axis", np.array([2], np.int64))
        add = helper.make_node("ReduceSum", [rows, axis], [result], f"{RESIDUAL}{node.name}/Sum", keepdims=0)
        return [*nodes, node, add]

    def _pair(self, source: str, depth: int, target: str) -> list[onnx.NodeProto]:
        """Nodes from (batch, tokens, depth) to (batch, tokens, 2, depth)."""
        rounded, lost, both = (f"{RESIDUAL}{source}/{part}" for part in ("rounded", "lost", "both"))
        in_blocks = self._in_blocks(source, depth)
        blocks = in_blocks.output[0]
        in_rows = self._constant(f"rows.{depth}", np.array([0, 0, 2, depth], np.int64))
        identity = [
            self._constant("identity.codes", np.eye(self._block, dtype=np.uint8)[:, None]),
            self._constant("identity.scales", np.ones((self._block, 1), np.float32)),
            self._constant("identity.zero_points", np.zeros((self._block, 1), np.uint8)),
        ]
        return [
            in_blocks,
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
