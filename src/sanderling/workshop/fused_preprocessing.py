"""A package's preprocessing as nodes in front of its graph: bytes of a camera go in.

The weights are those of ``model.resampling``, as two matrices, which every runtime and every chip multiplies; what is
between is clipped and rounded where the host clips and rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sanderling.core.errors import ModelError
from sanderling.core.tensor import Array
from sanderling.model.preprocessing import Preprocessing
from sanderling.model.resampling import Taps, taps_of
from sanderling.run.vision.color import COARSE_BITS, FACTOR_BITS, GRAY_AS_COMPUTED, factors_as_computed, zeros_of
from sanderling.run.vision.frames import PLANAR_FORMATS, PixelFormat
from sanderling.run.vision.placing import Fit, fit
from sanderling.run.vision.resizing import passes_columns_first, scaling

PREFIX = "preprocessing/"
_HIGH = 1 << 15  # steps of the high part of a weight: its sums, and those of the other 7 bits, stay below 2^24 of them
_OLDEST_OPSET = 11  # in which limits and paddings are inputs


@dataclass(frozen=True)
class FrameSource:
    """What comes in.

    Attributes:
        format: of the pixels; the input has the shape that ``Frame.pixels`` has.
        width: pixels.
        height: pixels.
        standard: of the colours of a 4:2:0 format.
    """

    format: PixelFormat
    width: int
    height: int
    standard: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the input."""
        if self.format in PLANAR_FORMATS:
            return (self.height * 3 // 2, self.width)
        if self.format == "gray":
            return (self.height, self.width)
        return (self.height, self.width, 4 if self.format == "rgba" else 3)


def fuse(model: onnx.ModelProto, preprocessing: Preprocessing, source: FrameSource, *, name: str) -> onnx.ModelProto:
    """A graph that takes a frame and gives what ``model`` gives for it.

    Args:
        model: with one float32 input; it is left alone.
        preprocessing: of that input.
        source: of the frames.
        name: of the new input, uint8.

    Raises:
        DataError: ``resize`` is ``none`` and the source has another size.
        ModelError: the opset is older than 11, or there is another number of inputs.
    """
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if opset < _OLDEST_OPSET:
        raise ModelError(f"the graph has opset {opset}: preprocessing needs at least {_OLDEST_OPSET}")
    fused = onnx.ModelProto()
    fused.CopyFrom(model)
    given = _only_input(fused)
    chain = _Chain(opset, name)
    _write(chain, preprocessing, source)
    chain.finish(given.name)
    nodes = [*chain.nodes, *fused.graph.node]
    del fused.graph.node[:]
    fused.graph.node.extend(nodes)
    fused.graph.initializer.extend(chain.constants)
    fused.graph.input.remove(given)
    fused.graph.input.insert(0, helper.make_tensor_value_info(name, TensorProto.UINT8, source.shape))
    return fused


def preprocessing_alone(
    preprocessing: Preprocessing, source: FrameSource, *, name: str, opset: int = 17
) -> onnx.ModelProto:
    """The graph of the preprocessing itself, from ``name`` to ``tensor``."""
    passed = helper.make_graph(
        [helper.make_node("Identity", ["prepared"], ["tensor"])],
        "preprocessing",
        [helper.make_tensor_value_info("prepared", TensorProto.FLOAT, preprocessing.shape)],
        [helper.make_tensor_value_info("tensor", TensorProto.FLOAT, preprocessing.shape)],
    )
    model = helper.make_model(passed, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return fuse(model, preprocessing, source, name=name)


def _only_input(model: onnx.ModelProto) -> onnx.ValueInfoProto:
    constants = {tensor.name for tensor in model.graph.initializer}
    given = [value for value in model.graph.input if value.name not in constants]
    if len(given) != 1 or given[0].type.tensor_type.elem_type != TensorProto.FLOAT:
        raise ModelError(f"preprocessing is fused with one float32 input: the graph has {len(given)} inputs")
    value: onnx.ValueInfoProto = given[0]
    return value


class _Chain:
    """Nodes one after the other."""

    def __init__(self, opset: int, start: str) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.at = start
        self._opset = opset

    def constant(self, array: Array) -> str:
        """Add a constant."""
        name = f"{PREFIX}constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def add(self, operator: str, *constants: Array, before: str | None = None, **attributes: Any) -> str:  # noqa: ANN401 - ONNX's
        """Add a node that goes on from ``before``, or from the last one."""
        name = f"{PREFIX}{len(self.nodes)}_{operator}"
        inputs = [before or self.at, *(self.constant(each) for each in constants)]
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        self.at = name
        return name

    def from_the_left(self, matrix: Array) -> None:
        """Multiply a matrix with what is there."""
        name = f"{PREFIX}{len(self.nodes)}_MatMul"
        self.nodes.append(helper.make_node("MatMul", [self.constant(matrix), self.at], [name], name))
        self.at = name

    def join(self, names: list[str], axis: int) -> None:
        """Put tensors beside each other."""
        name = f"{PREFIX}{len(self.nodes)}_Concat"
        self.nodes.append(helper.make_node("Concat", names, [name], name, axis=axis))
        self.at = name

    def add_to(self, name: str) -> None:
        """Add a tensor to what is there."""
        node = f"{PREFIX}{len(self.nodes)}_Add"
        self.nodes.append(helper.make_node("Add", [self.at, name], [node], node))
        self.at = node

    def rows(self, start: int, stop: int, before: str) -> str:
        """Rows of a tensor."""
        return self.add("Slice", *(np.array([each], np.int64) for each in (start, stop, 0)), before=before)

    def clip(self) -> None:
        """Cut off what lies outside [0, 255]."""
        self.add("Clip", np.array(0, np.float32), np.array(255, np.float32))

    def finish(self, name: str) -> None:
        """Call the last result ``name``."""
        self.nodes[-1].output[0] = name
        self.at = name


def _write(chain: _Chain, preprocessing: Preprocessing, source: FrameSource) -> None:
    found = fit(preprocessing, source.width, source.height)
    _colors(chain, preprocessing, source)  # (1, C, H, W), float32 levels
    _resize(chain, preprocessing, source, found)
    if source.format == "gray" and preprocessing.channels > 1:
        chain.join([chain.at] * preprocessing.channels, 1)
    right, bottom = preprocessing.width - found.left - found.width, preprocessing.height - found.top - found.height
    pads = np.array([0, 0, found.top, found.left, 0, 0, bottom, right], np.int64)
    if pads.any():
        chain.add("Pad", pads, np.array(preprocessing.pad, np.float32), mode="constant")
    factors, biases = scaling(preprocessing)
    chain.add("Mul", factors.reshape(1, -1, 1, 1))
    chain.add("Add", biases.reshape(1, -1, 1, 1))
    if preprocessing.layout == "NHWC":
        chain.add("Transpose", perm=[0, 2, 3, 1])


def _colors(chain: _Chain, preprocessing: Preprocessing, source: FrameSource) -> None:
    color, height, width = preprocessing.color, source.height, source.width
    if source.format == "gray":
        chain.add("Cast", to=TensorProto.FLOAT)
        chain.add("Reshape", np.array([1, 1, height, width]))
        return
    if source.format in PLANAR_FORMATS:
        order = "bgr" if color == "bgr" else "rgb"
        _from_planes(chain, source, order)
    else:
        chain.add("Cast", to=TensorProto.FLOAT)
        chain.add("Transpose", perm=[2, 0, 1])
        order = source.format
        if color != "gray" and order != color:
            chain.add("Gather", np.array([order.index(letter) for letter in color]), axis=0)
    if color == "gray":
        shares = [dict(zip("rgb", GRAY_AS_COMPUTED, strict=True)).get(letter, 0.0) for letter in order]
        channels = len(shares)
        chain.add("Reshape", np.array([channels, height * width]))
        chain.from_the_left(np.array([shares], np.float32))
        chain.add("Add", np.array(0.5, np.float32))
        chain.add("Floor")
    chain.add("Reshape", np.array([1, preprocessing.channels, height, width]))


def _from_planes(chain: _Chain, source: FrameSource, order: str) -> None:
    """Luma and chroma to (3, H * W) levels in the model's order."""
    height, width, start = source.height, source.width, chain.at
    half = (height // 2, width // 2)
    luma = chain.rows(0, height, start)
    luma = chain.add("Reshape", np.array([1, height * width]), before=luma)
    chain.rows(height, height * 3 // 2, start)
    if source.format == "i420":
        chain.add("Reshape", np.array([2, half[0], 1, half[1], 1]))
    else:
        chain.add("Reshape", np.array([*half, 2]))
        chain.add("Transpose", perm=[2, 0, 1])
        if source.format == "nv21":
            chain.add("Gather", np.array([1, 0]), axis=0)
        chain.add("Reshape", np.array([2, half[0], 1, half[1], 1]))
    chain.add("Expand", np.array([2, half[0], 2, half[1], 2]))
    chroma = chain.add("Reshape", np.array([2, height * width]))
    chain.join([luma, chroma], 0)
    chain.add("Cast", to=TensorProto.FLOAT)
    zeros = zeros_of(source.standard)
    if zeros[0] > 0:  # luma has a limit below, chroma has none
        chain.add("Max", np.array([[zeros[0]], [0], [0]], np.float32))
    factors = factors_as_computed(source.standard)
    _mix(chain, factors if order == "rgb" else factors[::-1], zeros)
    chain.add("Reshape", np.array([3, height, width]))


def _mix(chain: _Chain, factors: Array, zeros: Array) -> None:
    """Levels of three channels by the host's fixed point, to the last bit.

    float32 adds multiples of 2^-14 up without rounding. Of finer factors the low 10 bits are multiplied alone; what
    they sum up to is cut to whole steps of 2^-10, in which the high bits are, as a carry to those.
    """
    biases = ((1 << (FACTOR_BITS - 1)) - factors @ zeros)[:, None]  # half a level more, for the end is cut off
    if (factors % (1 << (FACTOR_BITS - COARSE_BITS))).any():
        start, step = chain.at, 1 << (FACTOR_BITS // 2)
        low, factors = factors % step, factors - factors % step
        chain.from_the_left((low / step).astype(np.float32))
        chain.add("Add", (biases % step / step).astype(np.float32))
        chain.join([start, chain.add("Floor")], 0)
        factors, biases = np.column_stack([factors, step * np.eye(3, dtype=np.int64)]), biases - biases % step
    chain.from_the_left((factors / (1 << FACTOR_BITS)).astype(np.float32))
    chain.add("Add", (biases / (1 << FACTOR_BITS)).astype(np.float32))
    chain.clip()
    chain.add("Floor")


def _resize(chain: _Chain, preprocessing: Preprocessing, source: FrameSource, found: Fit) -> None:
    left, top, right, bottom = found.box
    how, antialias = preprocessing.interpolation, preprocessing.antialias
    rows = taps_of(how, source.height, top, bottom, found.height, antialias=antialias)
    columns = taps_of(how, source.width, left, right, found.width, antialias=antialias)
    as_pillow = how == "bicubic" and antialias
    passes = [(rows, source.height, 2), (columns, source.width, 3)]
    if as_pillow and passes_columns_first(source.height, source.width, found):
        passes.reverse()
    needed = [each for each in passes if _changes(each[0], each[1])]
    for taps, size, axis in needed:
        if taps.picked is not None:
            chain.add("Gather", taps.picked, axis=axis)
        elif as_pillow:
            _pass_in_fixed_point(chain, taps, size, axis)
        else:
            _weigh(chain, taps.matrix(size), axis)
    if needed and how == "bicubic" and not as_pillow:
        chain.clip()


def _changes(taps: Taps, size: int) -> bool:
    """Whether an axis is anything else than what it was."""
    return taps.picked is None or not np.array_equal(taps.picked, np.arange(size))


def _pass_in_fixed_point(chain: _Chain, taps: Taps, size: int, axis: int) -> None:
    """A pass with its rounding, to the last bit as Pillow and the host have it; in two parts as in ``_mix``."""
    weights, start, carry = taps.in_fixed_point().matrix(size), chain.at, None
    high = np.rint(weights * _HIGH) / _HIGH
    if (weights != high).any():
        _weigh(chain, (weights - high) * _HIGH, axis)
        chain.add("Floor")
        carry = chain.add("Mul", np.array(1 / _HIGH, np.float32))
        chain.at = start
    _weigh(chain, high, axis)
    if carry is not None:
        chain.add_to(carry)
    chain.add("Add", np.array(0.5, np.float32))
    chain.clip()
    chain.add("Floor")


def _weigh(chain: _Chain, weights: Array, axis: int) -> None:
    """Multiply weights, shape (targets, sources), with an axis."""
    matrix = weights.astype(np.float32)
    if axis == 2:
        chain.from_the_left(matrix)
    else:
        chain.add("MatMul", np.ascontiguousarray(matrix.T))
