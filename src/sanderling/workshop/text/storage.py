"""How the weights of a matrix product are stored: in floats, in eight bits a channel, or in blocks of few bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from sanderling.core.tensor import Array

LEAST_BLOCK = 32
FOUR_BIT_TOP = 15  # codes are 0 to 15
_SHRUNK = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8)  # ranges that are tried for four bits; the least square error wins

_SLICE_VALUES = 1 << 24  # of a weight at a time, which bounds the memory for it


class Form(StrEnum):
    """How one product is computed.

    ``DYNAMIC`` rounds its input to eight bits with one scale for all tokens of a call: it reads a prompt fastest, and
    large single values in the input spoil it. ``BLOCKS_8`` and ``BLOCKS_4`` round it in blocks of some values, as many
    as a block of the weight has: they write fastest.
    """

    FLOAT = "float"
    HALF = "half"
    DYNAMIC = "dynamic"
    BLOCKS_8 = "blocks-8"
    BLOCKS_4 = "blocks-4"


BLOCK_FORMS = (Form.BLOCKS_8, Form.BLOCKS_4)


@dataclass(frozen=True)
class Stored:
    """Codes, scales and zero points of one weight, as the operator of its form reads them."""

    codes: Array
    scales: Array
    zero_points: Array | None = None


_WIDEST_BLOCK = 128
_WIDE_DEPTH = 1024  # from which on four bits are in the widest blocks, too: narrow products feel them more


def fits(form: Form, depth: int) -> bool:
    """Whether a weight of that many rows can be stored so: blocks must be whole."""
    return form not in BLOCK_FORMS or depth % LEAST_BLOCK == 0


def block_of(form: Form, depth: int) -> int:
    """Values a block: as many as divide the depth, at most 128, and 64 where four bits have a narrow product.

    Each block brings a scale of four bytes, and a token is written at the speed at which memory brings the weights.
    """
    return math.gcd(depth, 64 if form == Form.BLOCKS_4 and depth < _WIDE_DEPTH else _WIDEST_BLOCK)


def store(weight: Array, form: Form) -> Stored:
    """Store a weight of shape (depth, width), each value rounded by itself; see ``rounding`` for all together.

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
    if form == Form.BLOCKS_4:
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
    scales, zeros = four_bit_grid(columns)
    codes = np.clip(np.rint(columns / scales[..., None]) + zeros[..., None], 0, FOUR_BIT_TOP)
    return Stored(packed(codes), scales, packed(zeros))


def four_bit_grid(columns: Array) -> tuple[Array, Array]:
    """Scales and whole zero points of blocks, of several ranges those with the least square error.

    Args:
        columns: float32, shape (..., block).

    Returns:
        Both float32, shape (...).
    """
    low, high = np.minimum(columns.min(-1), 0), np.maximum(columns.max(-1), 0)
    best_scales, best_zeros = np.ones_like(low), np.zeros_like(low)
    least = np.full(low.shape, np.inf, np.float32)
    for share in _SHRUNK:
        scales = np.where(high > low, (high - low) * share / FOUR_BIT_TOP, 1).astype(np.float32)
        zeros = np.clip(np.rint(-low * share / scales), 0, FOUR_BIT_TOP).astype(np.float32)
        codes = np.clip(np.rint(columns / scales[..., None]) + zeros[..., None], 0, FOUR_BIT_TOP)
        error = np.square((codes - zeros[..., None]) * scales[..., None] - columns).sum(-1)
        better = error < least
        best_scales, best_zeros = np.where(better, scales, best_scales), np.where(better, zeros, best_zeros)
        least = np.minimum(least, error)
    return best_scales, best_zeros


def packed(codes: Array) -> Array:
    """Two codes a byte along the last axis, the first in the lower half."""
    whole = codes.astype(np.uint8)
    if whole.shape[-1] % 2:
        whole = np.concatenate([whole, np.zeros((*whole.shape[:-1], 1), np.uint8)], axis=-1)
    halves: Array = whole[..., ::2] | whole[..., 1::2] << 4
    return halves


def _unpacked(halves: Array) -> Array:
    return np.stack([halves & 15, halves >> 4], axis=-1).reshape(*halves.shape[:-1], -1)
