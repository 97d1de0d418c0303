"""Give every node a name of its own, so that evidence can point at it."""

from __future__ import annotations

import onnx


def name_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Name unnamed nodes and rename duplicates, in place, after their operator and position."""
    taken: set[str] = set()
    for position, node in enumerate(model.graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_{position}"
        taken.add(node.name)
    return model
