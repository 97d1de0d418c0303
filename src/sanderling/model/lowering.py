"""Exact rewrites for converters that read less of ONNX than the standard has.

A pass takes a checked graph with fixed input ranks and returns another one that computes the same, in fewer kinds of
nodes. ``TARGETS`` says as data which passes a target needs, in their order. What no pass can put right is a ModelError
that names the node and its operator.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sanderling.core.errors import ModelError, OptionError, first_line
from sanderling.core.tensor import Array
from sanderling.model.graph import all_nodes, lifted, opset_of
from sanderling.model.shapes import Shape, infer_shapes

_OPSET = 13
_IR_VERSION = 7  # of the ONNX release that brought opset 13
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_CHANGED_DEFAULTS = ("RoiAlign",)  # operators that say the same since opset 13, and mean another thing
_SELU = (1.67326319217681884765625, 1.05070102214813232421875)  # alpha and gamma, by default
_HARD_SIGMOID = (1 / 6, 0.5)  # slope and offset of the only hard sigmoid that MindSpore Lite has


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


def compose_activations(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write activations with simpler operators: HardSwish, Gelu, Mish, PRelu, the Elu family, unusual HardSigmoids.

    Ensures: none of them is left, but for HardSigmoids of slope 1/6 and offset 1/2.
    """

    def rewrite(node: onnx.NodeProto, graph: _Graph) -> list[onnx.NodeProto] | None:
        compose = _ACTIVATIONS.get(node.op_type)
        return compose(node, graph) if compose else None

    return _rewritten(model, rewrite)


