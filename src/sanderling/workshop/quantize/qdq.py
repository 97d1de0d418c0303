"""Insert QuantizeLinear and DequantizeLinear with ONNX Runtime's quantiser."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import onnx

from sanderling.model.graph import sorted_nodes
from sanderling.workshop.quantize.sensitive import sensitive_nodes
from sanderling.workshop.quantize.thresholds import Range

_OPERATORS = (
    "Conv", "ConvTranspose", "MatMul", "Gemm", "Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool",
    "MaxPool", "Relu", "Clip", "LeakyRelu", "Sigmoid", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze",
    "Resize", "Pad", "Split", "Slice",
)  # fmt: skip
_QUANTIZED = (
    "QuantizeLinear",
    "DequantizeLinear",
    "QLinearConv",
    "QLinearMatMul",
    "ConvInteger",
    "MatMulInteger",
)


def is_quantized(model: onnx.ModelProto) -> bool:
    """Whether the graph already computes in integers or carries Q/DQ nodes."""
    return any(node.op_type in _QUANTIZED for node in model.graph.node)


def to_int8(model: onnx.ModelProto, ranges: Mapping[str, Range]) -> onnx.ModelProto:
    """Quantise weights to int8 per output channel (symmetric) and activations to uint8 per tensor.

    Nodes that ``sensitive_nodes`` names stay float.

    Args:
        model: simplified FP32 graph with named nodes; it is left alone.
        ranges: lowest and highest value that each activation's eight bits cover.

    Source: ONNX operators QuantizeLinear and DequantizeLinear, opset 13.
    """
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    spans = {name: (np.float32(low), np.float32(high)) for name, (low, high) in ranges.items()}
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        quantizer = QDQQuantizer(
            copy,
            per_channel=True,
            reduce_range=False,
            weight_qType=QuantType.QInt8,
            activation_qType=QuantType.QUInt8,
            tensors_range=TensorsData(CalibrationMethod.MinMax, spans),
            nodes_to_quantize=[],
            nodes_to_exclude=sensitive_nodes(copy),
            op_types_to_quantize=list(_OPERATORS),
            extra_options={},
        )
        quantizer.quantize_model()
    finally:
        root.setLevel(level)
    return sorted_nodes(quantizer.model.model)
