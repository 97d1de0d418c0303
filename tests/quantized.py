"""The INT8 form of the tiny models, for engines that take no other."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxslim
from onnx import numpy_helper
from onnxruntime.quantization import QuantType
from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

from sanderling.model.graph import float_tensors, sorted_nodes, with_outputs
from tests.models import run_directly


def in_int8(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Put QuantizeLinear and DequantizeLinear around every node: activations uint8, weights int8 per channel.

    Args:
        model: float32 graph with named nodes that ONNX Runtime runs; its inputs and outputs stay float32.
        feeds: inputs that show how far each tensor ranges.
    """
    folded = _folded(model)
    spans = {name: (np.float32(low), np.float32(high)) for name, (low, high) in ranges_of(folded, feeds).items()}
    quantizer = QDQQuantizer(
        folded,
        per_channel=True,
        reduce_range=False,
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QUInt8,
        tensors_range=TensorsData(CalibrationMethod.MinMax, spans),
        nodes_to_quantize=[],
        nodes_to_exclude=[],
        op_types_to_quantize=sorted({node.op_type for node in folded.graph.node}),
        extra_options={},
    )
    quantizer.quantize_model()
    return sorted_nodes(quantizer.model.model)


def ranges_of(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, tuple[float, float]]:
    """Lowest and highest value of each float tensor."""
    tensors = float_tensors(model)
    seen = {**feeds, **run_directly(with_outputs(model, tensors), feeds)}
    return {name: (float(seen[name].min()), float(seen[name].max())) for name in tensors}


def step_of(model: onnx.ModelProto, output: str) -> float:
    """One quantisation step of an output, or 0 where it is not quantised."""
    scales = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    makers = [node for node in model.graph.node if output in node.output and node.op_type == "DequantizeLinear"]
    return float(scales[makers[0].input[1]]) if makers else 0.0


def _folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with its shapes, and BatchNormalization as a part of its Conv, as every INT8 variant has it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    normalizes = any(node.op_type == "BatchNormalization" for node in model.graph.node)
    return onnx.shape_inference.infer_shapes(onnxslim.slim(copy) if normalizes else copy)
