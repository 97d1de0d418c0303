"""Whether an INT8 variant's numbers are in a ``.ms``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from onnx import numpy_helper

from sanderling.workshop.targets.ms.reader import read

if TYPE_CHECKING:
    import onnx

_EIGHT_BITS = ("int8", "uint8")


def kept_weights(model: onnx.ModelProto, file: Path) -> float:
    """Share of a graph's eight-bit weights that a ``.ms`` has, with the same scales in the same order.

    Args:
        model: with QuantizeLinear and DequantizeLinear.
        file: the ``.ms``.
    """
    held = {
        (tensor.size_bytes, tuple(np.float32(scale.scale) for scale in tensor.scales))
        for tensor in read(file).tensors
        if tensor.constant and tensor.dtype == "int8"
    }
    wanted = _weights(model)
    return sum(weight in held for weight in wanted) / len(wanted) if wanted else 1.0


def _weights(model: onnx.ModelProto) -> list[tuple[int, tuple[np.float32, ...]]]:
    """Bytes and scales of each weight in eight bits."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    found = []
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in constants and node.input[1] in constants:
            codes = numpy_helper.to_array(constants[node.input[0]])
            if codes.dtype.name in _EIGHT_BITS:
                scales = numpy_helper.to_array(constants[node.input[1]]).astype(np.float32).ravel()
                found.append((codes.nbytes, tuple(scales)))
    return found
