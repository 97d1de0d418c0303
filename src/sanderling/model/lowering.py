"""Exact rewrites for converters that read less of ONNX than the standard has.

A pass takes a checked graph with fixed input ranks and returns another one that computes the same, in fewer kinds of
nodes. ``TARGETS`` says as data which passes a target needs, in their order. What no pass can put right is a ModelError
that names the node and its operator.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from sanderling.core.errors import ModelError, OptionError, first_line
from sanderling.core.files import sha256_of
from sanderling.model.activations import COMPOSED
from sanderling.model.graph import all_nodes, lifted, opset_of
from sanderling.model.rewriting import GraphView, Parts, attribute_of, cannot_lower, replacement, rewritten
from sanderling.model.shapes import Shape

_OPSET = 13
_IR_VERSIONS = {13: 7, 18: 8, 19: 9}  # of the ONNX release that brought the opset
_AXES_ARE_INPUTS = 18  # of all reductions, since this opset
_SMALL_BOUND = 1e-4
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_CHANGED_DEFAULTS = ("RoiAlign",)  # operators that say the same since opset 13, and mean another thing


def lower(model: onnx.ModelProto, target: str) -> onnx.ModelProto:
    """Rewrite a graph for a target.

    Args:
        model: a checked graph with its weights in memory; it is left alone.
        target: one of ``TARGETS``.

    Raises:
        OptionError: there is no such target.
        ModelError: a node has no exact form that the target takes; the message names it.
    """
    if target not in TARGETS:
        raise OptionError(f"unknown target '{target}': available are {', '.join(TARGETS)}")
    lowered = onnx.ModelProto()
    lowered.CopyFrom(model)
    for rewrite in TARGETS[target]:
        lowered = rewrite(lowered)
    return lowered


def fingerprint() -> str:
    """Changes when a pass may: names what was lowered, without lowering it again."""
    sources = (Path(__file__).with_name(f"{name}.py") for name in ("activations", "lowering", "rewriting", "shapes"))
    return hashlib.sha256("".join([onnx.__version__, *map(sha256_of, sources)]).encode()).hexdigest()


def lift_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """Make the tensors of Constant nodes initialisers, and drop initialisers from the list of inputs.

    Ensures: weights are found in ``graph.initializer``, and ``graph.input`` is what a caller feeds.
    """
    result = lifted(model)
    weights = {tensor.name for tensor in result.graph.initializer}
    fed = [value for value in result.graph.input if value.name not in weights]
    del result.graph.input[:]
    result.graph.input.extend(fed)
    return result


def raise_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """Bring a graph of an older opset to 13.

    Ensures: opset 13 or later.

    Raises:
        ModelError: ONNX has no conversion for one of its operators.
    """
    if opset_of(model) >= _OPSET:
        return model
    try:
        return onnx.version_converter.convert_version(model, _OPSET)
    except Exception as error:
        raise ModelError(f"opset {opset_of(model)} cannot be brought to {_OPSET}: {first_line(error)}") from error


def compose_activations(model: onnx.ModelProto, operators: Collection[str] = COMPOSED) -> onnx.ModelProto:
    """Write activations with simpler operators: HardSwish, Gelu, Mish, PRelu, the Elu family, unusual HardSigmoids.

    Ensures: none of ``operators`` is left, but for HardSigmoids of slope 1/6 and offset 1/2.
    """

    def rewrite(node: onnx.NodeProto, graph: GraphView) -> list[onnx.NodeProto] | None:
        compose = COMPOSED.get(node.op_type) if node.op_type in operators else None
        return compose(node, graph) if compose else None

    return rewritten(model, rewrite)


def small_bounds_as_extrema(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write a Clip with a bound close to 0 as Max and Min: MindSpore Lite takes 1e-9 for 0, and a division by it fails.

    Ensures: no Clip has a constant bound that is not 0 and smaller than 1e-4.
    """

    def rewrite(node: onnx.NodeProto, graph: GraphView) -> list[onnx.NodeProto] | None:
        if node.op_type != "Clip":
            return None
        bounds = {name: graph.constant(name) for name in node.input[1:] if name}
        if not any(bound is not None and 0 < abs(float(bound)) < _SMALL_BOUND for bound in bounds.values()):
            return None
        part, bounded = Parts(node, graph), node.input[0]
        for operator, bound in zip(("Max", "Min"), node.input[1:], strict=False):
            bounded = part(operator, [bounded, bound]) if bound else bounded
        return part.finished(bounded)

    return rewritten(model, rewrite)