def compose_layer_norm(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write LayerNormalization as a mean, a variance and an affine map.

    Ensures: no LayerNormalization is left whose mean or deviation nobody reads.

    Source: ONNX operator LayerNormalization, opset 17.
    """

    def rewrite(node: onnx.NodeProto, graph: _Graph) -> list[onnx.NodeProto] | None:
        if node.op_type != "LayerNormalization" or any(node.output[1:]):
            return None
        axes = _normalized_axes(node, graph)
        part = _Parts(node, graph)
        mean = part("ReduceMean", [node.input[0]], axes=axes, keepdims=1)
        centred = part("Sub", [node.input[0], mean])
        variance = part("ReduceMean", [part("Mul", [centred, centred])], axes=axes, keepdims=1)
        deviation = part("Sqrt", [part("Add", [variance, part.constant(_attribute(node, "epsilon", 1e-5))])])
        affine = part("Mul", [part("Div", [centred, deviation]), node.input[1]])
        if len(node.input) > 2 and node.input[2]:
            affine = part("Add", [affine, node.input[2]])
        return part.finished(affine)

    return _rewritten(model, rewrite)


def plain_gemm(model: onnx.ModelProto) -> onnx.ModelProto:
    """Take the factors ``alpha`` and ``beta``, and the transposed first matrix, out of Gemm.

    Ensures: every Gemm has ``alpha`` 1, ``beta`` 1 and ``transA`` 0.
    """

    def rewrite(node: onnx.NodeProto, graph: _Graph) -> list[onnx.NodeProto] | None:
        alpha, beta = _attribute(node, "alpha", 1.0), _attribute(node, "beta", 1.0)
        transposed = bool(_attribute(node, "transA", 0))
        if node.op_type != "Gemm" or (alpha == 1 and beta == 1 and not transposed):
            return None
        part = _Parts(node, graph)
        left = part("Transpose", [node.input[0]], perm=[1, 0]) if transposed else node.input[0]
        factors = [part.scaled(left, alpha), node.input[1]]
        if len(node.input) > 2 and node.input[2]:
            factors.append(part.scaled(node.input[2], beta))
        return part.finished(part("Gemm", factors, transB=_attribute(node, "transB", 0)))

    return _rewritten(model, rewrite)


def explicit_axes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write the axes of every reduction: as an attribute, as before opset 18; ReduceSum has an input for them.

    Ensures: every reduction says its axes, and none but ReduceSum by an input.

    Raises:
        ModelError: axes are computed while the graph runs, or are all axes of a tensor of unknown rank.
    """

    def rewrite(node: onnx.NodeProto, graph: _Graph) -> list[onnx.NodeProto] | None:
        if node.op_type not in {f"Reduce{kind}" for kind in _REDUCTIONS}:
            return None
        axes = _reduced_axes(node, graph)
        if axes is None:
            return [_node("Identity", node, [node.input[0]])]
        keepdims = _attribute(node, "keepdims", 1)
        if node.op_type == "ReduceSum":
            return [_node("ReduceSum", node, [node.input[0], graph.add(np.array(axes, np.int64))], keepdims=keepdims)]
        return [_node(node.op_type, node, [node.input[0]], axes=axes, keepdims=keepdims)]

    return _rewritten(model, rewrite)


def axes_from_the_front(model: onnx.ModelProto) -> onnx.ModelProto:
    """Count the attribute ``axis`` from the first axis where it is counted from the last.

    Ensures: no negative ``axis`` where the rank is known.
    """

    def rewrite(node: onnx.NodeProto, graph: _Graph) -> list[onnx.NodeProto] | None:
        axis = _attribute(node, "axis", -1 if node.op_type in ("Softmax", "LogSoftmax", "Hardmax") else 0)
        shape = graph.shape(node.input[0]) if node.input and axis < 0 else None
        if not shape:
            return None
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        return [_node(node.op_type, node, list(node.input), **{**attributes, "axis": axis + len(shape)})]

    return _rewritten(model, rewrite)


def shapes_in_full(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write a Shape of some axes as a Slice of the whole Shape.

    Ensures: no Shape has ``start`` or ``end``.
    """

    def rewrite(node: onnx.NodeProto, graph: _Graph) -> list[onnx.NodeProto] | None:
        names = {attribute.name for attribute in node.attribute}
        if node.op_type != "Shape" or not names:
            return None
        part = _Parts(node, graph)
        ends = (_attribute(node, "start", 0), _attribute(node, "end", np.iinfo(np.int64).max))
        bounds = [graph.add(np.array([end], np.int64)) for end in ends]
        return part.finished(part("Slice", [part("Shape", [node.input[0]]), *bounds]))

    return _rewritten(model, rewrite)


def splits_as_slices(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write Split as a Slice for every part.

    Ensures: no Split is left.

    Raises:
        ModelError: the sizes of the parts are computed while the graph runs, or the axis has no fixed size.
    """

    def rewrite(node: onnx.NodeProto, graph: _Graph) -> list[onnx.NodeProto] | None:
        if node.op_type != "Split":
            return None
        axis = graph.add(np.array([_attribute(node, "axis", 0)], np.int64))
        ends = [0, *itertools.accumulate(_split_sizes(node, graph))]
        bounds = [graph.add(np.array([end], np.int64)) for end in ends]
        return [
            helper.make_node("Slice", [node.input[0], begin, end, axis], [output], graph.fresh(f"{output}_Slice"))
            for output, begin, end in zip(node.output, bounds, bounds[1:], strict=False)
            if output
        ]

    return _rewritten(model, rewrite)


def constant_reshapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give Reshape a constant shape where all axes but one are known, and drop ``allowzero``.

    A 0 then means an empty output, which only an empty input has. Exact for tensors that hold anything.

    Ensures: no Reshape has ``allowzero``.

    Raises:
        ModelError: the shape is constant and holds a 0 that means 0.
    """

    def rewrite(node: onnx.NodeProto, graph: _Graph) -> list[onnx.NodeProto] | None:
        if node.op_type != "Reshape":
            return None
        constant = graph.constant(node.input[1])
        if constant is None:
            sizes = _reshaped(graph.shape(node.input[0]), graph.shape(node.output[0]))
            shape = graph.add(np.array(sizes, np.int64)) if sizes is not None else node.input[1]
            return [_node("Reshape", node, [node.input[0], shape])]
        if not _attribute(node, "allowzero", 0):
            return None
        if 0 in constant:
            raise _cannot(node, f"it makes an empty tensor of shape {constant.tolist()}")
        return [_node("Reshape", node, list(node.input))]

    return _rewritten(model, rewrite)


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

    def rewrite(node: onnx.NodeProto, graph: _Graph) -> list[onnx.NodeProto] | None:
        counted = node.op_type == "AveragePool" and _attribute(node, "count_include_pad", 0)
        if not counted or _attribute(node, "ceil_mode", 0) or _attribute(node, "auto_pad", b"NOTSET") != b"NOTSET":
            return None
        pads = _attribute(node, "pads", [])
        kept = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        for name in ("pads", "count_include_pad"):
            kept.pop(name, None)
        part, padded, half = _Parts(node, graph), node.input[0], len(pads) // 2
        if any(pads):
            amounts = graph.add(np.array([0, 0, *pads[:half], 0, 0, *pads[half:]], np.int64))
            padded = part("Pad", [padded, amounts], mode="constant")
        return part.finished(part("AveragePool", [padded], **kept))

    return _rewritten(model, rewrite)


def explicit_windows(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write kernel shape, strides, dilations and pads of convolutions and poolings; poolings lose dilations of 1.

    Ensures: no ``auto_pad``; Conv and ConvTranspose have all four attributes; pooling has no dilations.

    Raises:
        ModelError: a pooling is dilated, or ``auto_pad`` meets axes without a fixed size.
    """

    def rewrite(node: onnx.NodeProto, graph: _Graph) -> list[onnx.NodeProto] | None:
        if node.op_type not in ("Conv", "ConvTranspose", "MaxPool", "AveragePool"):
            return None
        kernel = _attribute(node, "kernel_shape", None) or _kernel_of(node, graph)
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        attributes |= {"kernel_shape": kernel, "strides": _attribute(node, "strides", [1] * len(kernel))}
        dilations = _attribute(node, "dilations", [1] * len(kernel))
        padding = attributes.pop("auto_pad", b"NOTSET").decode()
        if padding != "NOTSET":
            attributes["pads"] = _padding(node, graph, padding, attributes, dilations)
        attributes.setdefault("pads", [0] * 2 * len(kernel))
        attributes["dilations"] = dilations
        if node.op_type.endswith("Pool"):
            if set(dilations) != {1}:
                raise _cannot(node, f"it is dilated by {dilations}")
            del attributes["dilations"]
        return [_node(node.op_type, node, list(node.input), **attributes)]

    return _rewritten(model, rewrite)


def lower_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """Declare opset 13, where every node says and means the same in it.

    Ensures: opset 13. Attributes that came later are dropped where they have their default.

    Raises:
        ModelError: a node came after opset 13, or uses what came after it.
    """
    opset = opset_of(model)
    for node in all_nodes(model.graph):
        if node.domain in ("", "ai.onnx"):
            _lower_node(node, opset)
        else:
            raise _cannot(node, f"its domain '{node.domain}' is not ONNX's own")
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", _OPSET))
    model.ir_version = _IR_VERSION
    return model


TARGETS: dict[str, tuple[Callable[[onnx.ModelProto], onnx.ModelProto], ...]] = {
    "mindspore": (
        lift_constants,
        raise_opset,
        compose_activations,
        compose_layer_norm,
        plain_gemm,
        explicit_axes,
        axes_from_the_front,
        constant_reshapes,
        splits_as_slices,
        shapes_in_full,
        pad_before_averages,
        explicit_windows,
        drop_unread,
        lower_opset,
    ),
}


class _Graph:
    """What a rewrite may ask of the graph, and the tensors that it adds."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self._constants = {tensor.name: tensor for tensor in proto.graph.initializer}
        self._taken = {name for node in all_nodes(proto.graph) for name in (*node.input, *node.output, node.name)}
        self._taken |= set(self._constants)
        self._proto = proto
        self._shapes: dict[str, Shape] | None = None
        self.added: list[onnx.TensorProto] = []

    def constant(self, name: str) -> Array | None:
        """The value of an initialiser."""
        return numpy_helper.to_array(self._constants[name]) if name in self._constants else None

    def shape(self, name: str) -> Shape | None:
        """Inferred sizes of a tensor's axes; text where they are not fixed."""
        if self._shapes is None:
            self._shapes = infer_shapes(self._proto)
        return self._shapes.get(name)

    def add(self, array: Array) -> str:
        """Add an initialiser."""
        name = self.fresh("constant")
        self.added.append(numpy_helper.from_array(array, name))
        return name

    def fresh(self, wish: str) -> str:
        """A name that nothing has."""
        for number in itertools.count():
            name = f"{wish}_{number}" if number else wish
            if name not in self._taken:
                self._taken.add(name)
                return name
        raise AssertionError("counting ends nowhere")


class _Parts:
    """The nodes that take the place of one node; calling it adds a node and gives the name of its output."""

    def __init__(self, node: onnx.NodeProto, graph: _Graph) -> None:
        self._node, self._graph = node, graph
        self._made: list[onnx.NodeProto] = []

    def __call__(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:  # noqa: ANN401 - ONNX's own
        name = self._graph.fresh(f"{self._node.name or self._node.output[0]}_{operator}")
        self._made.append(helper.make_node(operator, list(inputs), [name], name, **attributes))
        return name

    def constant(self, value: float) -> str:
        """A float32 scalar."""
        return self._graph.add(np.array(value, np.float32))

    def scaled(self, name: str, factor: float) -> str:
        """A tensor times a number."""
        return name if factor == 1 else self("Mul", [name, self.constant(factor)])

    def finished(self, last: str) -> list[onnx.NodeProto]:
        """All nodes; the one that makes ``last`` makes the output of the node that they replace."""
        assert self._made[-1].output[0] == last
        self._made[-1].output[0] = self._node.output[0]
        self._made[-1].name = self._node.name or last
        return self._made


def _hard_swish(node: onnx.NodeProto, graph: _Graph) -> list[onnx.NodeProto]:
    part = _Parts(node, graph)
    slope, offset = _HARD_SIGMOID
    return part.finished(part("Mul", [node.input[0], part("HardSigmoid", [node.input[0]], alpha=slope, beta=offset)]))


def _hard_sigmoid(node: onnx.NodeProto, graph: _Graph) -> list[onnx.NodeProto] | None:
    slope, offset = _attribute(node, "alpha", 0.2), _attribute(node, "beta", 0.5)
    if np.allclose((slope, offset), _HARD_SIGMOID, rtol=1e-6):
        return None
    part = _Parts(node, graph)
    line = part("Add", [part("Mul", [node.input[0], part.constant(slope)]), part.constant(offset)])
    return part.finished(part("Clip", [line, part.constant(0), part.constant(1)]))


def _gelu(node: onnx.NodeProto, graph: _Graph) -> list[onnx.NodeProto]:
    part, x = _Parts(node, graph), node.input[0]
    if _attribute(node, "approximate", b"none") == b"tanh":
        cube = part("Mul", [part("Mul", [x, x]), x])
        inner = part("Add", [x, part("Mul", [cube, part.constant(0.044715)])])
        bent = part("Tanh", [part("Mul", [inner, part.constant(math.sqrt(2 / math.pi))])])
    else:
        bent = part("Erf", [part("Div", [x, part.constant(math.sqrt(2))])])
    raised = part("Add", [bent, part.constant(1)])
    return part.finished(part("Mul", [part("Mul", [x, raised]), part.constant(0.5)]))


def _mish(node: onnx.NodeProto, graph: _Graph) -> list[onnx.NodeProto]:
    part, x = _Parts(node, graph), node.input[0]
    return part.finished(part("Mul", [x, part("Tanh", [part("Softplus", [x])])]))


def _elu(node: onnx.NodeProto, graph: _Graph) -> list[onnx.NodeProto]:
    """Elu, Celu and Selu: factor · (max(x, 0) + alpha · (exp(min(x, 0) / slope) - 1))."""
    alpha, factor, slope = _attribute(node, "alpha", 1.0), 1.0, 1.0
    if node.op_type == "Celu":
        slope = alpha
    if node.op_type == "Selu":
        alpha, factor = _attribute(node, "alpha", _SELU[0]), _attribute(node, "gamma", _SELU[1])
    part, x = _Parts(node, graph), node.input[0]
    below = part.scaled(part("Min", [x, part.constant(0)]), 1 / slope)
    bent = part.scaled(part("Sub", [part("Exp", [below]), part.constant(1)]), alpha * factor)
    return part.finished(part("Add", [part.scaled(part("Relu", [x]), factor), bent]))


def _prelu(node: onnx.NodeProto, graph: _Graph) -> list[onnx.NodeProto]:
    part, (x, slope) = _Parts(node, graph), node.input
    below = part("Mul", [part("Relu", [part("Neg", [x])]), slope])
    return part.finished(part("Sub", [part("Relu", [x]), below]))


_ACTIVATIONS: dict[str, Callable[[onnx.NodeProto, _Graph], list[onnx.NodeProto] | None]] = {
    "HardSwish": _hard_swish,
    "HardSigmoid": _hard_sigmoid,
    "Gelu": _gelu,
    "Mish": _mish,
    "Elu": _elu,
    "Celu": _elu,
    "Selu": _elu,
    "PRelu": _prelu,
}


def _rewritten(
    model: onnx.ModelProto, rewrite: Callable[[onnx.NodeProto, _Graph], list[onnx.NodeProto] | None]
) -> onnx.ModelProto:
    """Replace every node of the outer graph for which ``rewrite`` has others."""
    graph = _Graph(model)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        own = node.domain in ("", "ai.onnx")
        nodes.extend((rewrite(node, graph) if own else None) or [node])
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(graph.added)
    return model


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:  # noqa: ANN401 - ONNX's own
    found = next((item for item in node.attribute if item.name == name), None)
    return default if found is None else helper.get_attribute_value(found)


def _node(operator: str, old: onnx.NodeProto, inputs: list[str], **attributes: Any) -> onnx.NodeProto:  # noqa: ANN401
    """A node in the place of ``old``, with its name and outputs."""
    return helper.make_node(operator, inputs, list(old.output), old.name, **attributes)


def _reduced_axes(node: onnx.NodeProto, graph: _Graph) -> list[int] | None:
    """Axes along which a node reduces; None where it does nothing."""
    axes = _attribute(node, "axes", None)
    if len(node.input) > 1 and node.input[1]:
        constant = graph.constant(node.input[1])
        if constant is None:
            raise _cannot(node, f"its axes '{node.input[1]}' are computed while the graph runs")
        axes = constant.tolist()
    if axes:
        return list(axes)
    if _attribute(node, "noop_with_empty_axes", 0):
        return None
    shape = graph.shape(node.input[0])
    if shape is None:
        raise _cannot(node, f"it reduces all axes, and the rank of '{node.input[0]}' is unknown")
    return list(range(len(shape)))


def _split_sizes(node: onnx.NodeProto, graph: _Graph) -> list[int]:
    if len(node.input) > 1 and node.input[1]:
        sizes = graph.constant(node.input[1])
        if sizes is None:
            raise _cannot(node, f"the sizes '{node.input[1]}' are computed while the graph runs")
        return [int(size) for size in sizes]
    axis, count = _attribute(node, "axis", 0), len(node.output)
    shape = graph.shape(node.input[0])
    whole = shape[axis] if shape is not None else ""
    if not isinstance(whole, int):
        raise _cannot(node, f"axis {axis} of '{node.input[0]}' has no fixed size")
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


def _normalized_axes(node: onnx.NodeProto, graph: _Graph) -> list[int]:
    axis = int(_attribute(node, "axis", -1))
    if axis < 0:
        return list(range(axis, 0))
    shape = graph.shape(node.input[0])
    if shape is None:
        raise _cannot(node, f"the rank of '{node.input[0]}' is unknown")
    return list(range(axis, len(shape)))


def _kernel_of(node: onnx.NodeProto, graph: _Graph) -> list[int]:
    """Sizes of a convolution's window, from its weight."""
    weight = graph.constant(node.input[1])
    shape = graph.shape(node.input[1]) if weight is None else weight.shape
    if shape is None or not all(isinstance(size, int) for size in shape):
        raise _cannot(node, f"the shape of its weight '{node.input[1]}' is unknown")
    return [int(size) for size in shape[2:]]


def _padding(
    node: onnx.NodeProto, graph: _Graph, kind: str, attributes: dict[str, Any], dilations: Sequence[int]
) -> list[int]:
    """What ``auto_pad`` means here: zeros, or as much as makes ceil(size / stride) windows.

    Source: ONNX operator Conv, attribute ``auto_pad``.
    """
    kernel, strides = attributes["kernel_shape"], attributes["strides"]
    if kind == "VALID":
        return [0] * 2 * len(kernel)
    shape = graph.shape(node.input[0])
    if node.op_type == "ConvTranspose" or shape is None or not all(isinstance(size, int) for size in shape[2:]):
        raise _cannot(node, f"auto_pad {kind} needs an input of fixed size; export it with explicit pads")
    begins, ends = [], []
    for size, window, stride, dilation in zip(shape[2:], kernel, strides, dilations, strict=True):
        total = max(0, (math.ceil(int(size) / stride) - 1) * stride + dilation * (window - 1) + 1 - int(size))
        small, large = total // 2, total - total // 2
        begins.append(small if kind == "SAME_UPPER" else large)
        ends.append(large if kind == "SAME_UPPER" else small)
    return begins + ends


def _lower_node(node: onnx.NodeProto, opset: int) -> None:
    """Drop later attributes of default value from a node, and check that the rest is of opset 13."""
    try:
        written = onnx.defs.get_schema(node.op_type, opset)
    except onnx.defs.SchemaError as error:
        raise _cannot(node, f"opset {opset} has no such operator") from error
    try:
        wanted = onnx.defs.get_schema(node.op_type, _OPSET)
    except onnx.defs.SchemaError as error:
        raise _cannot(node, f"it came with opset {written.since_version}, and opset {_OPSET} is needed") from error
    if written.since_version == wanted.since_version:
        return
    kept = [item for item in node.attribute if item.name in wanted.attributes]
    for item in node.attribute:
        if item not in kept and item != written.attributes[item.name].default_value:
            raise _cannot(node, f"its attribute '{item.name}' came after opset {_OPSET}")
    if node.op_type in _CHANGED_DEFAULTS or not wanted.min_input <= len(node.input) <= wanted.max_input:
        raise _cannot(node, f"it is written as since opset {written.since_version}, and opset {_OPSET} is needed")
    del node.attribute[:]
    node.attribute.extend(kept)


def _cannot(node: onnx.NodeProto, reason: str) -> ModelError:
    return ModelError(
        f"operator {node.op_type} ('{node.name or next(iter(node.output), '')}') cannot be lowered: {reason}"
    )
