"""ONNX graphs: read with clear errors, described, rewritten to disk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from onnx import external_data_helper

from sanderling.core.errors import ModelError, first_line
from sanderling.core.tensor import TensorSpec

if TYPE_CHECKING:
    import numpy as np

NEWEST_OPSET = 24
OLDEST_OPSET = 7
_PROTOBUF_LIMIT_BYTES = (2 << 30) - (64 << 20)


def read_graph(path: str | Path) -> onnx.ModelProto:
    """Read and check an ONNX file, external data included.

    Raises:
        ModelError: the file is missing, truncated, no ONNX, fails the checker, refers to external data that
            is missing or outside its folder, or uses an opset that is too new or too old.
    """
    file = Path(path)
    if not file.is_file():
        raise ModelError(f"{file} does not exist: expected an ONNX file")
    try:
        model = onnx.load(file, load_external_data=False, format="protobuf")
    except Exception as error:
        raise ModelError(f"{file} is not an ONNX file, or is cut short: {first_line(error)}") from error
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"{file} is not an ONNX file, or is cut short: it holds no graph")
    _check_opset(model, file)
    _load_external_data(model, file)
    try:
        onnx.checker.check_model(str(file) if model.ByteSize() > _PROTOBUF_LIMIT_BYTES else model)
    except onnx.checker.ValidationError as error:
        raise ModelError(f"{file} is not a valid ONNX model: {first_line(error)}") from error
    return model


def write_graph(model: onnx.ModelProto, path: Path) -> str | None:
    """Write ``model``; weights go to ``NAME.data`` beside it when one protobuf cannot hold them.

    Returns:
        The name of the external data file, or None.
    """
    if model.ByteSize() < _PROTOBUF_LIMIT_BYTES:
        path.write_bytes(model.SerializeToString(deterministic=True))
        return None
    data = f"{path.name}.data"
    onnx.save(model, path, save_as_external_data=True, all_tensors_to_one_file=True, location=data)
    return data


def opset_of(model: onnx.ModelProto) -> int:
    """Version of the default operator set; 0 when the model imports none."""
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)


def input_specs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """The graph's inputs without those that are initialisers."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    return tuple(tensor_spec(value) for value in model.graph.input if value.name not in initializers)


def output_specs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """The graph's outputs."""
    return tuple(tensor_spec(value) for value in model.graph.output)


def tensor_spec(value: onnx.ValueInfoProto) -> TensorSpec:
    """Describe one value.

    Raises:
        ModelError: it is no tensor (a sequence, a map), or its rank is unknown.
    """
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type" or not value.type.tensor_type.HasField("shape"):
        raise ModelError(f"'{value.name}' is a {kind or 'value of unknown type'}: only tensors of known rank are run")
    tensor = value.type.tensor_type
    shape = tuple(
        dim.dim_value if dim.dim_value > 0 else _axis_name(dim.dim_param, f"{value.name}_axis{axis}")
        for axis, dim in enumerate(tensor.shape.dim)
    )
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return TensorSpec(name=value.name, dtype="str" if dtype.kind == "O" else dtype.name, shape=shape)


def _axis_name(written: str, own: str) -> str:
    """Name of a dynamic axis; some exporters write ``?`` or ``-1`` for every axis, which makes none of them equal."""
    return written if written.strip() and written.strip("?-0123456789 ") else own


def with_outputs(model: onnx.ModelProto, tensors: Sequence[str]) -> onnx.ModelProto:
    """A copy of the graph that also returns ``tensors`` (float32)."""
    open_graph = onnx.ModelProto()
    open_graph.CopyFrom(model)
    present = {value.name for value in (*model.graph.output, *model.graph.input)}
    known = {value.name: value for value in model.graph.value_info}
    open_graph.graph.output.extend(
        known.get(name) or onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in tensors
        if name not in present
    )
    return open_graph


