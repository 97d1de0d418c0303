"""Rows of a batch: whether a graph computes each from itself alone, so that they can be run one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sanderling.core.errors import ModelError, first_line
from sanderling.core.tensor import TensorSpec

if TYPE_CHECKING:
    import onnx

_ROWS = 1009  # a prime that no other axis has: where it appears in a shape, rows are
_ALONG_AXIS = ("Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "ArgMax", "ArgMin")
_ACROSS_ROWS = ("CumSum", "MeanVarianceNormalization", "ReverseSequence", "ScatterND", "ScatterElements", "TopK")


def has_rows(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> bool:
    """Whether the first axis of everything is dynamic, and nothing else is.

    Raises:
        ModelError: other axes are dynamic.
    """
    specs = (*inputs, *outputs)
    if not any(spec.dynamic_axes for spec in specs):
        return False
    for spec in specs:
        if spec.dynamic_axes != (0,):
            raise ModelError(f"'{spec}': only a first axis that all inputs and outputs share may be dynamic")
    return True


def check_rows(proto: onnx.ModelProto) -> None:
    """Show that rows along the first axis do not read each other.

    The batch gets a size that no other axis has, and shapes are inferred: it must be the first axis, and no other,
    of every float tensor that depends on an input, and no node may compute along it.

    Raises:
        ModelError: this cannot be shown.
    """
    shapes = inferred_shapes(proto, _ROWS)
    moving = {value.name for value in proto.graph.input}
    for node in proto.graph.node:
        if moving.isdisjoint(node.input):
            continue
        moving.update(node.output)
        for name in node.output:
            shape, is_float = shapes.get(name, ((), True))
            if is_float and name and (_ROWS not in shape[:1] or _ROWS in shape[1:]):
                raise _rows_error(node, f"its output has shape {_told(shape)}")
        if reads_first_axis(node, proto, len(shapes.get(node.input[0], ((), True))[0])):
            raise _rows_error(node, "it computes along the first axis")


def _rows_error(node: onnx.NodeProto, reason: str) -> ModelError:
    return ModelError(
        f"operator {node.op_type} ('{node.name or node.output[0]}') may mix the rows of a batch ({reason}), "
        "and a dynamic batch is run row by row here; export the graph with a batch of 1"
    )


def _told(shape: tuple[int, ...]) -> str:
    return str(["batch" if size == _ROWS else size or "?" for size in shape]).replace("'", "")


def inferred_shapes(proto: onnx.ModelProto, rows: int) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Shape of every tensor with a batch of ``rows`` (0 for an unknown axis), and whether it is float."""
    import onnx

    sized = with_rows(proto, rows)
    for value in sized.graph.output:
        value.type.tensor_type.ClearField("shape")  # to be inferred: what is declared may be wrong
    try:
        inferred = onnx.shape_inference.infer_shapes(sized, data_prop=True).graph
    except Exception as error:
        raise ModelError(f"its shapes contradict each other: {first_line(error)}") from error
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16)
    return {
        value.name: (
            tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim),
            value.type.tensor_type.elem_type in floats,
        )
        for value in (*inferred.input, *inferred.value_info, *inferred.output)
    }


def with_rows(proto: onnx.ModelProto, rows: int) -> onnx.ModelProto:
    """A copy whose dynamic first axes are ``rows``; shapes noted inside it are dropped, as they were for others."""
    import onnx

    from sanderling.model.graph import set_shape, tensor_spec

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.value_info[:]
    for value in (*copy.graph.input, *copy.graph.output):
        set_shape(value, tensor_spec(value).concrete_shape(rows))
    return copy


def reads_first_axis(node: onnx.NodeProto, proto: onnx.ModelProto, rank: int) -> bool:
    """Whether a node reduces or normalises along the first axis of its input of ``rank`` axes."""
    import onnx

    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type in _ACROSS_ROWS or attributes.get("training_mode"):
        return True
    if node.op_type in _ALONG_AXIS:
        return attributes.get("axis", 0 if node.op_type.startswith("Arg") else -1) in (0, -rank)
    if not node.op_type.startswith("Reduce"):
        return False
    axes = attributes.get("axes")
    if axes is None and len(node.input) > 1 and node.input[1]:
        found = [tensor for tensor in proto.graph.initializer if tensor.name == node.input[1]]
        axes = onnx.numpy_helper.to_array(found[0]).tolist() if found else None
    if not axes:  # all of them
        return not attributes.get("noop_with_empty_axes")
    return not {0, -rank}.isdisjoint(axes)
