"""The exported forward pass as a draft: constants folded, parameters apart, shapes known."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, shape_inference
from onnx.reference import ReferenceEvaluator

from sanderling.core.errors import ModelError, first_line
from sanderling.core.tensor import Array, TensorSpec
from sanderling.model.graph import initializer_array, input_specs, opset_of, output_specs
from sanderling.workshop.learning.draft import Draft, Shape, extract, integer, known_shapes, needed

_FOLDED_ELEMENTS = 1 << 22
_LARGE_BYTES = 1 << 16
_RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")


@dataclass(frozen=True)
class Forward:
    """The model's own part of every graph.

    Attributes:
        draft: its nodes; a parameter NAME is the initialiser ``frozen.NAME``.
        inputs: of the model.
        outputs: of the model; a value of the draft has the same name.
        parameters: names of the module's parameters that the outputs depend on.
    """

    draft: Draft
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: tuple[str, ...]


def read_forward(model: onnx.ModelProto, parameters: Collection[str]) -> Forward:
    """Bring an exported graph to a draft.

    Args:
        model: as PyTorch exports it without rewriting, so that initialisers have the parameters' names.
        parameters: their names; everything else that is constant is folded.

    Raises:
        ModelError: an operator cannot be folded, or draws random numbers.
    """
    shapes = known_shapes(model)
    draft = Draft(opset=opset_of(model), ir_version=model.ir_version)
    names: dict[str, str] = {}
    for tensor in model.graph.initializer:
        own = f"frozen.{tensor.name}"
        names[tensor.name] = own
        draft.initializers[own] = initializer_array(tensor)
    kept = {f"frozen.{name}" for name in parameters}
    outputs = {value.name for value in model.graph.output}
    types = _element_types(_inferred(model))
    for node in model.graph.node:
        _take(draft, _cast(node, types), names, kept, shapes, outputs)
    draft.nodes = needed(draft.nodes, outputs)
    inputs, specs = input_specs(model), output_specs(model)
    draft.shapes = {names.get(name, name): shape for name, shape in shapes.items()}
    infer_shapes(draft, inputs, [spec.name for spec in specs])
    read = {name for node in draft.nodes for name in node.input}
    draft.forget({name for name in draft.initializers if name not in read})
    used = tuple(name for name in parameters if f"frozen.{name}" in read)
    return Forward(draft, inputs, specs, used)


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model with the types of all values, its large weights as inputs: their content says nothing of types."""
    light = onnx.ModelProto()
    for field in ("ir_version", "opset_import", "functions"):
        _copy(model, light, field)
    for field in ("name", "node", "input", "output", "value_info"):
        _copy(model.graph, light.graph, field)
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) > _LARGE_BYTES:
            light.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
        else:
            light.graph.initializer.append(tensor)
    return shape_inference.infer_shapes(light, data_prop=True)


def _copy(source: onnx.ModelProto | onnx.GraphProto, target: onnx.ModelProto | onnx.GraphProto, field: str) -> None:
    value = getattr(source, field)
    if isinstance(value, int | str):
        setattr(target, field, value)
    else:
        getattr(target, field).extend(value)


def _element_types(model: onnx.ModelProto) -> dict[str, int]:
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    return types | {tensor.name: tensor.data_type for tensor in model.graph.initializer}


def _cast(node: onnx.NodeProto, types: Mapping[str, int]) -> onnx.NodeProto:
    """CastLike as Cast: what it is like may depend on the input, its type never does."""
    if node.op_type != "CastLike":
        return node
    kind = types.get(node.input[1], onnx.TensorProto.FLOAT)
    return helper.make_node("Cast", [node.input[0]], list(node.output), name=node.name, to=kind)


def infer_shapes(draft: Draft, inputs: Sequence[TensorSpec], values: Iterable[str]) -> None:
    """Add the shapes of everything that leads to ``values``; what is known stays."""
    outputs = [(name, TensorSpec(name=f"{name}.end", dtype="float32", shape=())) for name in values]
    model = extract(draft, "shapes", inputs, outputs)
    for value in model.graph.output:
        value.ClearField("type")
    inferred = _inferred(model)
    for name, shape in known_shapes(inferred).items():
        draft.shapes.setdefault(name, shape)
    for name, kind in _element_types(inferred).items():
        if kind != onnx.TensorProto.UNDEFINED:
            draft.types.setdefault(name, helper.tensor_dtype_to_np_dtype(kind).name)
    for name, array in draft.initializers.items():
        draft.shapes[name] = array.shape
    for spec in inputs:
        draft.shapes[spec.name], draft.types[spec.name] = spec.shape, spec.dtype


