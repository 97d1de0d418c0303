"""Memory for the keys and values of several sequences, side by side, so that one call computes a token of each.

A sequence has a slot: a row of every layer's tensors, as long as the context. The rows are address space only; memory
is taken page by page as tokens come, and given back when the slot is freed.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sanderling.core.errors import EngineError, first_line
from sanderling.core.tensor import Array

SLOTS = 32


@dataclass(frozen=True)
class CacheTensor:
    """Keys or values of one layer: of a sequence, shape (heads, tokens, width)."""

    name: str
    heads: int
    width: int
    dtype: npt.DTypeLike

    @property
    def token_bytes(self) -> int:
        """Of one token."""
        return self.heads * self.width * np.dtype(self.dtype).itemsize


class Slots:
    """Rows for ``SLOTS`` sequences. Used under its owner's lock.

    Args:
        tensors: of the model, in the order of its graph.
        context: most tokens of a sequence.

    Raises:
        EngineError: there is no address space for it.
    """

    def __init__(self, tensors: Sequence[CacheTensor], context: int) -> None:
        self._rows = [_Rows(tensor, context) for tensor in tensors]
        self._free = list(range(SLOTS))

    @property
    def is_empty(self) -> bool:
        """Whether no slot is taken."""
        return len(self._free) == SLOTS

    def take(self) -> int | None:
        """The lowest free slot; None where all are taken."""
        if not self._free:
            return None
        slot = min(self._free)
        self._free.remove(slot)
        return slot

    def free(self, slot: int) -> None:
        """Give a slot and its memory back."""
        for rows in self._rows:
            rows.release(slot)
        self._free.append(slot)

    def views(self, first: int, count: int) -> list[Array]:
        """Every tensor of neighbouring slots, shape (count, heads, context, width); no copy."""
        return [rows.array[first : first + count] for rows in self._rows]

    def swap(self, one: int, other: int, *, tokens: tuple[int, int]) -> None:
        """Let two slots change places; ``tokens`` are how many of each are in use."""
        most = max(tokens)
        for rows in self._rows:
            here, there = rows.array[one, :, :most], rows.array[other, :, :most]
            held = here.copy()
            here[...] = there
            there[...] = held
        exchanged = {one: other, other: one}
        self._free = [exchanged.get(place, place) for place in self._free]


class _Rows:
    """One tensor of all slots."""

    def __init__(self, tensor: CacheTensor, context: int) -> None:
        itemsize = np.dtype(tensor.dtype).itemsize
        row = tensor.heads * context * tensor.width * itemsize
        # Rows begin at a page, so that one can be given back without its neighbours.
        step = math.lcm(tensor.heads * tensor.width * itemsize, mmap.PAGESIZE)
        self._stride = math.ceil(row / step) * step
        try:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
            self._memory = mmap.mmap(-1, self._stride * SLOTS, flags=flags)
        except (OSError, ValueError, AttributeError) as error:
            raise EngineError(f"no address space for sequences of {context} tokens: {first_line(error)}") from error
        if hasattr(mmap, "MADV_NOHUGEPAGE"):  # a huge page for a few tokens of each head would be most of the memory
            self._memory.madvise(mmap.MADV_NOHUGEPAGE)
        long = self._stride // (tensor.heads * tensor.width * itemsize)
        self.array: Array = np.frombuffer(self._memory, tensor.dtype).reshape(SLOTS, tensor.heads, long, tensor.width)

    def release(self, slot: int) -> None:
        if hasattr(mmap, "MADV_DONTNEED"):
            self._memory.madvise(mmap.MADV_DONTNEED, slot * self._stride, self._stride)


def neighbours(slots: Sequence[int]) -> tuple[int, list[tuple[int, int]]]:
    """Where some slots become neighbours with the fewest exchanges.

    Args:
        slots: none twice.

    Returns:
        The first of ``len(slots)`` neighbouring places, and which slots change places with which of these.
    """
    count = len(slots)
    first = max(range(SLOTS - count + 1), key=lambda start: sum(start <= slot < start + count for slot in slots))
    places = set(range(first, first + count))
    return first, list(zip([slot for slot in slots if slot not in places], sorted(places - set(slots)), strict=True))
