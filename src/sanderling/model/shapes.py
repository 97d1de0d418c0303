"""Shapes inside a graph, as its inputs imply them: what is declared on the way is not believed."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import onnx

from sanderling.core.errors import ModelError, first_line
from sanderling.model.graph import set_shape

Shape = tuple[int | str, ...]
_SMALL = 1024  # elements of a tensor that may hold a shape


def infer_shapes(model: onnx.ModelProto) -> dict[str, Shape]:
    """Sizes of the axes of every tensor whose rank is known; text, maybe empty, where an axis is not fixed.

    Raises:
        ModelError: shapes contradict each other.
    """
    return _inferred(_skeleton(model))


def shape_check(model: onnx.ModelProto) -> Callable[[tuple[tuple[int, ...], ...]], dict[str, Shape]]:
    """A function from the shapes of the graph's inputs, in their order, to those of its outputs.

    It remembers its answers, and raises ModelError for shapes that contradict each other inside the graph.
    """
    skeleton = _skeleton(model)
    names = [value.name for value in model.graph.output]
    fed = len(model.graph.input)

    @functools.lru_cache(maxsize=256)
    def check(shapes: tuple[tuple[int, ...], ...]) -> dict[str, Shape]:
        sized = onnx.ModelProto()
        sized.CopyFrom(skeleton)
        for value, shape in zip(sized.graph.input[:fed], shapes, strict=True):
            set_shape(value, shape)
        known = _inferred(sized)
        return {name: known[name] for name in names if name in known}

    return check


def fits(shape: Sequence[int], wanted: Shape) -> bool:
    """Whether an array's shape is the wanted one, where that is fixed."""
    return len(shape) == len(wanted) and all(
        size == want for size, want in zip(shape, wanted, strict=True) if isinstance(want, int)
    )


def _skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph without declared shapes and with its large weights as inputs; the inputs proper come first."""
    graph = model.graph
    skeleton = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    skeleton.graph.name = graph.name
    skeleton.graph.node.extend(graph.node)
    skeleton.graph.input.extend(graph.input)
    skeleton.graph.output.extend(graph.output)
    for value in skeleton.graph.output:
        value.type.tensor_type.ClearField("shape")
    for tensor in graph.initializer:
        if math.prod(tensor.dims) <= _SMALL:
            skeleton.graph.initializer.append(tensor)
        else:
            described = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            skeleton.graph.input.append(described)
    return skeleton


def _inferred(model: onnx.ModelProto) -> dict[str, Shape]:
    try:
        graph = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    except Exception as error:
        raise ModelError(f"its shapes contradict each other: {first_line(error)}") from error
    return {
        value.name: tuple(
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in value.type.tensor_type.shape.dim
        )
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.tensor_type.HasField("shape")
    }
