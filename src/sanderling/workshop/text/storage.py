"""How the weights of a matrix product are stored: in floats, in eight bits a channel, or in blocks of few bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from sanderling.core.tensor import Array

LEAST_BLOCK = 32
_SHRUNK = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8)  # ranges that are tried for four bits; the least square error wins
_FINEST_PART = 32  # of a grid's step, that is tried as the step of the codes
_SAME_LEVEL = 1e-4  # of a block's range: values that are no further apart are one level

_MOST_LEVELS, _OFF_LEVEL = 16, 0.02  # of a block with levels; off by this share of their distance at most
_MOSTLY, _LOOKED_AT = 0.99, 256  # share of blocks that have levels where a weight has, and columns to tell that by

_SLICE_VALUES = 1 << 24  # of a weight at a time, which bounds the memory for it


class Form(StrEnum):
    """How one product is computed.

    ``DYNAMIC`` rounds its input to eight bits with one scale for all tokens of a call: it reads a prompt fastest, and
    large single values in the input spoil it. ``BLOCKS_8`` and ``BLOCKS_4`` round it in blocks of some values, as many
    as a block of the weight has: they write fastest. ``BLOCKS_4_WIDE`` has fewer scales, for models of many parameters.
    ``RESIDUAL_8`` rounds it in blocks, and what that lost as a second row of the same product: 16 bits of the input for
    one reading of the weights.
    """

    FLOAT = "float"
    HALF = "half"
    DYNAMIC = "dynamic"
    BLOCKS_8 = "blocks-8"
    RESIDUAL_8 = "residual-8"
    BLOCKS_4 = "blocks-4"
    BLOCKS_4_WIDE = "blocks-4-wide"
    OFFSETS_4 = "offsets-4"


BITS = {Form.BLOCKS_8: 8, Form.RESIDUAL_8: 8, Form.BLOCKS_4: 4, Form.BLOCKS_4_WIDE: 4, Form.OFFSETS_4: 4}
_WIDEST_BLOCK = {
    Form.BLOCKS_8: 128,
    Form.RESIDUAL_8: 32,
    Form.BLOCKS_4: 32,
    Form.BLOCKS_4_WIDE: 128,
    Form.OFFSETS_4: 32,
}


@dataclass(frozen=True)
class Stored:
    """Codes, scales and zero points of one weight, as the operator of its form reads them."""

    codes: Array
    scales: Array
    zero_points: Array | None = None


def fits(form: Form, depth: int) -> bool:
    """Whether a weight of that many rows can be stored so: blocks must be whole."""
    return form not in BITS or depth % LEAST_BLOCK == 0


def has_levels(weight: Array) -> bool:
    """Whether values lie on at most 16 even levels around zero in each block of 32, as in a GGUF file of four bits.

    Args:
        weight: shape (depth, width); some of its columns are looked at.
    """
    if len(weight) % LEAST_BLOCK:
        return False
    some = np.asarray(weight[:, :: max(weight.shape[1] // _LOOKED_AT, 1)], np.float32)
    ordered = np.sort(some.T.reshape(-1, LEAST_BLOCK), axis=1)[None]
    step = _least_gap(ordered)[..., None]
    places = (ordered - ordered[..., :1]) / step
    on_levels = (places[..., -1] < _MOST_LEVELS - 0.5) & (np.abs(places - np.rint(places)) < _OFF_LEVEL).all(2)
    on_levels &= (ordered[..., 0] < step[..., 0]) & (ordered[..., -1] > -step[..., 0])
    return bool(on_levels.mean() > _MOSTLY)


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
    return _IN_BLOCKS[form](columns)


def restore(stored: Stored, form: Form) -> Array:
    """The weight that the operator computes with, float32, shape (depth, width)."""
    if form == Form.DYNAMIC:
        return stored.codes.astype(np.float32) * stored.scales
    codes, zero_points = stored.codes, stored.zero_points
    if BITS[form] == 4:
        codes = _unpacked(codes)
        zero_points = None if zero_points is None else _unpacked(zero_points)[:, : codes.shape[1]]
    middle: Array | float = 1 << BITS[form] - 1
    if zero_points is not None:
        middle = zero_points[..., None].astype(np.float32)
    values = (codes.astype(np.float32) - middle) * stored.scales[..., None]
    if form == Form.OFFSETS_4:
        count = values.shape[1] - math.ceil(values.shape[1] / (LEAST_BLOCK + 1))
        values = values[:, :count] + values[:, count:].reshape(len(values), -1)[:, :count, None] / LEAST_BLOCK
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
    codes, scales, zeros = _four_bit_codes(columns)
    return Stored(_packed(codes), scales, _packed(zeros))


def _four_bit_codes(columns: Array) -> tuple[Array, Array, Array]:
    """With a zero point a block, and of several ranges the one with the least square error."""
    low, high = np.minimum(columns.min(2), 0), np.maximum(columns.max(2), 0)
    tried = []
    for share in _SHRUNK:
        step = np.where(high > low, (high - low) * share / 15, 1).astype(np.float32)
        tried.append((step, -low * share / step))
    return _least_error(columns, tried, 15)


def _four_bits_with_offsets(columns: Array) -> Stored:
    """Levels between each block's least and greatest value; of what zero points leave over, blocks of their own.

    A block of a GGUF file has its levels there (Source: Q4_1 of llama.cpp, value = scale · code + offset).
    """
    ordered = np.sort(columns, axis=2)
    low, width = ordered[..., 0], ordered[..., -1] - ordered[..., 0]
    grid = width / np.clip(np.rint(width / _least_gap(ordered)), 1, 15)
    step = np.where(width > 0, grid, np.where(low != 0, np.abs(low), 1)).astype(np.float32)
    low = np.where(width > 0, low, np.minimum(low, 0))  # one level is held as a step from zero
    codes = np.clip(np.rint((columns - low[..., None]) / step[..., None]), 0, 15)
    zeros = np.clip(np.rint(-low / step), 0, 15)
    over = (low + zeros * step) * LEAST_BLOCK  # of the mean of a block's inputs
    rows = np.pad(over, ((0, 0), (0, -over.shape[1] % LEAST_BLOCK))).reshape(len(over), -1, LEAST_BLOCK)
    more_codes, more_scales, more_zeros = _four_bit_codes(rows)
    return Stored(
        _packed(np.concatenate([codes, more_codes], axis=1)),
        np.concatenate([step, more_scales], axis=1),
        _packed(np.concatenate([zeros, more_zeros], axis=1)),
    )


def _eight_bits_on_a_grid(columns: Array) -> Stored:
    """With a zero point a block. Weights of a file of few bits lie on a grid in each block: the codes keep to it."""
    low, high = np.minimum(columns.min(2), 0), np.maximum(columns.max(2), 0)
    largest = np.maximum(high, -low)
    symmetric = np.where(largest > 0, largest, 1) / 127
    whole = np.where(high > low, (high - low) / 255, 1)
    grid = _grid_step(columns, low, high)
    middle = np.full(low.shape, 128, np.float32)
    codes, scales, zeros = _least_error(columns, [(symmetric, middle), (whole, -low / whole), (grid, -low / grid)], 255)
    return Stored(codes.astype(np.uint8), scales, zeros.astype(np.uint8))


def _grid_step(columns: Array, low: Array, high: Array) -> Array:
    """The step of codes that come closest to each block's own grid, shape (width, blocks); 255 steps span the block.

    The grid's step is the least distance of two values, where they are on a grid at all. Codes hold zero, which its
    levels need not: its step is divided into as many parts as bring zero closest.
    """
    ordered = np.sort(columns, axis=2)
    span = np.where(high > low, high - low, 1)
    width = ordered[..., -1] - ordered[..., 0]
    grid = np.where(width > 0, width / np.maximum(np.rint(width / _least_gap(ordered)), 1), span)
    best, nearest = span / 255, np.full(span.shape, np.inf)
    for part in range(1, _FINEST_PART + 1):
        step = grid / part
        distance = np.abs(ordered[..., 0] - np.rint(ordered[..., 0] / step) * step)
        better = (distance < nearest) & (span <= 255.01 * step)
        best, nearest = np.where(better, step, best), np.where(better, distance, nearest)
    return best


def _least_gap(ordered: Array) -> Array:
    """The least distance of two levels of each block, infinite where it has but one; values are in order."""
    gaps = np.diff(ordered, axis=2)
    span = np.maximum(ordered[..., -1:], 0) - np.minimum(ordered[..., :1], 0)
    least: Array = np.where(gaps > _SAME_LEVEL * span, gaps, np.inf).min(2)
    return least


def _least_error(columns: Array, tried: Sequence[tuple[Array, Array]], most: int) -> tuple[Array, Array, Array]:
    """Codes from 0 to ``most``, scales and zero points; block by block those of the least square error.

    Args:
        columns: shape (width, blocks, values a block).
        tried: scales and zero points, not yet whole, of each block.
        most: the highest code.
    """
    codes, scales, zeros = np.zeros_like(columns), np.ones_like(columns[..., 0]), np.zeros_like(columns[..., 0])
    least = np.full(scales.shape, np.inf, np.float32)
    for wide, middle in tried:
        scale = wide.astype(np.float32)
        zero = np.clip(np.rint(middle), 0, most).astype(np.float32)
        code = np.clip(np.rint(columns / scale[..., None]) + zero[..., None], 0, most)
        error = np.square((code - zero[..., None]) * scale[..., None] - columns).sum(2)
        better = error < least
        codes = np.where(better[..., None], code, codes)
        scales, zeros = np.where(better, scale, scales), np.where(better, zero, zeros)
        least = np.minimum(least, error)
    return codes, scales, zeros


_IN_BLOCKS = {
    Form.BLOCKS_8: _eight_bits,
    Form.RESIDUAL_8: _eight_bits_on_a_grid,
    Form.BLOCKS_4: _four_bits,
    Form.BLOCKS_4_WIDE: _four_bits,
    Form.OFFSETS_4: _four_bits_with_offsets,
}


def _packed(codes: Array) -> Array:
    """Two codes a byte along the last axis, the first in the lower half."""
    whole = codes.astype(np.uint8)
    if whole.shape[-1] % 2:
        whole = np.concatenate([whole, np.zeros((*whole.shape[:-1], 1), np.uint8)], axis=-1)
    packed: Array = whole[..., ::2] | whole[..., 1::2] << 4
    return packed


def _unpacked(packed: Array) -> Array:
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)
