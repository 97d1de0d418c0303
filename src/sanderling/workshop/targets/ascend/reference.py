"""The deploy form without the chip: Ascend's operators by their definitions, in standard ONNX that any engine runs.

Definitions, from the vendor's documents of these operators: AscendQuant is ``round(x * scale + offset)``, half to even,
in [-128, 127]. A Conv, Gemm or MatMul of integers takes the offset from the AscendQuant before it, pads with it, and
sums ``weight * (x - offset) + bias`` in 32 bits. AscendDequant is ``x * deq_scale``, AscendAntiQuant
``(x + offset) * scale``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from sanderling.core.errors import ModelError
from sanderling.core.tensor import Array
from sanderling.model.graph import initializer_array
from sanderling.model.rewriting import GraphView, Parts, attribute_of, rewritten
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions, Optimization

Feeds = Mapping[str, Array]
_MADE = "_again"
_LEVELS = 255


def in_standard_onnx(deploy: onnx.ModelProto) -> onnx.ModelProto:
    """A graph that computes what the chip is documented to compute; ``deploy`` is left alone."""
    copy = onnx.ModelProto()
    copy.CopyFrom(deploy)
    quants = [node for node in deploy.graph.node if node.op_type == "AscendQuant"]
    offsets = {node.output[0].removesuffix(_MADE): int(attribute_of(node, "offset", 0.0)) for node in quants}
    convolved = {
        node.output[0]: len(_dims(deploy, node.input[1])) for node in deploy.graph.node if node.op_type == "Conv"
    }

    def rewrite(node: onnx.NodeProto, graph: GraphView) -> list[onnx.NodeProto] | None:
        if node.op_type in ("Conv", "Gemm", "MatMul") and node.input[0] in offsets:
            return _sums(node, graph, offsets[node.input[0]])
        if node.op_type == "AscendDequant":
            return _dequantised(node, graph, convolved.get(node.input[0], 2))
        define = {"AscendQuant": _quantised, "AscendAntiQuant": _real}.get(node.op_type)
        return define(node, graph) if define else None

    return rewritten(copy, rewrite)


@dataclass(frozen=True)
class Difference:
    """How far a deploy form is from its QDQ graph.

    Attributes:
        steps: the largest, in quantisation steps.
        share: of the stored values that differ at all, in [0, 1].
    """

    steps: float
    share: float


def difference(
    qdq: onnx.ModelProto, deploy: onnx.ModelProto, calls: Sequence[Feeds], *, threads: int = 0
) -> Difference:
    """Compare everything that is stored in eight bits, and the outputs.

    Each operator is given the QDQ graph's own integers, so that a value between two steps that falls the other way is
    not carried on: end to end even ONNX Runtime's two ways to run one QDQ graph differ by more. Outputs that are not
    stored in eight bits count in 255ths of the range that they have.

    Args:
        qdq: the variant's graph.
        deploy: as it was written.
        calls: feeds, each with an array for every input.
        threads: of the engine; 0 leaves it to the engine.
    """
    stored = [node.output[0] for node in deploy.graph.node if node.op_type == "AscendQuant"]
    expected = _run(_returning(qdq, stored), calls, threads)
    integers = [{name: _as_int8(outputs[name]) for name in stored} for outputs in expected]
    feeds = [{**own, **kept} for own, kept in zip(calls, integers, strict=True)]
    made = _run(in_standard_onnx(_cut(deploy, integers[0])), feeds, threads)
    apart = [
        np.abs(got[f"{name}{_MADE}"].astype(np.int16) - kept[name])
        for kept, got in zip(integers, made, strict=True)
        for name in stored
    ]
    steps = _output_steps(qdq)
    worst = max((float(array.max(initial=0)) for array in apart), default=0.0)
    for wanted, got in zip(expected, made, strict=True):
        for name in (value.name for value in qdq.graph.output):
            step = steps.get(name) or float(np.ptp(wanted[name])) / _LEVELS or 1.0
            worst = max(worst, float(np.abs(got[name] - wanted[name]).max(initial=0)) / step)
    moved, count = sum(int(np.count_nonzero(array)) for array in apart), sum(array.size for array in apart)
    return Difference(round(worst, 3), moved / max(count, 1))


def _cut(deploy: onnx.ModelProto, stored: Feeds) -> onnx.ModelProto:
    """The graph in pieces: what is stored in eight bits is an input for those who read it, and an output."""
    copy = onnx.ModelProto()
    copy.CopyFrom(deploy)
    for node in copy.graph.node:
        if node.op_type == "AscendQuant":
            name = node.output[0]
            axes = [f"{name}_axis{axis}" for axis in range(stored[name].ndim)]
            copy.graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.INT8, axes))
            copy.graph.output.append(helper.make_tensor_value_info(f"{name}{_MADE}", onnx.TensorProto.INT8, None))
            node.output[0] = f"{name}{_MADE}"
    return copy


def _returning(qdq: onnx.ModelProto, stored: Sequence[str]) -> onnx.ModelProto:
    """The QDQ graph that also returns integers."""
    copy = onnx.ModelProto()
    copy.CopyFrom(qdq)
    tensors = {tensor.name: tensor.data_type for tensor in qdq.graph.initializer}
    types = {
        node.output[0]: tensors[node.input[2]] if len(node.input) > 2 and node.input[2] else onnx.TensorProto.UINT8
        for node in qdq.graph.node
        if node.op_type == "QuantizeLinear"
    }
    copy.graph.output.extend(helper.make_tensor_value_info(name, types[name], None) for name in stored)
    return copy


def _as_int8(integers: Array) -> Array:
    return (integers.astype(np.int16) - 128).astype(np.int8) if integers.dtype == np.uint8 else integers


def _quantised(node: onnx.NodeProto, graph: GraphView) -> list[onnx.NodeProto]:
    part = Parts(node, graph)
    scaled = node.input[0]
    for _ in range(2 if attribute_of(node, "sqrt_mode", 0) else 1):
        scaled = part("Mul", [scaled, part.constant(attribute_of(node, "scale", 0.0))])
    moved = part("Add", [scaled, part.constant(attribute_of(node, "offset", 0.0))])
    bounded = part("Clip", [part("Round", [moved]), part.constant(-128), part.constant(127)])
    return part.finished(part("Cast", [bounded], to=onnx.TensorProto.INT8))


def _real(node: onnx.NodeProto, graph: GraphView) -> list[onnx.NodeProto]:
    part = Parts(node, graph)
    wide = part("Cast", [node.input[0]], to=onnx.TensorProto.FLOAT)
    moved = part("Add", [wide, part.constant(attribute_of(node, "offset", 0.0))])
    return part.finished(part("Mul", [moved, part.constant(attribute_of(node, "scale", 0.0))]))


def _sums(node: onnx.NodeProto, graph: GraphView, offset: int) -> list[onnx.NodeProto]:
    """Sums of products in 32 bits, and the bias."""
    part = Parts(node, graph)
    weight, zero = graph.constant(node.input[1]), graph.add(np.array(offset, np.int8))
    assert weight is not None
    if node.op_type == "Conv":
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        sums = part("ConvInteger", [node.input[0], node.input[1], zero], **attributes)
    else:
        turned = weight.T if node.op_type == "Gemm" and attribute_of(node, "transB", 0) else weight
        sums = part("MatMulInteger", [node.input[0], graph.add(np.ascontiguousarray(turned)), zero])
    if len(node.input) < 3:
        return part.finished(sums)
    bias = graph.constant(node.input[2])
    assert bias is not None
    spread = bias.reshape(-1, *(1,) * (weight.ndim - 2)) if node.op_type == "Conv" else bias
    return part.finished(part("Add", [sums, graph.add(spread)]))


def _dequantised(node: onnx.NodeProto, graph: GraphView, rank: int) -> list[onnx.NodeProto]:
    parameter = graph.constant(node.input[1])
    assert parameter is not None
    if (parameter >> np.uint64(32)).any():
        raise ModelError(f"node '{node.name}' has an offset of the weight: the reference knows symmetric weights alone")
    scale = parameter.astype(np.uint32).view(np.float32).reshape(-1, *(1,) * (rank - 2))
    part = Parts(node, graph)
    wide = part("Cast", [node.input[0]], to=onnx.TensorProto.FLOAT)
    return part.finished(part("Mul", [wide, graph.add(scale)]))


def _dims(model: onnx.ModelProto, name: str) -> list[int]:
    return next((list(tensor.dims) for tensor in model.graph.initializer if tensor.name == name), [])


def _run(model: onnx.ModelProto, calls: Sequence[Feeds], threads: int) -> list[dict[str, Array]]:
    """Outputs of each call by name; nothing of the graph is rewritten."""
    executable = engine().load(
        model.SerializeToString(), EngineOptions(threads=threads, optimization=Optimization.NONE)
    )
    try:
        return [executable.run(feeds) for feeds in calls]
    finally:
        executable.close()


def _output_steps(qdq: onnx.ModelProto) -> dict[str, float]:
    """Quantisation step of each output that is stored in eight bits."""
    makers = {name: node for node in qdq.graph.node for name in node.output}
    tensors = {tensor.name: tensor for tensor in qdq.graph.initializer}
    outputs = {value.name: makers.get(value.name) for value in qdq.graph.output}
    return {
        name: float(initializer_array(tensors[node.input[1]]).max())
        for name, node in outputs.items()
        if node is not None and node.op_type == "DequantizeLinear" and node.input[1] in tensors
    }
