"""Convolutions with few places in their output, as one product for the whole batch."""

from __future__ import annotations

import math

import onnx

from sanderling.workshop.learning.draft import Draft, integer
from sanderling.workshop.learning.gradients.convolution import columns, window
from sanderling.workshop.learning.gradients.step import Step, fixed

_FOLDED_BELOW = 16


def fold_batches(draft: Draft) -> None:
    """Rewrite the convolutions whose weight is trained and whose output has few places; changed in place.

    An engine reads the whole weight again for each sample. Of a frozen weight it keeps a copy in an order of its own,
    which is better still.
    """
    nodes, draft.nodes = draft.nodes, []
    for node in nodes:
        if node.op_type == "Conv" and _is_folded(draft, node):
            _fold(Step(draft, node, (None,), frozenset()))
        else:
            draft.nodes.append(node)


def _is_folded(draft: Draft, node: onnx.NodeProto) -> bool:
    out = draft.shapes.get(node.output[0])
    if out is None or draft.known(node.input[1]) is not None or integer(node, "group", 1) != 1:
        return False
    places = [size for size in out[2:] if isinstance(size, int)]
    return len(places) == len(out) - 2 and math.prod(places) < _FOLDED_BELOW


def _fold(step: Step) -> None:
    """(O, I · taps) · (I · taps, N · places), and the batch in front again."""
    weight, draft = step.shape(1), step.draft
    spatial = range(2, len(weight))
    sizes = fixed(step, weight, range(len(weight)))
    channels = sizes[0]
    out = fixed(step, step.out_shape, spatial)
    moved = window(step, step.node, sizes[2:])
    rows = step.op("Reshape", step.x(1), draft.integers([channels, -1]))
    bias = [step.op("Reshape", step.x(2), draft.integers([channels, 1]))] if step.has(2) else []
    y = step.op(
        "Reshape", step.op("Gemm", rows, columns(step, moved, out), *bias), draft.integers([channels, -1, *out])
    )
    step.op("Transpose", y, perm=[1, 0, *spatial])
    draft.nodes[-1].output[0] = step.y
