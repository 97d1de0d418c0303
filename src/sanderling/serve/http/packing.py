"""Compressed answers, for clients that ask for them.

Source: RFC 9110, "Accept-Encoding".
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import lru_cache

from sanderling.serve.tensors import Buffer

LEAST_BYTES = 1024  # less does not become less
AT_ONCE_BYTES = 64 * 1024  # more takes longer than an event loop may be held up
PACKED = b"Content-Encoding: %s\r\nVary: Accept-Encoding\r\n"
_LEVEL = 1  # tensors hardly become smaller with more effort
_WINDOWS = {b"gzip": 31, b"deflate": 15}
_KEPT = 256


@lru_cache(_KEPT)
def coding_of(accepted: bytes) -> bytes:
    """The coding that a client likes best of gzip and deflate; empty where it wants neither.

    Args:
        accepted: value of its header ``Accept-Encoding``.
    """
    weights: dict[bytes, float] = {}
    for entry in accepted.lower().split(b","):
        name, _, parameters = entry.partition(b";")
        weights[name.strip()] = _weight(parameters)
    others = weights.get(b"*", 0.0)
    best = max(_WINDOWS, key=lambda name: weights.get(name, others))  # gzip where both are alike
    weight = weights.get(best, others)
    return best if weight > 0 and weight >= weights.get(b"identity", 0.0) else b""


def packed(parts: Iterable[Buffer], coding: bytes) -> bytes:
    """Bytes in a coding of ``coding_of``."""
    packer = zlib.compressobj(_LEVEL, wbits=_WINDOWS[coding])
    return b"".join([*(packer.compress(part) for part in parts), packer.flush()])


def _weight(parameters: bytes) -> float:
    """``q`` of an entry: 1 without one, 0 where it is none."""
    name, _, value = parameters.partition(b"=")
    if name.strip() != b"q":
        return 1.0
    try:
        weight = float(value)
    except ValueError:
        return 0.0
    return weight if 0 <= weight <= 1 else 0.0
