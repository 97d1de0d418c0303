"""QuantizeLinear, DequantizeLinear."""

from __future__ import annotations

import numpy as np

from sanderling.core.tensor import Array
from sanderling.run.litert.graph import Node
from sanderling.run.litert.lowering import Lowering
from sanderling.run.litert.quantization import Quantization, signed
from sanderling.run.litert.values import Value


def quantize_linear(lowering: Lowering, node: Node) -> None:
    """Codes of a tensor; nothing where the operator before made these codes."""
    quantization = lowering.quantization_of(node, node.dtypes[0])
    if not quantization.per_tensor or node.dtypes[0] == "int32":
        raise node.refused(f"it makes {node.dtypes[0]} with {len(quantization.scales)} scales: expected 8 bits and one")
    value = lowering.value(node.inputs[0])
    if value.quantization == quantization:
        lowering.set_codes(node.outputs[0], value)
        return
    if value.constant is not None:
        codes = _codes(lowering.real(node.inputs[0]).constant, quantization)
        lowering.set_codes(node.outputs[0], Value(node.outputs[0], value.shape, "int8", codes, quantization))
        return
    if value.dtype not in ("float32", "int8"):
        raise node.refused(f"its input is {value.dtype}: expected float32")
    tensor, layout = lowering.any_form(value)
    forms = {layout: lowering.quantize(tensor, quantization)}
    lowering.set_codes(node.outputs[0], Value(node.outputs[0], value.shape, "int8", None, quantization, forms))


def dequantize_linear(lowering: Lowering, node: Node) -> None:
    """Nothing is written: what reads the output takes the codes, or asks for real numbers."""
    value = lowering.value(node.inputs[0])
    if value.quantization is not None:
        if value.quantization != lowering.quantization_of(node, _codes_dtype(lowering, node)):
            raise node.refused("its scale or zero point differs from those of the QuantizeLinear before")
        lowering.set_value(node.outputs[0], value)
        return
    if value.constant is None:
        raise node.refused(f"'{node.inputs[0]}' is no constant and does not come from QuantizeLinear")
    quantization = lowering.quantization_of(node, value.dtype)
    codes = signed(value.constant)
    lowering.set_value(node.outputs[0], Value(node.outputs[0], value.shape, str(codes.dtype), codes, quantization, {}))


def _codes_dtype(lowering: Lowering, node: Node) -> str:
    """The dtype that the ONNX graph gives the codes: that of the zero point, as it must be the same."""
    return str(lowering.constant_of(node, 2).dtype) if node.has(2) else "uint8"


def _codes(real: Array | None, quantization: Quantization) -> Array:
    assert real is not None
    scaled = np.rint(real / np.float32(quantization.scales[0])) + quantization.zero_points[0]
    codes: Array = np.clip(scaled, -128, 127).astype(np.int8)
    return codes


WRITERS = {"QuantizeLinear": quantize_linear, "DequantizeLinear": dequantize_linear}
