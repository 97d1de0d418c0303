"""How the weights of a matrix product are stored: in floats, in eight bits a channel, or in blocks of few bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from sanderling.core.tensor import Array

LEAST_BLOCK = 32
_SHRUNK = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8)  # ranges that are tried for four bits; the least square error wins

_SLICE_VALUES = 1 << 24  # of a weight at a time, which bounds the memory for it


class Form(StrEnum):
    """How one product is computed.

    ``DYNAMIC`` rounds its input to eight bits with one scale for all tokens of a call: it reads a prompt fastest, and
    large single values in the input spoil it. ``BLOCKS_8`` and ``BLOCKS_4`` round it in blocks of some values, as many
    as a block of the weight has: they write fastest. ``BLOCKS_4_WIDE`` has fewer scales, for models of many parameters.
    """

    FLOAT = "float"
    HALF = "half"
    DYNAMIC = "dynamic"
    BLOCKS_8 = "blocks-8"
    BLOCKS_4 = "blocks-4"
    BLOCKS_4_WIDE = "blocks-4-wide"


BITS = {Form.BLOCKS_8: 8, Form.BLOCKS_4: 4, Form.BLOCKS_4_WIDE: 4}
_WIDEST_BLOCK = {Form.BLOCKS_8: 128, Form.BLOCKS_4: 32, Form.BLOCKS_4_WIDE: 128}


@dataclass(frozen=True)
class Stored:
    """Codes, scales and zero points of one weight, as the operator of its form reads them."""

    codes: Array
    scales: Array
    zero_points: Array | None = None


def fits(form: Form, depth: int) -> bool:
    """Whether a weight of that many rows can be stored so: blocks must be whole."""
    return form not in BITS or depth % LEAST_BLOCK == 0


def block_of(form: Form, depth: int) -> int:
    """Values a block: as many as divide the depth, up to what the form has at most.

    Each block brings a scale of four bytes, and a token is written as fast as memory brings the weights: eight bits are
    as close to float in blocks of 128 as of 32, four bits of a small model are not.
    """
    return math.gcd(depth, _WIDEST_BLOCK[form])


def store(weight: Array, form: Form) -> Stored:
    """Store a weight of shape (depth, width).

    Source: ONNX Runtime operators DynamicQuantizeMatMul (codes int8 (depth, width), scales (width,)) and MatMulNBits
    (codes uint8 (width, blocks, bytes), scales (width, blocks)).
    """
    step = max(_SLICE_VALUES // max(len(weight), 1), 1)
    slices = [_store(weight[:, start : start + step], form) for start in range(0, weight.shape[1], step)]
    axis = 1 if form == Form.DYNAMIC else 0
    zero_points = [part.zero_points for part in slices if part.zero_points is not None]
    return Stored(
        np.concatenate([part.codes for part in slices], axis),
        np.concatenate([part.scales for part in slices]),
        np.concatenate(zero_points) if zero_points else None,
    )


def _store(weight: Array, form: Form) -> Stored:
    if form == Form.DYNAMIC:
        return _channels(np.asarray(weight, dtype=np.float32))
    block = block_of(form, len(weight))
    columns = np.ascontiguousarray(weight.T, dtype=np.float32).reshape(weight.shape[1], -1, block)
    return _eight_bits(columns) if form == Form.BLOCKS_8 else _four_bits(columns)


def restore(stored: Stored, form: Form) -> Array:
    """The weight that the operator computes with, float32, shape (depth, width)."""
    if form == Form.DYNAMIC:
        return stored.codes.astype(np.float32) * stored.scales
    codes = stored.codes
    middle: Array | float = 128.0
    if BITS[form] == 4:
        codes, middle = _unpacked(codes), 8.0
        if stored.zero_points is not None:
            middle = _unpacked(stored.zero_points)[:, : codes.shape[1], None].astype(np.float32)
    values = (codes.astype(np.float32) - middle) * stored.scales[..., None]
    return np.ascontiguousarray(values.reshape(len(values), -1).T)


def _channels(weight: Array) -> Stored:
    largest = np.abs(weight).max(0)
    scales = (np.where(largest > 0, largest, 1) / 127).astype(np.float32)
    return Stored(np.rint(weight / scales).astype(np.int8), scales)


def _eight_bits(columns: Array) -> Stored:
    """Symmetric, around 128."""
    largest = np.abs(columns).max(2)
    scales = (np.where(largest > 0, largest, 1) / 127).astype(np.float32)
    codes = np.rint(columns / scales[..., None]) + 128
    return Stored(codes.astype(np.uint8), scales)


def _four_bits(columns: Array) -> Stored:
    """With a zero point a block, and of several ranges the one with the least square error."""
    low, high = np.minimum(columns.min(2), 0), np.maximum(columns.max(2), 0)
    best: tuple[Array, Array, Array] | None = None
    least = np.full(low.shape, np.inf, np.float32)
    for share in _SHRUNK:
        scales = np.where(high > low, (high - low) * share / 15, 1).astype(np.float32)
        zeros = np.clip(np.rint(-low * share / scales), 0, 15).astype(np.float32)
        codes = np.clip(np.rint(columns / scales[..., None]) + zeros[..., None], 0, 15)
        error = np.square((codes - zeros[..., None]) * scales[..., None] - columns).sum(2)
        better = error < least
        if best is None:
            best = (codes, scales, zeros)
        else:
            best = (
                np.where(better[..., None], codes, best[0]),
                np.where(better, scales, best[1]),
                np.where(better, zeros, best[2]),
            )
        least = np.minimum(least, error)
    assert best is not None
    codes, scales, zeros = best
    return Stored(_packed(codes), scales.astype(np.float32), _packed(zeros))


def _packed(codes: Array) -> Array:
    """Two codes a byte along the last axis, the first in the lower half."""
    whole = codes.astype(np.uint8)
    if whole.shape[-1] % 2:
        whole = np.concatenate([whole, np.zeros((*whole.shape[:-1], 1), np.uint8)], axis=-1)
    packed: Array = whole[..., ::2] | whole[..., 1::2] << 4
    return packed


def _unpacked(packed: Array) -> Array:
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)
