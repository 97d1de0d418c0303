"""Messages between a process and its worker: a JSON header and raw arrays over a pipe. No pickles.

A message is a header length (8 bytes, little endian), the header as JSON, and the arrays' bytes one after another in
the order of ``header["arrays"]``.
"""

from __future__ import annotations

import json
import math
import os
import select
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from sanderling.core.tensor import Array, Feeds

HEADER_LIMIT_BYTES = 64 << 20
_ARRAY_LIMIT_BYTES = 16 << 30


class Closed(Exception):  # noqa: N818 - a state, not an error of ours
    """The other end of the pipe is gone."""


class TimedOut(Exception):  # noqa: N818 - a state, not an error of ours
    """The other end did not answer in time."""


def send(descriptor: int, header: Mapping[str, Any], arrays: Feeds, *, timeout_s: float | None = None) -> None:
    """Write one message.

    Raises:
        Closed: nobody reads any more.
        TimedOut: the other end did not take it within ``timeout_s``; half of it may be in the pipe.
    """
    end = _end(timeout_s)
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    described = [{"name": name, "dtype": array.dtype.str, "shape": array.shape} for name, array in plain.items()]
    text = json.dumps({**header, "arrays": described}).encode()
    try:
        _write(descriptor, memoryview(len(text).to_bytes(8, "little") + text), end)
        for array in plain.values():
            _write(descriptor, array.reshape(-1).view(np.uint8).data, end)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise Closed from error


def receive(descriptor: int, *, timeout_s: float | None = None) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read one message.

    Raises:
        Closed: the other end is gone, or sent what is no message.
        TimedOut: it took longer than ``timeout_s``.
    """
    end = _end(timeout_s)
    size = int.from_bytes(_read(descriptor, 8, end), "little")
    if size > HEADER_LIMIT_BYTES:
        raise Closed
    try:
        header = json.loads(_read(descriptor, size, end))
        described = header.pop("arrays")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Closed from error
    arrays = {}
    for item in described:
        dtype, shape = np.dtype(item["dtype"]), tuple(map(int, item["shape"]))
        count = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or not 0 <= count <= _ARRAY_LIMIT_BYTES:
            raise Closed
        arrays[item["name"]] = np.frombuffer(_read(descriptor, count, end), dtype).reshape(shape)
    return header, arrays


def _end(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else time.monotonic() + timeout_s


def _write(descriptor: int, view: memoryview, end: float | None) -> None:
    """Write all of ``view``; with an end, the descriptor must not block, so that a stopped reader is noticed."""
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError as error:
            left = max(0.0, (end or 0.0) - time.monotonic())
            if not select.select([], [descriptor], [], left)[1]:
                raise TimedOut from error


def _read(descriptor: int, count: int, end: float | None) -> bytearray:
    """Read exactly ``count`` bytes into a buffer that arrays may keep and write to."""
    buffer = bytearray(count)
    view = memoryview(buffer)
    while view:
        if end is not None and not select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0]:
            raise TimedOut
        got = os.readv(descriptor, [view])
        if not got:
            raise Closed
        view = view[got:]
    return buffer
