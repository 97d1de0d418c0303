"""Windows that slide over an image: convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from sanderling.run.litert.flatbuffer import Tensor
from sanderling.run.litert.graph import Node
from sanderling.run.litert.lowering import Lowering

_SAME, _VALID = 0, 1


class Activation(IntEnum):
    """TFLite's numbers of fused activations."""

    NONE = 0
    RELU = 1
    RELU6 = 3


@dataclass(frozen=True)
class Window:
    """A window over height and width; an image of one axis has height 1.

    Attributes:
        size: of the image.
        kernel: of the window.
        before: rows and columns added at the start.
        after: those added at the end, further ones that the last window needs included.
        declared_after: those of ``after`` that the graph itself asks for.
        out: how many windows there are.
    """

    size: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    before: tuple[int, int]
    after: tuple[int, int]
    declared_after: tuple[int, int]
    out: tuple[int, int]

    @property
    def padded(self) -> bool:
        """Whether anything is added around the image."""
        return any((*self.before, *self.after))

    @property
    def is_same(self) -> bool:
        """Whether TFLite's SAME adds as much at the same places."""
        for axis in (0, 1):
            reach = (self.kernel[axis] - 1) * self.dilations[axis] + 1
            total = max((self.out[axis] - 1) * self.strides[axis] + reach - self.size[axis], 0)
            if self.out[axis] != -(-self.size[axis] // self.strides[axis]):
                return False
            if (self.before[axis], self.after[axis]) != (total // 2, total - total // 2):
                return False
        return True


def two(values: Sequence[int], missing: int) -> tuple[int, int]:
    """Values for height and width; an image of one axis gets the missing one for its height."""
    both = [missing] * (2 - len(values)) + [int(value) for value in values]
    return both[0], both[1]


def window_of(node: Node, size: Sequence[int], kernel: Sequence[int], out: Sequence[int]) -> Window:
    """Read strides, dilations and pads of a Conv or pool.

    Args:
        size: of the image's axes, one or two.
        kernel: of the same axes.
        out: how many windows there are along them.
    """
    axes = len(size)
    strides = two(node.attributes.get("strides", [1] * axes), 1)
    dilations = two(node.attributes.get("dilations", [1] * axes), 1)
    height_width, window, count = two(size, 1), two(kernel, 1), two(out, 1)
    reach = [(window[axis] - 1) * dilations[axis] + 1 for axis in (0, 1)]
    needed = [(count[axis] - 1) * strides[axis] + reach[axis] - height_width[axis] for axis in (0, 1)]
    auto = node.attributes.get("auto_pad", b"NOTSET").decode()
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        total = [max(amount, 0) for amount in needed]
        before = [(amount + (auto == "SAME_LOWER")) // 2 for amount in total]
        declared = [amount - start for amount, start in zip(total, before, strict=True)]
    else:
        pads = [0] * 2 * axes if auto == "VALID" else node.attributes.get("pads", [0] * 2 * axes)
        before, declared = list(two(pads[:axes], 0)), list(two(pads[axes:], 0))
    after = [max(need - start, 0) for need, start in zip(needed, before, strict=True)]
    return Window(height_width, window, strides, dilations, two(before, 0), two(after, 0), two(declared, 0), count)


def with_pads(lowering: Lowering, image: Tensor, window: Window, fill: float | None = None) -> Tensor:
    """An image (N, H, W, C) with the window's pads around it: zeros, or ``fill``."""
    rows, height, width, channels = image.shape
    shape = (
        rows,
        height + window.before[0] + window.after[0],
        width + window.before[1] + window.after[1],
        channels,
    )
    pads = lowering.ints(np.array([(0, 0), *zip(window.before, window.after, strict=True), (0, 0)]))
    if fill is None:
        return lowering.like("PAD", [image, pads], shape, ("PadOptions", {}))
    value = lowering.constant(np.array(fill, image.dtype), image.quantization)
    return lowering.like("PADV2", [image, pads, value], shape, ("PadV2Options", {}))


def placed(lowering: Lowering, image: Tensor, window: Window) -> tuple[Tensor, int]:
    """The image for a convolution, with explicit pads where TFLite's SAME is another, and TFLite's padding."""
    if not window.padded:
        return image, _VALID
    if window.is_same:
        return image, _SAME
    return with_pads(lowering, image, window), _VALID


def as_image(lowering: Lowering, tensor: Tensor) -> Tensor:
    """(N, W, C) as (N, 1, W, C); an image stays as it is."""
    if len(tensor.shape) == 3:
        return lowering.reshape(tensor, (tensor.shape[0], 1, *tensor.shape[1:]))
    return tensor


def back(lowering: Lowering, tensor: Tensor, rank: int) -> Tensor:
    """Undo ``as_image`` for a result of ``rank`` axes."""
    if rank == 3:
        return lowering.reshape(tensor, (tensor.shape[0], *tensor.shape[2:]))
    return tensor
