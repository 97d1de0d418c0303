"""Bodies of requests: received in place, in chunks, and unpacked."""

from __future__ import annotations

import zlib
from collections import deque
from sys import getrefcount
from typing import TypeAlias

import httptools
import numpy as np
import numpy.typing as npt

from sanderling.serve.errors import MediaError, RequestError, TooLargeError
from sanderling.serve.http.head import Head

ALIGNMENT = 64
_ALLOCATED = 16  # that every block of Python's has
_SMALL_BYTES = 16 * 2**10
Block: TypeAlias = npt.NDArray[np.uint8]
_STEP = 2**20
_KEPT_BYTES = 64 * 2**20
_LEAST_KEPT_BYTES = 64 * 2**10
_TRIED = 4  # blocks that are looked at before another one is made
_UNUSED = 2  # references to a block: the pool's, and the one that getrefcount is called with
_WINDOWS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}


class SizedBody:
    """A body whose size is known, received where it stays.

    Args:
        size: in bytes.
        aligned_at: the byte that lies at a multiple of 64, of 16 in a small body, so that a tensor that begins there
            can be used in place.
        block: memory that is used; new memory by default.

    Attributes:
        data: all of it, writable; what was not received yet has any content.
        filled: bytes received so far.
    """

    __slots__ = ("data", "filled")

    def __init__(self, size: int, aligned_at: int = 0, block: Block | None = None) -> None:
        if block is None and size < _SMALL_BYTES:  # NumPy's own way to such a block takes longer
            skipped = -aligned_at % _ALLOCATED
            self.data = memoryview(bytearray(size + _ALLOCATED))[skipped : skipped + size]
            self.filled = 0
            return
        block = np.empty(size + ALIGNMENT, np.uint8) if block is None else block
        skipped = -(block.__array_interface__["data"][0] + aligned_at) % ALIGNMENT
        self.data = block.data[skipped : skipped + size]
        self.filled = 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing."""
        return self.filled == len(self.data)

    def room(self) -> memoryview:
        """Where the next bytes go."""
        return self.data[self.filled :]

    def put(self, data: bytes | memoryview) -> int:
        """Take what fits; returns how many bytes that is."""
        size = min(len(data), len(self.data) - self.filled)
        self.data[self.filled : self.filled + size] = data[:size]
        self.filled += size
        return size


class BodyPool:
    """Memory for bodies, used again: the pages of fresh memory cost time.

    A block is free when nobody refers to it any more, neither a request nor an array of it that somebody kept.

    Args:
        limit_bytes: that are kept.

    Attributes:
        kept_bytes: of all blocks, those in use included.
    """

    def __init__(self, limit_bytes: int = _KEPT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._kept: dict[int, deque[Block]] = {}
        self.kept_bytes = 0

    def take(self, size: int, aligned_at: int) -> SizedBody:
        """A body of that size."""
        if not _LEAST_KEPT_BYTES <= size <= self._limit_bytes:
            return SizedBody(size, aligned_at)
        kept = self._kept.setdefault(size, deque())
        for _ in range(min(len(kept), _TRIED)):
            kept.rotate(-1)
            if getrefcount(kept[-1]) == _UNUSED:
                return SizedBody(size, aligned_at, kept[-1])
        block = np.empty(size + ALIGNMENT, np.uint8)
        if self.kept_bytes + size > self._limit_bytes:  # sizes have changed, or very many wait
            self._kept = {size: deque()}
            self.kept_bytes = 0
        self._kept[size].append(block)
        self.kept_bytes += size
        return SizedBody(size, aligned_at, block)


class ChunkedHead(Head):
    """The head of a request whose body comes in chunks, and the body.

    Attributes:
        body: what came so far.
        is_whole: the last chunk has come.
        has_more: bytes of another request came with the last chunk; the parser does not say where they begin.
    """

    __slots__ = ("_limit", "body", "has_more", "is_whole")

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.body = bytearray()
        self.is_whole = False
        self.has_more = False
        self._limit = limit

    def on_message_begin(self) -> None:
        """Called by the parser."""
        self.has_more = self.is_whole

    def on_body(self, data: bytes) -> None:
        """Called by the parser."""
        if not self.has_more and len(self.body) <= self._limit:
            self.body += data

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self.is_whole = True

    def feed(self, data: bytes) -> None:
        """Take bytes from the connection.

        Raises:
            RequestError: they are no chunks.
            TooLargeError: the body is over the limit.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.has_more = True
        except httptools.HttpParserError as error:
            if not self.is_whole:
                raise RequestError(f"the body does not come in proper chunks: {error}") from None
            self.has_more = True
        check_size(len(self.body), self._limit)


def check_size(size: int, limit: int) -> None:
    """Check a body's size.

    Raises:
        TooLargeError: it is over the limit.
    """
    if size > limit:
        raise TooLargeError(f"the body has {size} bytes or more: at most {limit} are taken (--max-body)")


def unpack(data: bytes | bytearray | memoryview, encoding: bytes, limit: int, aligned_at: int = 0) -> memoryview:
    """Unpack a compressed body, never to more than ``limit`` bytes.

    Raises:
        MediaError: the encoding is none of gzip and deflate.
        RequestError: the data is broken or cut short.
        TooLargeError: it would become larger.
    """
    window = _WINDOWS.get(encoding)
    if window is None:
        shown = encoding[:40].decode("ascii", "backslashreplace")
        raise MediaError(f"Content-Encoding '{shown}' is not understood: expected gzip or deflate")
    unpacker = zlib.decompressobj(window)
    parts: list[bytes] = []
    size = 0
    rest = bytes(data)
    try:
        while rest and not unpacker.eof:
            part = unpacker.decompress(rest, min(_STEP, limit + 1 - size))
            parts.append(part)
            size += len(part)
            check_size(size, limit)
            rest = unpacker.unconsumed_tail
    except zlib.error as error:
        raise RequestError(f"the body is no proper {encoding.decode()}: {error}") from None
    if not unpacker.eof or unpacker.unused_data:
        raise RequestError(f"the {encoding.decode()} body is cut short, or has bytes after its end")
    body = SizedBody(size, aligned_at)
    for part in parts:
        body.put(part)
    return body.data