def float_tensors(model: onnx.ModelProto) -> list[str]:
    """Names of the inputs and node outputs that are float32, in graph order; unknown types are taken as float."""
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)
    }
    initializers = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in initializers]
    names += [name for node in model.graph.node for name in node.output if name]
    return [name for name in names if types.get(name, onnx.TensorProto.FLOAT) == onnx.TensorProto.FLOAT]


def lifted(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph with the tensors of ``Constant`` nodes as initialisers, where weights are looked for."""
    import onnx_ir
    from onnx_ir.passes import common

    lift = common.LiftConstantsToInitializersPass(lift_all_constants=False, size_limit=1)
    return onnx_ir.to_proto(lift(onnx_ir.from_proto(model)).model)


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Every node, those of subgraphs (If, Loop, Scan) included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from all_nodes(attribute.g)
            for graph_attribute in attribute.graphs:
                yield from all_nodes(graph_attribute)


def used_names(graph: onnx.GraphProto) -> set[str]:
    """Names that any node reads, or that the graph returns."""
    names = {value.name for value in graph.output}
    for node in all_nodes(graph):
        names.update(node.input)
        for attribute in node.attribute:
            names.update(value.name for value in attribute.g.output)
    return names


def subgraph_names(graph: onnx.GraphProto) -> set[str]:
    """Names that subgraphs (of If, Loop, Scan) read or return, some of which are tensors of the graph itself."""
    inner = [attribute.g for node in all_nodes(graph) for attribute in node.attribute if attribute.HasField("g")]
    inner += [part for node in all_nodes(graph) for attribute in node.attribute for part in attribute.graphs]
    return set().union(*(used_names(part) for part in inner))


def element_count(tensor: onnx.TensorProto) -> int:
    """Number of elements of an initialiser."""
    return math.prod(tensor.dims)


def weight_bytes(tensor: onnx.TensorProto) -> int:
    """Bytes that an initialiser's elements take; half a byte each for 4-bit types."""
    four_bit = (onnx.TensorProto.INT4, onnx.TensorProto.UINT4, onnx.TensorProto.FLOAT4E2M1)
    if tensor.data_type == onnx.TensorProto.STRING:
        return sum(map(len, tensor.string_data))
    if tensor.data_type in four_bit:
        return (element_count(tensor) + 1) // 2
    return element_count(tensor) * int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def initializer_array(tensor: onnx.TensorProto) -> np.ndarray:
    """An initialiser as a NumPy array."""
    return onnx.numpy_helper.to_array(tensor)


def sorted_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph with its nodes in an order that the standard allows: each after those it reads from."""
    import onnx_ir

    ordered = onnx_ir.from_proto(model)
    ordered.graph.sort()
    return onnx_ir.to_proto(ordered)


def set_shape(value: onnx.ValueInfoProto, shape: tuple[int | str, ...]) -> None:
    """Replace the shape of ``value`` in place."""
    dims = value.type.tensor_type.shape.dim
    del dims[:]
    for size in shape:
        if isinstance(size, int):
            dims.add().dim_value = size
        else:
            dims.add().dim_param = size


def _check_opset(model: onnx.ModelProto, file: Path) -> None:
    opset = opset_of(model)
    uses_default = any(node.domain in ("", "ai.onnx") for node in model.graph.node)
    if opset > NEWEST_OPSET:
        raise ModelError(
            f"{file} uses opset {opset}: at most {NEWEST_OPSET} is supported; export it with a lower --opset"
        )
    if uses_default and opset < OLDEST_OPSET:
        raise ModelError(f"{file} uses opset {opset}: at least {OLDEST_OPSET} is needed; export it again")


def _load_external_data(model: onnx.ModelProto, file: Path) -> None:
    try:
        external_data_helper.load_external_data_for_model(model, str(file.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(
            f"{file} keeps weights in external data that cannot be read: {first_line(error)}; "
            "put the data file beside the model"
        ) from error
