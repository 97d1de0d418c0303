"""Memory that a process shares with its worker, so that tensors need not cross a pipe.

A block is a file that exists in memory only and has no name (`memfd`): nothing is left behind, however either side
ends. The worker opens it through `/proc` while its parent waits, in the Python of another environment too. Where one of
these is missing, tensors go over the pipe.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from sanderling.core.errors import first_line
from sanderling.core.tensor import Array
from sanderling.run.copies import address_of

_ALIGNED_BYTES = 64
_LEAST_BYTES = 4096


class Unshared(Exception):  # noqa: N818 - a state, not an error of ours
    """Memory cannot be shared here; the message says why."""


class Block:
    """Bytes that two processes see, for as long as an array of it lives on either side."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self.bytes: Array = np.frombuffer(memory, np.uint8)
        self.address = address_of(self.bytes)

    @classmethod
    def attach(cls, path: str, size_bytes: int) -> Block:
        """The block that another process offers at ``path``.

        Raises:
            Unshared: it cannot be opened or mapped, or has another size.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                found = os.fstat(descriptor).st_size
                if found != size_bytes or size_bytes <= 0:
                    raise Unshared(f"a block of {size_bytes} bytes was told, and has {found}")
                return cls(mmap.mmap(descriptor, size_bytes))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise Unshared(f"the block cannot be attached: {first_line(error)}") from error

    def array(self, described: Mapping[str, Any]) -> Array:
        """The array that a message describes by ``dtype``, ``shape`` and ``offset``.

        Raises:
            ValueError: it does not lie inside the block, or its dtype is of objects.
        """
        dtype, shape, offset = np.dtype(described["dtype"]), tuple(map(int, described["shape"])), described["offset"]
        size_bytes = math.prod(shape) * dtype.itemsize
        inside = isinstance(offset, int) and 0 <= offset <= len(self.bytes) - size_bytes
        if dtype.hasobject or min(shape, default=0) < 0 or not inside:
            raise ValueError(f"{dtype}{list(shape)} at {offset} does not lie in a block of {len(self.bytes)} bytes")
        return np.ndarray(shape, dtype, self._memory, offset)


@contextmanager
def offered(size_bytes: int) -> Iterator[tuple[Block, str]]:
    """A new block, and the path where another process can attach it until the ``with`` ends.

    Raises:
        Unshared: this system has no such memory, or not enough.
    """
    try:
        descriptor = os.memfd_create("sanderling", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (AttributeError, OSError) as error:
        raise Unshared(f"this system makes no files in memory: {first_line(error)}") from error
    try:
        try:
            os.ftruncate(descriptor, size_bytes)
            # A size that could change would be a fault in the other process.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            block = Block(mmap.mmap(descriptor, size_bytes))
        except OSError as error:
            raise Unshared(f"{size_bytes} bytes cannot be shared: {first_line(error)}") from error
        yield block, f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Place:
    """A part of a block for one tensor."""

    offset: int
    capacity_bytes: int


@dataclass(frozen=True)
class Layout:
    """Places for the inputs and outputs of a graph, by name, and the size of the block that holds them."""

    inputs: Mapping[str, Place]
    outputs: Mapping[str, Place]
    size_bytes: int

    def holds(self, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> bool:
        """Whether tensors of these sizes in bytes have room."""
        return all(size <= self.inputs[name].capacity_bytes for name, size in inputs.items()) and all(
            name in self.outputs and size <= self.outputs[name].capacity_bytes for name, size in outputs.items()
        )


def layout_for(inputs: Mapping[str, int], outputs: Mapping[str, int]) -> Layout:
    """Places for tensors of at least these sizes in bytes.

    Capacities are powers of two, so that growing batches seldom need another block; what is not used takes no memory.
    """
    placed_inputs, end = _placed(inputs, 0)
    placed_outputs, end = _placed(outputs, end)
    return Layout(placed_inputs, placed_outputs, max(end, _LEAST_BYTES))


def _placed(sizes: Mapping[str, int], end: int) -> tuple[dict[str, Place], int]:
    places = {}
    for name, size in sizes.items():
        places[name] = Place(end, max(_ALIGNED_BYTES, 1 << max(0, size - 1).bit_length()))
        end += places[name].capacity_bytes  # a multiple of the alignment
    return places, end


@dataclass(frozen=True)
class Arena:
    """A block with a layout, as the process that offers it uses it; ``name`` is how messages call it."""

    name: str
    block: Block
    layout: Layout

    def view(self, place: Place, dtype: str | np.dtype[Any], shape: tuple[int, ...]) -> Array:
        """An array at a place."""
        return self.block.array({"dtype": dtype, "shape": shape, "offset": place.offset})

    def lies_at(self, place: Place, array: Array) -> bool:
        """Whether an array is at a place already."""
        return (
            array.flags.c_contiguous
            and array.nbytes <= place.capacity_bytes
            and address_of(array) == self.block.address + place.offset
        )


def describe(name: str, array: Array, place: Place, block: str) -> dict[str, Any]:
    """An array at its place, as a message tells it."""
    return {"name": name, "dtype": array.dtype.str, "shape": array.shape, "offset": place.offset, "block": block}