def _take(
    draft: Draft,
    node: onnx.NodeProto,
    names: dict[str, str],
    kept: Collection[str],
    shapes: Mapping[str, Shape],
    outputs: set[str],
) -> None:
    """Append a node, or what it always computes."""
    if node.op_type in _RANDOM:
        raise ModelError(f"operator {node.op_type} ('{node.name}') draws random numbers, which a task must not")
    if node.op_type == "Identity" and node.output[0] not in outputs:
        names[node.output[0]] = names.get(node.input[0], node.input[0])
        return
    own = onnx.NodeProto()
    own.CopyFrom(node)
    told = " ".join(entry.value for entry in node.metadata_props if entry.key.endswith("fx_node"))
    if node.op_type == "Clip" and ("hardtanh" in told or "relu6" in told):
        draft.open_clips.add(node.output[0])
    own.ClearField("metadata_props")  # names of files where the model was exported
    own.ClearField("doc_string")
    del own.input[:]
    own.input.extend(names.get(name, name) for name in node.input)
    constant = _constant(draft, own, kept, shapes, node)
    if constant is not None and not outputs.intersection(node.output):
        for name, array in zip(node.output, constant, strict=True):
            names[name] = draft.constant(array)
        return
    if node.op_type == "SplitToSequence":
        own = _split(draft, own, names, shapes)
    elif node.op_type == "SequenceAt":
        part = _part(draft, own, names)
        if part is not None and node.output[0] not in outputs:
            names[node.output[0]] = part
            return
        own = own if part is None else helper.make_node("Identity", [part], list(node.output), name=node.name)
    _tidy(draft, own, node.output[0], kept, shapes)
    draft.nodes.append(own)


def _tidy(draft: Draft, node: onnx.NodeProto, output: str, kept: Collection[str], shapes: Mapping[str, Shape]) -> None:
    """Constant sizes instead of computed ones, and no bias of zeros; changed in place."""
    if node.op_type == "Reshape":
        target = shapes.get(output)
        if target is not None and sum(isinstance(size, str) for size in target) <= 1:
            node.input[1] = draft.integers(-1 if isinstance(size, str) else size for size in target)
    if node.op_type == "Conv" and len(node.input) > 2:
        bias = draft.known(node.input[2])
        if bias is not None and node.input[2] not in kept and not bias.any():  # the exporter writes zeros for no bias
            del node.input[2]


def _split(draft: Draft, node: onnx.NodeProto, names: dict[str, str], shapes: Mapping[str, Shape]) -> onnx.NodeProto:
    """A Split for a sequence of constant sizes, as PyTorch exports ``chunk``; the node itself for others."""
    axis = integer(node, "axis", 0)
    sizes = draft.known(node.input[1]) if len(node.input) > 1 else None
    if sizes is not None and sizes.ndim == 0:
        size = shapes[node.input[0]][axis] if node.input[0] in shapes else ""
        each = int(sizes)
        sizes = (
            np.asarray([min(each, size - start) for start in range(0, size, each)]) if isinstance(size, int) else None
        )
    if sizes is None or not integer(node, "keepdims", 1):
        return node
    parts = [f"{node.output[0]}[{place}]" for place in range(len(sizes))]
    for place, part in enumerate(parts):
        names[part] = names[f"{node.output[0]}[{place - len(parts)}]"] = part
    return helper.make_node("Split", [node.input[0], draft.integers(map(int, sizes))], parts, name=node.name, axis=axis)


def _part(draft: Draft, node: onnx.NodeProto, names: Mapping[str, str]) -> str | None:
    """The output of ``_split`` that a node takes out of its sequence; None where that is not known."""
    place = draft.known(node.input[1])
    return None if place is None else names.get(f"{node.input[0]}[{int(place)}]")


def _constant(
    draft: Draft, node: onnx.NodeProto, kept: Collection[str], shapes: Mapping[str, Shape], original: onnx.NodeProto
) -> list[Array] | None:
    """What a node computes where that never changes; None where it depends on inputs or parameters."""
    if node.op_type == "Shape":
        shape = shapes.get(original.input[0]) or shapes.get(node.input[0])
        known = draft.known(node.input[0])
        sizes: Shape | None = known.shape if known is not None else shape
        return _sizes(node, sizes)
    if any(name and (name in kept or draft.known(name) is None) for name in node.input):
        return None
    if any(entry.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for entry in node.attribute):
        return None
    feeds = {name: draft.initializers[name] for name in node.input if name}
    try:
        results = _evaluate(node, feeds, draft)
    except Exception as error:
        raise ModelError(f"operator {node.op_type} ('{node.name}') cannot be folded: {first_line(error)}") from error
    return results if sum(array.size for array in results) <= _FOLDED_ELEMENTS else None


def _evaluate(node: onnx.NodeProto, feeds: Mapping[str, Array], draft: Draft) -> list[Array]:
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in feeds.items()
    ]
    results = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "constant", values, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", draft.opset)], ir_version=draft.ir_version)
    return [np.asarray(array) for array in ReferenceEvaluator(model).run(None, dict(feeds))]


def _sizes(node: onnx.NodeProto, shape: Shape | None) -> list[Array] | None:
    if shape is None:
        return None
    bounds = {entry.name: entry.i for entry in node.attribute}
    part = shape[bounds.get("start", 0) : bounds.get("end", len(shape))]
    sizes = [size for size in part if isinstance(size, int)]
    return [np.asarray(sizes, np.int64)] if len(sizes) == len(part) else None
