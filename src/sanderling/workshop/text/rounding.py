"""Four bits for all values of a weight together: what rounding one value loses, the values after it make up for.

Which changes of a weight cancel depends on what the product reads, so its inputs on a text are needed; of them only the
second moments are kept, which a long text makes no larger.

Source: Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers" (2023),
algorithm 1, with the grid of each block chosen when its turn comes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sanderling.core.progress import Event, Progress
from sanderling.core.tensor import Array
from sanderling.workshop.text.decoder import Decoder, Product
from sanderling.workshop.text.storage import FOUR_BIT_TOP, Form, Stored, block_of, fits, four_bit_grid, packed
from sanderling.workshop.text.taps import tapped, tokens_at_once

SEQUENCE_TOKENS = 512
_MOMENT_BYTES = 1 << 30  # for all inputs of products at once
_DAMPING = 0.01  # of the mean second moment, added to each: directions that the text hardly has stay as they are
_SLICE_VALUES = 1 << 24

Prepared = dict[tuple[str, Form], Stored]


def round_together(weight: Array, moments: Array) -> Stored:
    """Codes of four bits with which the product comes closest to the float one.

    Args:
        weight: float32, shape (depth, width).
        moments: float32, shape (depth, depth), the mean over tokens of x xᵀ for the inputs x of the product.
    """
    depth, width = weight.shape
    damped = moments.astype(np.float64)
    damped[np.diag_indices(depth)] += _DAMPING * max(float(np.trace(damped)) / depth, 1e-12)
    # Rows of the factor say how a change of one value is made up for by those after it.
    factor = np.linalg.cholesky(np.linalg.inv(damped)).T.astype(np.float32)
    step = max(_SLICE_VALUES // depth, 1)
    slices = [_round_slice(weight[:, start : start + step], factor) for start in range(0, width, step)]
    return Stored(
        np.concatenate([part.codes for part in slices]),
        np.concatenate([part.scales for part in slices]),
        np.concatenate([part.zero_points for part in slices if part.zero_points is not None]),
    )


def _round_slice(weight: Array, factor: Array) -> Stored:
    left = np.array(weight, dtype=np.float32)  # what is still to be rounded, made up for what was
    depth, width = left.shape
    block = block_of(Form.BLOCKS_4, depth)
    codes = np.empty((depth, width), np.float32)
    scales, zeros = (np.empty((depth // block, width), np.float32) for _ in range(2))
    for number in range(depth // block):
        start, end = number * block, (number + 1) * block
        scale, zero = four_bit_grid(np.ascontiguousarray(left[start:end].T))
        errors = np.empty((block, width), np.float32)
        for row in range(start, end):
            codes[row] = np.clip(np.rint(left[row] / scale) + zero, 0, FOUR_BIT_TOP)
            errors[row - start] = (left[row] - (codes[row] - zero) * scale) / factor[row, row]
            left[row + 1 : end] -= factor[row, row + 1 : end, None] * errors[row - start]
        left[end:] -= factor[start:end, end:].T @ errors
        scales[number], zeros[number] = scale, zero
    blocks = np.ascontiguousarray(codes.T).reshape(width, -1, block)
    return Stored(packed(blocks), np.ascontiguousarray(scales.T), packed(zeros.T))


def prepare_four_bits(decoder: Decoder, texts: Sequence[Sequence[int]], progress: Progress) -> Prepared:
    """Weights of all products in four bits, as far as memory for the moments of their inputs goes.

    Args:
        decoder: the float graph.
        texts: ids; each is read in sequences of at most 512 tokens.
        progress: told which products are left to be rounded value by value.
    """
    products = [product for product in decoder.products if fits(Form.BLOCKS_4, product.depth)]
    taken = _affordable(products)
    if len(taken) < len(products):
        reason = f"memory for the inputs of {len(products) - len(taken)} of {len(products)} products is beyond 1 GB"
        progress.event(Event(kind="rounded-value-by-value", subject=Form.BLOCKS_4.value, reason=reason))
    if not taken:
        return {}
    moments = _moments(decoder, taken, texts)
    prepared: Prepared = {}
    for product in taken:
        weight = np.asarray(decoder.weight(product.weight), np.float32)
        prepared[product.weight, Form.BLOCKS_4] = round_together(weight, moments[product.input])
        progress.advance()
    return prepared


def _affordable(products: Sequence[Product]) -> list[Product]:
    """Those whose inputs' moments fit into memory together, narrow inputs first."""
    left = _MOMENT_BYTES
    taken: set[str] = set()
    for name, depth in sorted({product.input: product.depth for product in products}.items(), key=lambda row: row[1]):
        left -= 4 * depth**2
        if left < 0:
            break
        taken.add(name)
    return [product for product in products if product.input in taken]


def _moments(decoder: Decoder, products: Sequence[Product], texts: Sequence[Sequence[int]]) -> dict[str, Array]:
    """Mean of x xᵀ over the tokens, by the input's name."""
    depths = {product.input: product.depth for product in products}
    sums = {name: np.zeros((depth, depth), np.float32) for name, depth in depths.items()}
    step = tokens_at_once(products, SEQUENCE_TOKENS)
    count = 0
    with tapped(decoder, products) as read:
        for ids in texts:
            for start in range(0, len(ids), step):
                part = ids[start : start + step]
                for name, values in read(part).items():
                    sums[name] += values.T @ values
                count += len(part)
    return {name: total / max(count, 1) for name, total in sums.items()}
