"""What each product of a decoder loses in a form of few bits, by itself, on a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from sanderling.core.tensor import Array, Feeds
from sanderling.workshop.text.decoder import Decoder, Product, unpruned
from sanderling.workshop.text.storage import Form, fits, restore, store

_TOKENS = 128
_HELD_BYTES = 256 << 20
_TINY = 1e-20


def local_errors(decoder: Decoder, ids: Sequence[int], form: Form) -> dict[str, float]:
    """Relative squared error of each product's output in that form, by name, mean over the tokens.

    A mean over tokens of each token's own relative error, as one token with large values (the first of a text has them)
    would hide what happens to the others, and an input that is rounded with one scale for all tokens is spoiled by it.

    Args:
        decoder: the float graph.
        ids: of a text; as many are read as memory for all inputs of the products allows, at most 128.
        form: of all products; those that it does not fit are left out.
    """
    products = [product for product in decoder.products if not product.is_head and fits(form, product.depth)]
    depth = sum(_depths(products).values())
    count = max(min(len(ids), _TOKENS, _HELD_BYTES // (4 * max(depth, 1))), 2)
    inputs = _inputs_of_products(decoder, products, np.asarray(ids[:count], np.int64))
    return {
        product.name: _error(decoder, product, inputs[product.input], decoder.form_of(product, form))
        for product in products
    }


def _depths(products: Sequence[Product]) -> dict[str, int]:
    return {product.input: product.depth for product in products}


def _error(decoder: Decoder, product: Product, values: Array, form: Form) -> float:
    weight = np.asarray(decoder.weight(product.weight), np.float32)
    expected = values @ weight
    rounded = _rounded(values) if form == Form.DYNAMIC else values
    lost = rounded @ restore(store(weight, form), form) - expected
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


def _inputs_of_products(decoder: Decoder, products: Sequence[Product], ids: Array) -> dict[str, Array]:
    """What each product reads, shape (tokens, depth), by the tensor's name."""
    import onnxruntime

    names = sorted(_depths(products))
    model = unpruned(decoder.model)
    known = {value.name for value in model.graph.output}
    for name in names:
        if name not in known:
            model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    path = decoder.folder / "taps.onnx"
    path.write_bytes(model.SerializeToString())
    try:
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 4
        session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
        found = session.run(names, _feeds(session, ids, decoder.head_size))
    finally:
        path.unlink()
    return {name: array.reshape(len(ids), -1) for name, array in zip(names, found, strict=True)}


def _feeds(session: Any, ids: Array, width: int) -> Feeds:  # noqa: ANN401 - untyped
    """Inputs for a text from its beginning: caches are empty."""
    feeds: dict[str, Array] = {}
    for entry in session.get_inputs():
        if entry.name == "input_ids":
            feeds[entry.name] = ids[None]
        elif entry.name == "attention_mask":
            feeds[entry.name] = np.ones((1, len(ids)), np.int64)
        elif entry.name == "position_ids":
            feeds[entry.name] = np.arange(len(ids), dtype=np.int64)[None]
        else:  # (batch, heads, tokens so far, width)
            feeds[entry.name] = np.zeros((1, entry.shape[1], 0, width), np.float32)
    return feeds
