"""Backward rules of convolutions: the input's gradient by a transposed one, the weight's tap by tap."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import onnx

from sanderling.workshop.learning.draft import attribute, integer, integers
from sanderling.workshop.learning.gradients.step import Step, fixed, gradient


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
        step.give(1, weight_gradients(step, moved, out, each=False))
    if 2 in step.wanted:
        step.give(2, step.summed(step.g, [0, *spatial], keep=False))


def _input_gradient(step: Step, moved: Window, size: list[int], out: list[int]) -> str:
    rank, weight = moved.rank, step.shape(1)
    if moved.strides == [1] * rank and moved.group == weight[0] and weight[1] == 1:
        return _turned_round(step, moved)
    plain = moved.kernel == moved.strides == [1] * rank and not any(moved.pads) and moved.group == 1
    if plain and step.draft.known(step.x(1)) is None:  # of a frozen weight an engine would keep a second copy
        return step.op("Conv", step.g, step.op("Transpose", step.x(1), perm=[1, 0, *range(2, 2 + rank)]))
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
        taps = [step.summed(step.mul(step.g, tap), axes, keep=False) for tap in _taps(step, moved, out)]  # ([N,] C)
    else:
        parts = [moved.group] if moved.group > 1 else []
        g = step.op("Reshape", step.g, draft.integers([-1, *parts, channels // moved.group, places]))
        order = [0, *range(1, len(parts) + 1), len(parts) + 2, len(parts) + 1]
        taps = []
        for tap in _taps(step, moved, out):
            x = step.op("Reshape", tap, draft.integers([-1, *parts, inner, places]))
            tap = step.op("MatMul", g, step.op("Transpose", x, perm=order))  # (N, [group,] O / group, I / group)
            taps.append(tap if each else step.summed(tap, [0], keep=False))
    target = draft.integers([*([-1] if each else []), *fixed(step, weight, range(len(weight)))])
    if len(taps) == 1:
        return step.op("Reshape", taps[0], target)
    last = draft.integers([-1])
    stacked = step.op("Concat", *(step.op("Unsqueeze", tap, last) for tap in taps), axis=-1)
    return step.op("Reshape", stacked, target)


def _taps(step: Step, moved: Window, out: list[int]) -> Iterator[str]:
    """The input as each tap of the kernel sees it, (N, I, *out)."""
    draft, rank = step.draft, moved.rank
    x = step.x(0)
    if any(moved.pads):
        x = step.op("Pad", x, draft.integers([0, 0, *moved.pads[:rank], 0, 0, *moved.pads[rank:]]))
    whole = moved.kernel == [1] * rank and moved.strides == [1] * rank and not any(moved.pads)
    axes, steps = draft.integers(range(2, 2 + rank)), draft.integers(moved.strides)
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