def compose_layer_norm(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write LayerNormalization as a mean, a variance and an affine map.

    Ensures: no LayerNormalization is left whose mean or deviation nobody reads.

    Source: ONNX operator LayerNormalization, opset 17.
    """

    def rewrite(node: onnx.NodeProto, graph: GraphView) -> list[onnx.NodeProto] | None:
        if node.op_type != "LayerNormalization" or any(node.output[1:]):
            return None
        axes = _normalized_axes(node, graph)
        part = Parts(node, graph)
        centred = part("Sub", [node.input[0], part.mean(node.input[0], axes)])
        variance = part.mean(part("Mul", [centred, centred]), axes)
        deviation = part("Sqrt", [part("Add", [variance, part.constant(attribute_of(node, "epsilon", 1e-5))])])
        affine = part("Mul", [part("Div", [centred, deviation]), node.input[1]])
        if len(node.input) > 2 and node.input[2]:
            affine = part("Add", [affine, node.input[2]])
        return part.finished(affine)

    return rewritten(model, rewrite)


def plain_gemm(model: onnx.ModelProto) -> onnx.ModelProto:
    """Take the factors ``alpha`` and ``beta``, and the transposed first matrix, out of Gemm.

    Ensures: every Gemm has ``alpha`` 1, ``beta`` 1 and ``transA`` 0.
    """

    def rewrite(node: onnx.NodeProto, graph: GraphView) -> list[onnx.NodeProto] | None:
        alpha, beta = attribute_of(node, "alpha", 1.0), attribute_of(node, "beta", 1.0)
        transposed = bool(attribute_of(node, "transA", 0))
        if node.op_type != "Gemm" or (alpha == 1 and beta == 1 and not transposed):
            return None
        part = Parts(node, graph)
        left = part("Transpose", [node.input[0]], perm=[1, 0]) if transposed else node.input[0]
        factors = [part.scaled(left, alpha), node.input[1]]
        if len(node.input) > 2 and node.input[2]:
            factors.append(part.scaled(node.input[2], beta))
        return part.finished(part("Gemm", factors, transB=attribute_of(node, "transB", 0)))

    return rewritten(model, rewrite)


def explicit_axes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write the axes of every reduction: as an attribute, as before opset 18; ReduceSum has an input for them.

    Ensures: every reduction says its axes, and none but ReduceSum by an input.

    Raises:
        ModelError: axes are computed while the graph runs, or are all axes of a tensor of unknown rank.
    """

    def rewrite(node: onnx.NodeProto, graph: GraphView) -> list[onnx.NodeProto] | None:
        if node.op_type not in {f"Reduce{kind}" for kind in _REDUCTIONS}:
            return None
        axes = _reduced_axes(node, graph)
        if axes is None:
            return [replacement("Identity", node, [node.input[0]])]
        keepdims = attribute_of(node, "keepdims", 1)
        if node.op_type == "ReduceSum":
            return [
                replacement("ReduceSum", node, [node.input[0], graph.add(np.array(axes, np.int64))], keepdims=keepdims)
            ]
        return [replacement(node.op_type, node, [node.input[0]], axes=axes, keepdims=keepdims)]

    return rewritten(model, rewrite)


def norms_as_sums(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write ReduceL1 as a sum of absolute values, and ReduceL2 as the root of a sum of squares, from opset 18 on.

    Ensures: neither is left in such an opset.

    Source: ONNX operators ReduceL1 and ReduceL2.
    """

    def rewrite(node: onnx.NodeProto, graph: GraphView) -> list[onnx.NodeProto] | None:
        if node.op_type not in ("ReduceL1", "ReduceL2") or graph.opset < _AXES_ARE_INPUTS:
            return None
        part, axes = Parts(node, graph), list(node.input[1:])
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        if node.op_type == "ReduceL1":
            return part.finished(part("ReduceSum", [part("Abs", [node.input[0]]), *axes], **attributes))
        return part.finished(part("Sqrt", [part("ReduceSumSquare", [node.input[0], *axes], **attributes)]))

    return rewritten(model, rewrite)


def axes_from_the_front(model: onnx.ModelProto) -> onnx.ModelProto:
    """Count the attribute ``axis`` from the first axis where it is counted from the last.

    Ensures: no negative ``axis`` where the rank is known.
    """

    def rewrite(node: onnx.NodeProto, graph: GraphView) -> list[onnx.NodeProto] | None:
        axis = attribute_of(node, "axis", -1 if node.op_type in ("Softmax", "LogSoftmax", "Hardmax") else 0)
        shape = graph.shape(node.input[0]) if node.input and axis < 0 else None
        if not shape:
            return None
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        return [replacement(node.op_type, node, list(node.input), **{**attributes, "axis": axis + len(shape)})]

    return rewritten(model, rewrite)


def shapes_in_full(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write a Shape of some axes as a Slice of the whole Shape.

    Ensures: no Shape has ``start`` or ``end``.
    """

    def rewrite(node: onnx.NodeProto, graph: GraphView) -> list[onnx.NodeProto] | None:
        names = {attribute.name for attribute in node.attribute}
        if node.op_type != "Shape" or not names:
            return None
        part = Parts(node, graph)
        ends = (attribute_of(node, "start", 0), attribute_of(node, "end", np.iinfo(np.int64).max))
        bounds = [graph.add(np.array([end], np.int64)) for end in ends]
        return part.finished(part("Slice", [part("Shape", [node.input[0]]), *bounds]))

    return rewritten(model, rewrite)


def splits_as_slices(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write Split as a Slice for every part.

    Ensures: no Split is left.

    Raises:
        ModelError: the sizes of the parts are computed while the graph runs, or the axis has no fixed size.
    """

    def rewrite(node: onnx.NodeProto, graph: GraphView) -> list[onnx.NodeProto] | None:
        if node.op_type != "Split":
            return None
        axis = graph.add(np.array([attribute_of(node, "axis", 0)], np.int64))
        ends = [0, *itertools.accumulate(_split_sizes(node, graph))]
        bounds = [graph.add(np.array([end], np.int64)) for end in ends]
        return [
            helper.make_node("Slice", [node.input[0], begin, end, axis], [output], graph.fresh(f"{output}_Slice"))
            for output, begin, end in zip(node.output, bounds, bounds[1:], strict=False)
            if output
        ]

    return rewritten(model, rewrite)


def constant_reshapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give Reshape a constant shape where all axes but one are known, and drop ``allowzero``.

    A 0 then means an empty output, which only an empty input has. Exact for tensors that hold anything.

    Ensures: no Reshape has ``allowzero``.

    Raises:
        ModelError: the shape is constant and holds a 0 that means 0.
    """

    def rewrite(node: onnx.NodeProto, graph: GraphView) -> list[onnx.NodeProto] | None:
        if node.op_type != "Reshape":
            return None
        constant = graph.constant(node.input[1])
        if constant is None:
            sizes = _reshaped(graph.shape(node.input[0]), graph.shape(node.output[0]))
            shape = graph.add(np.array(sizes, np.int64)) if sizes is not None else node.input[1]
            return [replacement("Reshape", node, [node.input[0], shape])]
        if not attribute_of(node, "allowzero", 0):
            return None
        if 0 in constant:
            raise cannot_lower(node, f"it makes an empty tensor of shape {constant.tolist()}")
        return [replacement("Reshape", node, list(node.input))]

    return rewritten(model, rewrite)


def drop_unread(model: onnx.ModelProto) -> onnx.ModelProto:
    """Drop nodes, weights and inputs that no output depends on.

    Ensures: every node, initialiser and input is read.
    """
    graph = model.graph
    needed = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if needed.isdisjoint(node.output):
            continue
        kept.append(node)
        needed.update(node.input)
        inner = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
        needed.update(name for body in inner for inside in all_nodes(body) for name in inside.input)
        needed.update(value.name for body in inner for value in body.output)
    read = {"node": kept[::-1]}
    read["initializer"] = [tensor for tensor in graph.initializer if tensor.name in needed]
    read["input"] = [value for value in graph.input if value.name in needed]
    for field, items in read.items():
        graph.ClearField(field)
        getattr(graph, field).extend(items)
    return model


def pad_before_averages(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write the pads that an AveragePool counts as a Pad before it.

    Ensures: no AveragePool has ``count_include_pad``, but where it also rounds its size up.
    """

    def rewrite(node: onnx.NodeProto, graph: GraphView) -> list[onnx.NodeProto] | None:
        counted = node.op_type == "AveragePool" and attribute_of(node, "count_include_pad", 0)
        if not counted or attribute_of(node, "ceil_mode", 0) or attribute_of(node, "auto_pad", b"NOTSET") != b"NOTSET":
            return None
        pads = attribute_of(node, "pads", [])
        kept = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        for name in ("pads", "count_include_pad"):
            kept.pop(name, None)
        part, padded, half = Parts(node, graph), node.input[0], len(pads) // 2
        if any(pads):
            amounts = graph.add(np.array([0, 0, *pads[:half], 0, 0, *pads[half:]], np.int64))
            padded = part("Pad", [padded, amounts], mode="constant")
        return part.finished(part("AveragePool", [padded], **kept))

    return rewritten(model, rewrite)


def explicit_windows(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write kernel shape, strides, dilations and pads of convolutions and poolings; poolings lose dilations of 1.

    Ensures: no ``auto_pad``; Conv and ConvTranspose have all four attributes; pooling has no dilations.

    Raises:
        ModelError: a pooling is dilated, or ``auto_pad`` meets axes without a fixed size.
    """

    def rewrite(node: onnx.NodeProto, graph: GraphView) -> list[onnx.NodeProto] | None:
        if node.op_type not in ("Conv", "ConvTranspose", "MaxPool", "AveragePool"):
            return None
        kernel = attribute_of(node, "kernel_shape", None) or _kernel_of(node, graph)
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        attributes |= {"kernel_shape": kernel, "strides": attribute_of(node, "strides", [1] * len(kernel))}
        dilations = attribute_of(node, "dilations", [1] * len(kernel))
        padding = attributes.pop("auto_pad", b"NOTSET").decode()
        if padding != "NOTSET":
            attributes["pads"] = _padding(node, graph, padding, attributes, dilations)
        attributes.setdefault("pads", [0] * 2 * len(kernel))
        attributes["dilations"] = dilations
        if node.op_type.endswith("Pool"):
            if set(dilations) != {1}:
                raise cannot_lower(node, f"it is dilated by {dilations}")
            del attributes["dilations"]
        return [replacement(node.op_type, node, list(node.input), **attributes)]

    return rewritten(model, rewrite)


def lower_opset(model: onnx.ModelProto, newest: int = _OPSET) -> onnx.ModelProto:
    """Declare the opset ``newest``, where every node says and means the same in it.

    Ensures: that opset. Attributes that came later are dropped where they have their default.

    Raises:
        ModelError: a node came after that opset, or uses what came after it.
    """
    opset = opset_of(model)
    for node in all_nodes(model.graph):
        if node.domain in ("", "ai.onnx"):
            _lower_node(node, opset, newest)
        else:
            raise cannot_lower(node, f"its domain '{node.domain}' is not ONNX's own")
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", newest))
    model.ir_version = _IR_VERSIONS[newest]
    return model


def opset_within(model: onnx.ModelProto, newest: int) -> onnx.ModelProto:
    """Lower the opset of a graph that is newer than ``newest``.

    Ensures: opset ``newest`` or older.

    Raises:
        ModelError: as of ``lower_opset``.
    """
    return lower_opset(model, newest) if opset_of(model) > newest else model


TARGETS: dict[str, tuple[Callable[[onnx.ModelProto], onnx.ModelProto], ...]] = {
    "mindspore": (
        lift_constants,
        raise_opset,
        compose_activations,
        small_bounds_as_extrema,
        compose_layer_norm,
        plain_gemm,
        axes_from_the_front,
        constant_reshapes,
        splits_as_slices,
        shapes_in_full,
        pad_before_averages,
        explicit_windows,
        drop_unread,
        explicit_axes,  # not before: the passes above infer shapes, by the opset that the graph still declares
        lower_opset,
    ),
    "ascend": (
        lift_constants,
        partial(compose_activations, operators=("Gelu", "Mish")),
        partial(opset_within, newest=18),
        norms_as_sums,
        drop_unread,
    ),
    "rknn": (
        lift_constants,
        partial(compose_activations, operators=("Gelu", "Mish")),
        partial(opset_within, newest=19),
        norms_as_sums,
        drop_unread,
    ),
}


def _reduced_axes(node: onnx.NodeProto, graph: GraphView) -> list[int] | None:
    """Axes along which a node reduces; None where it does nothing."""
    axes = attribute_of(node, "axes", None)
    if len(node.input) > 1 and node.input[1]:
        constant = graph.constant(node.input[1])
        if constant is None:
            raise cannot_lower(node, f"its axes '{node.input[1]}' are computed while the graph runs")
        axes = constant.tolist()
    if axes:
        return list(axes)
    if attribute_of(node, "noop_with_empty_axes", 0):
        return None
    shape = graph.shape(node.input[0])
    if shape is None:
        raise cannot_lower(node, f"it reduces all axes, and the rank of '{node.input[0]}' is unknown")
    return list(range(len(shape)))


def _split_sizes(node: onnx.NodeProto, graph: GraphView) -> list[int]:
    if len(node.input) > 1 and node.input[1]:
        sizes = graph.constant(node.input[1])
        if sizes is None:
            raise cannot_lower(node, f"the sizes '{node.input[1]}' are computed while the graph runs")
        return [int(size) for size in sizes]
    axis, count = attribute_of(node, "axis", 0), len(node.output)
    shape = graph.shape(node.input[0])
    whole = shape[axis] if shape is not None else ""
    if not isinstance(whole, int):
        raise cannot_lower(node, f"axis {axis} of '{node.input[0]}' has no fixed size")
    size = math.ceil(whole / count)
    return [size] * (count - 1) + [whole - size * (count - 1)]


def _reshaped(before: Shape | None, after: Shape | None) -> list[int] | None:
    """What makes ``after`` of ``before``: 0 copies an axis, and -1 is what is left; None where more are unknown."""
    if after is None or 0 in after:
        return None
    unknown = [axis for axis, size in enumerate(after) if not isinstance(size, int)]
    copied = [axis for axis in unknown if before and axis < len(before) and after[axis] and after[axis] == before[axis]]
    left = [axis for axis in unknown if axis not in copied] or copied[:1]
    if len(left) > 1:
        return None
    return [-1 if axis in left else 0 if axis in copied else int(size) for axis, size in enumerate(after)]


def _normalized_axes(node: onnx.NodeProto, graph: GraphView) -> list[int]:
    axis = int(attribute_of(node, "axis", -1))
    if axis < 0:
        return list(range(axis, 0))
    shape = graph.shape(node.input[0])
    if shape is None:
        raise cannot_lower(node, f"the rank of '{node.input[0]}' is unknown")
    return list(range(axis, len(shape)))


def _kernel_of(node: onnx.NodeProto, graph: GraphView) -> list[int]:
    """Sizes of a convolution's window, from its weight."""
    weight = graph.constant(node.input[1])
    shape = graph.shape(node.input[1]) if weight is None else weight.shape
    if shape is None or not all(isinstance(size, int) for size in shape):
        raise cannot_lower(node, f"the shape of its weight '{node.input[1]}' is unknown")
    return [int(size) for size in shape[2:]]


def _padding(
    node: onnx.NodeProto, graph: GraphView, kind: str, attributes: dict[str, Any], dilations: Sequence[int]
) -> list[int]:
    """What ``auto_pad`` means here: zeros, or as much as makes ceil(size / stride) windows.

    Source: ONNX operator Conv, attribute ``auto_pad``.
    """
    kernel, strides = attributes["kernel_shape"], attributes["strides"]
    if kind == "VALID":
        return [0] * 2 * len(kernel)
    shape = graph.shape(node.input[0])
    if node.op_type == "ConvTranspose" or shape is None or not all(isinstance(size, int) for size in shape[2:]):
        raise cannot_lower(node, f"auto_pad {kind} needs an input of fixed size; export it with explicit pads")
    begins, ends = [], []
    for size, window, stride, dilation in zip(shape[2:], kernel, strides, dilations, strict=True):
        total = max(0, (math.ceil(int(size) / stride) - 1) * stride + dilation * (window - 1) + 1 - int(size))
        small, large = total // 2, total - total // 2
        begins.append(small if kind == "SAME_UPPER" else large)
        ends.append(large if kind == "SAME_UPPER" else small)
    return begins + ends


def _lower_node(node: onnx.NodeProto, opset: int, newest: int) -> None:
    """Drop later attributes of default value from a node, and check that the rest is of opset ``newest``."""
    try:
        written = onnx.defs.get_schema(node.op_type, opset)
    except onnx.defs.SchemaError as error:
        raise cannot_lower(node, f"opset {opset} has no such operator") from error
    try:
        wanted = onnx.defs.get_schema(node.op_type, newest)
    except onnx.defs.SchemaError as error:
        raise cannot_lower(node, f"it came with opset {written.since_version}, and opset {newest} is needed") from error
    if written.since_version == wanted.since_version:
        return
    kept = [item for item in node.attribute if item.name in wanted.attributes]
    for item in node.attribute:
        if item not in kept and item != written.attributes[item.name].default_value:
            raise cannot_lower(node, f"its attribute '{item.name}' came after opset {newest}")
    if node.op_type in _CHANGED_DEFAULTS or not wanted.min_input <= len(node.input) <= wanted.max_input:
        raise cannot_lower(node, f"it is written as since opset {written.since_version}, and opset {newest} is needed")
    del node.attribute[:]
    node.attribute.extend(kept)
