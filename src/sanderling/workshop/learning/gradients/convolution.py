"""Backward rules of convolutions: the input's gradient by a transposed one, the weight's tap by tap."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import onnx

from sanderling.workshop.learning.draft import attribute, integer, integers
from sanderling.workshop.learning.gradients.step import Step, fixed, gradient

_FEW_PLACES = 32
_FEW_CHANNELS = 8
_COL2IM_OPSET = 18


@dataclass(frozen=True)
class Window:
    """How a kernel moves: sizes for each spatial axis, pads in front of all and behind all."""

    kernel: list[int]
    strides: list[int]
    pads: list[int]
    dilations: list[int]
    group: int

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel)


def window(step: Step, node: onnx.NodeProto, kernel: list[int]) -> Window:
    """Read a node's window.

    Raises:
        ModelError: its padding depends on the input.
    """
    n = len(kernel)
    if attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise step.refuse(f"auto_pad is {attribute(node, 'auto_pad')}: export it with explicit padding")
    return Window(
        kernel,
        integers(node, "strides", [1] * n),
        integers(node, "pads", [0] * 2 * n),
        integers(node, "dilations", [1] * n),
        integer(node, "group", 1),
    )


@gradient("Conv")
def conv(step: Step) -> None:
    """Source: Dumoulin and Visin 2016, "A guide to convolution arithmetic for deep learning"."""
    weight = step.shape(1)
    spatial = range(2, len(weight))
    kernel = fixed(step, weight, spatial)
    moved = window(step, step.node, kernel)
    size, out = fixed(step, step.shape(0), spatial), fixed(step, step.out_shape, spatial)
    if 0 in step.wanted:
        step.give(0, _input_gradient(step, moved, size, out))
    if 1 in step.wanted:
        whole = moved.group == 1
        step.give(1, _weight_gradient(step, moved, out) if whole else weight_gradients(step, moved, out, each=False))
    if 2 in step.wanted:
        step.give(2, step.summed(step.g, [0, *spatial], keep=False))


def _input_gradient(step: Step, moved: Window, size: list[int], out: list[int]) -> str:
    rank, weight = moved.rank, step.shape(1)
    if moved.strides == [1] * rank and moved.group == weight[0] and weight[1] == 1:
        return _turned_round(step, moved)
    plain = moved.kernel == moved.strides == [1] * rank and not any(moved.pads) and moved.group == 1
    if plain and step.draft.known(step.x(1)) is None:  # of a frozen weight an engine would keep a second copy
        return step.op("Conv", step.g, step.op("Transpose", step.x(1), perm=[1, 0, *range(2, 2 + rank)]))
    few = moved.group == 1 and math.prod(out) <= _FEW_PLACES
    if few and rank == 2 and step.draft.opset >= _COL2IM_OPSET:
        return _put_back(step, moved, size, out)
    extra = []
    for axis in range(rank):
        reach = moved.dilations[axis] * (moved.kernel[axis] - 1) + 1
        covered = (out[axis] - 1) * moved.strides[axis] + reach - moved.pads[axis] - moved.pads[axis + rank]
        extra.append(size[axis] - covered)
    return step.op(
        "ConvTranspose",
        step.g,
        step.x(1),
        strides=moved.strides,
        pads=moved.pads,
        dilations=moved.dilations,
        output_padding=extra,
        group=moved.group,
    )


def _put_back(step: Step, moved: Window, size: list[int], out: list[int]) -> str:
    """One product for the whole batch, (I · taps, O) · (O, N · places), whose results are added where they belong.

    A transposed convolution reads the whole weight again for each sample, to compute few places with it. Only of two
    spatial axes: of others ONNX Runtime's Col2Im is wrong where there is dilation, and OpenVINO has none.
    """
    draft = step.draft
    channels, inner = fixed(step, step.shape(1), (0, 1))
    places, taps = math.prod(out), math.prod(moved.kernel)
    g = step.op("Reshape", step.g, draft.integers([-1, channels, places]))
    g = step.op("Reshape", step.op("Transpose", g, perm=[1, 0, 2]), draft.integers([channels, -1]))
    weight = step.op("Reshape", step.x(1), draft.integers([channels, inner * taps]))
    moves = step.op("Reshape", step.op("Gemm", weight, g, transA=1), draft.integers([inner * taps, -1, places]))
    return step.op(
        "Col2Im",
        step.op("Transpose", moves, perm=[1, 0, 2]),
        draft.integers(size),
        draft.integers(moved.kernel),
        strides=moved.strides,
        pads=moved.pads,
        dilations=moved.dilations,
    )


def _turned_round(step: Step, moved: Window) -> str:
    """A depthwise kernel turned round in a plain convolution, which engines are better at than at a transposed one."""
    rank = moved.rank
    reach = [dilation * (size - 1) for dilation, size in zip(moved.dilations, moved.kernel, strict=True)]
    known = step.draft.known(step.x(1))
    if known is not None:
        kernel = step.draft.constant(known[(slice(None), slice(None), *[slice(None, None, -1)] * rank)])
    else:
        whole, axes = step.draft.integers, range(2, 2 + rank)
        last, first, back = [-1] * rank, [-(1 << 40)] * rank, [-1] * rank
        kernel = step.op("Slice", step.x(1), whole(last), whole(first), whole(axes), whole(back))
    pads = [length - pad for length, pad in zip(reach * 2, moved.pads, strict=True)]
    if min(pads) < 0:
        raise step.refuse("its padding is wider than its kernel")
    return step.op("Conv", step.g, kernel, pads=pads, dilations=moved.dilations, group=moved.group)


def _weight_gradient(step: Step, moved: Window, out: list[int]) -> str:
    """The gradient of an ungrouped weight, (O, I, *kernel): for each tap one product over all places of the batch.

    The input has its channels last for it, (N · places, I), so that a tap is cut out in long pieces. Of few channels
    the pieces would be short and the products thin: there all taps are one product, with (N · places, I · taps).
    """
    draft, rank = step.draft, moved.rank
    channels, inner = fixed(step, step.shape(1), (0, 1))
    spatial, whole = range(2, 2 + rank), draft.integers
    g = step.op("Reshape", step.op("Transpose", step.g, perm=[1, 0, *spatial]), whole([channels, -1]))
    target = whole([channels, inner, *moved.kernel])
    if inner < _FEW_CHANNELS:
        return step.op("Reshape", step.op("Gemm", g, columns(step, moved, out), transB=1), target)
    x = step.op("Transpose", step.x(0), perm=[0, *spatial, 1])
    rows = (step.op("Reshape", tap, whole([-1, inner])) for tap in _taps(step, moved, out, x, 1))
    products = [step.op("MatMul", g, each) for each in rows]
    if len(products) == 1:
        return step.op("Reshape", products[0], target)
    each = whole([1, channels, inner])
    stacked = step.op("Concat", *(step.op("Reshape", product, each) for product in products), axis=0)
    return step.op("Reshape", step.op("Transpose", stacked, perm=[1, 2, 0]), target)


def columns(step: Step, moved: Window, out: list[int]) -> str:
    """What each place of the output sees of the input, (I · taps, N · places)."""
    draft, rank = step.draft, moved.rank
    (inner,) = fixed(step, step.shape(0), [1])
    x = step.op("Transpose", step.x(0), perm=[1, 0, *range(2, 2 + rank)])
    parts = [step.op("Reshape", tap, draft.integers([inner, 1, -1])) for tap in _taps(step, moved, out, x, 2)]
    joined = step.op("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]
    return step.op("Reshape", joined, draft.integers([inner * len(parts), -1]))


def weight_gradients(step: Step, moved: Window, out: list[int], *, each: bool = True) -> str:
    """The gradient of the weight, (O, I / group, *kernel), or each sample's own, (N, O, I / group, *kernel).

    A tap of the kernel sees the input shifted and thinned out; its gradient is the product of that with the output's.
    """
    draft, weight = step.draft, step.shape(1)
    channels, inner = fixed(step, weight, (0, 1))
    places = 1
    for length in out:
        places *= length
    depthwise = inner == 1 and channels == moved.group
    if depthwise:
        spatial = list(range(2, 2 + moved.rank))
        axes = spatial if each else [0, *spatial]
        taps = [step.summed(step.mul(step.g, tap), axes, keep=False) for tap in _taps(step, moved, out, step.x(0), 2)]
    else:
        parts = [moved.group] if moved.group > 1 else []
        g = step.op("Reshape", step.g, draft.integers([-1, *parts, channels // moved.group, places]))
        order = [0, *range(1, len(parts) + 1), len(parts) + 2, len(parts) + 1]
        taps = []
        for tap in _taps(step, moved, out, step.x(0), 2):
            x = step.op("Reshape", tap, draft.integers([-1, *parts, inner, places]))
            tap = step.op("MatMul", g, step.op("Transpose", x, perm=order))  # (N, [group,] O / group, I / group)
            taps.append(tap if each else step.summed(tap, [0], keep=False))
    target = draft.integers([*([-1] if each else []), *fixed(step, weight, range(len(weight)))])
    if len(taps) == 1:
        return step.op("Reshape", taps[0], target)
    last = draft.integers([-1])
    stacked = step.op("Concat", *(step.op("Unsqueeze", tap, last) for tap in taps), axis=-1)
    return step.op("Reshape", stacked, target)


def _taps(step: Step, moved: Window, out: list[int], x: str, first: int) -> Iterator[str]:
    """The input as each tap of the kernel sees it: its spatial axes, from ``first`` on, have the output's sizes."""
    draft, rank = step.draft, moved.rank
    if any(moved.pads):
        before, behind = [0] * first, [0] * (2 - first)
        x = step.op(
            "Pad", x, draft.integers([*before, *moved.pads[:rank], *behind, *before, *moved.pads[rank:], *behind])
        )
    whole = moved.kernel == [1] * rank and moved.strides == [1] * rank and not any(moved.pads)
    axes, steps = draft.integers(range(first, first + rank)), draft.integers(moved.strides)
    for tap in itertools.product(*(range(size) for size in moved.kernel)):
        if whole:
            yield x
            continue
        starts = [place * dilation for place, dilation in zip(tap, moved.dilations, strict=True)]
        ends = [start + (n - 1) * s + 1 for start, n, s in zip(starts, out, moved.strides, strict=True)]
        yield step.op("Slice", x, draft.integers(starts), draft.integers(ends), axes, steps)


@gradient("ConvTranspose")
def conv_transpose(step: Step) -> None:
    """The input's gradient is the convolution of the output's; the weight's is not written."""
    weight = step.shape(1)
    spatial = range(2, len(weight))
    moved = window(step, step.node, fixed(step, weight, spatial))
    if 1 in step.wanted:
        raise step.refuse("the weight of a transposed convolution is not trained")
    if any(integers(step.node, "output_padding", [0] * moved.rank)) and any(moved.pads):
        raise step.refuse("it has padding and output padding at once")
    if 0 in step.wanted:
        size = fixed(step, step.shape(0), spatial)
        g = step.op(
            "Conv",
            step.g,
            step.x(1),
            strides=moved.strides,
            pads=moved.pads,
            dilations=moved.dilations,
            group=moved.group,
        )
        if any(integers(step.node, "output_padding", [0] * moved.rank)):
            rank = moved.rank
            ends, axes = step.draft.integers(size), step.draft.integers(range(2, 2 + rank))
            g = step.op("Slice", g, step.draft.integers([0] * rank), ends, axes)
        step.give(0, g)
    if 2 in step.wanted:
        step.give(2, step.summed(step.g, [0, *spatial], keep=False))
