"""What each product of a decoder loses in a form of few bits, by itself, on a text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sanderling.core.tensor import Array
from sanderling.workshop.text.decoder import Decoder, Product
from sanderling.workshop.text.rounding import Prepared
from sanderling.workshop.text.storage import Form, fits, restore, store
from sanderling.workshop.text.taps import tapped, tokens_at_once

_TOKENS = 128
_TINY = 1e-20


def local_errors(
    decoder: Decoder, ids: Sequence[int], form: Form, prepared: Prepared | None = None
) -> dict[str, float]:
    """Relative squared error of each product's output in that form, by name, mean over the tokens.

    A mean over tokens of each token's own relative error, as one token with large values (the first of a text has them)
    would hide what happens to the others, and an input that is rounded with one scale for all tokens is spoiled by it.

    Args:
        decoder: the float graph.
        ids: of a text; as many are read as memory for all inputs of the products allows, at most 128.
        form: of all products; those that it does not fit are left out, and the head where it must stay in eight bits.
        prepared: weights that are stored in the form already.
    """
    products = [product for product in decoder.products if may_take(product, form)]
    with tapped(decoder, products) as read:
        inputs = read(ids[: tokens_at_once(products, _TOKENS)])
    return {product.name: _error(decoder, product, inputs[product.input], form, prepared or {}) for product in products}


def may_take(product: Product, form: Form) -> bool:
    """Whether a product is ever in that form: the head is never rounded with one scale for all tokens."""
    return fits(form, product.depth) and not (product.is_head and form == Form.DYNAMIC)


def _error(decoder: Decoder, product: Product, values: Array, form: Form, prepared: Prepared) -> float:
    weight = np.asarray(decoder.weight(product.weight), np.float32)
    expected = values @ weight
    rounded = _rounded(values) if form == Form.DYNAMIC else values
    stored = prepared.get((product.weight, form)) or store(weight, form)
    lost = rounded @ restore(stored, form) - expected
    energy = np.maximum(np.square(expected).sum(1), _TINY)
    return float(np.mean(np.square(lost).sum(1) / energy))


def _rounded(values: Array) -> Array:
    """In eight bits with one scale for all. Source: ONNX operator DynamicQuantizeLinear."""
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    scale = (high - low) / 255 or 1.0
    zero_point = round(-low / scale)
    codes = np.clip(np.rint(values / scale) + zero_point, 0, 255)
    result: Array = ((codes - zero_point) * scale).astype(np.float32)
    return result
