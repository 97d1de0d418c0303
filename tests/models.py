"""Tiny ONNX models with seeded random weights, and plain ONNX Runtime to compare against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

Shape = Sequence[int | str | None]
OPSET = 18
IR_VERSION = 10


def tensor(name: str, shape: Shape, dtype: str = "float32") -> onnx.ValueInfoProto:
    """A graph input or output; a string names a dynamic axis, None leaves it without a name."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = OPSET,
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """Join the parts to a model. It is not checked, so that broken models can be made too."""
    initializers = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "tiny", list(inputs), list(outputs), initializers)
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(domain, version) for domain, version in (domains or {}).items()]
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets)


def conv_classifier(
    *,
    batch: int | str = "N",
    channels: int = 3,
    size: int = 8,
    classes: int = 4,
    features: int = 8,
    opset: int = OPSET,
    seed: int = 0,
) -> onnx.ModelProto:
    """A classifier: ``image`` (batch, channels, size, size) to ``scores`` (batch, classes).

    Conv (3×3, no bias), BatchNormalization, Relu, GlobalAveragePool, Flatten, Gemm.
    """
    generator = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape).astype(np.float32)

    weights = {
        "conv_weight": normal(features, channels, 3, 3),
        "bn_scale": 1 + 0.1 * normal(features),
        "bn_bias": normal(features),
        "bn_mean": 0.1 * normal(features),
        "bn_var": 1 + np.abs(normal(features)),
        "fc_weight": normal(classes, features),
        "fc_bias": normal(classes),
    }
    statistics = ["bn_scale", "bn_bias", "bn_mean", "bn_var"]
    nodes = [
        helper.make_node("Conv", ["image", "conv_weight"], ["conv"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["conv", *statistics], ["bn"], "bn"),
        helper.make_node("Relu", ["bn"], ["relu"], "relu"),
        helper.make_node("GlobalAveragePool", ["relu"], ["pooled"], "pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"),
        helper.make_node("Gemm", ["flat", "fc_weight", "fc_bias"], ["scores"], "fc", transB=1),
    ]
    inputs = [tensor("image", [batch, channels, size, size])]
    return make_model(nodes, inputs, [tensor("scores", [batch, classes])], weights, opset=opset)


def sum_and_difference(*, batch: int | str = "N", width: int = 3) -> onnx.ModelProto:
    """Two inputs ``a`` and ``b`` and two outputs ``sum`` and ``difference``, all (batch, width)."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"], "add"),
        helper.make_node("Sub", ["a", "b"], ["difference"], "sub"),
    ]
    shape = [batch, width]
    return make_model(
        nodes, [tensor("a", shape), tensor("b", shape)], [tensor("sum", shape), tensor("difference", shape)]
    )


def chain(
    operators: Sequence[str], *, shape: Shape = (1, 4), dtype: str = "float32", opset: int = OPSET
) -> onnx.ModelProto:
    """Operators with one input and one output each, from ``x`` to ``y``; all tensors have one shape and dtype."""
    names = ["x", *(f"t{index}" for index in range(1, len(operators))), "y"]
    nodes = [
        helper.make_node(operator, [names[index]], [names[index + 1]], f"{operator.lower()}_{index}")
        for index, operator in enumerate(operators)
    ]
    return make_model(nodes, [tensor("x", shape, dtype)], [tensor("y", shape, dtype)], opset=opset)


def with_constant_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph with its weights in Constant nodes, as some exporters write them."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    constants = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in copy.graph.initializer]
    nodes = [*constants, *copy.graph.node]
    del copy.graph.initializer[:]
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    return copy


def save(model: onnx.ModelProto, path: Path) -> Path:
    """Write ``model`` to ``path`` and return it."""
    path.write_bytes(model.SerializeToString())
    return path


def run_directly(
    model: onnx.ModelProto | Path, feeds: Mapping[str, np.ndarray], *, optimized: bool = False
) -> dict[str, np.ndarray]:
    """Run with ONNX Runtime itself, without any of Sanderling's code."""
    options = onnxruntime.SessionOptions()
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def random_arrays(shapes: Mapping[str, Sequence[int]], *, seed: int = 0) -> dict[str, np.ndarray]:
    """Standard normal float32 arrays by name."""
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal(tuple(shape)).astype(np.float32) for name, shape in shapes.items()}
