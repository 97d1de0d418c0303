"""What the products of a decoder read, on a text: the float graph, with their inputs as further outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx

from sanderling.core.tensor import Array, Feeds
from sanderling.workshop.text.decoder import Decoder, Product, unpruned

_HELD_BYTES = 256 << 20

Taps = Callable[[Sequence[int]], dict[str, Array]]


def tokens_at_once(products: Sequence[Product], most: int) -> int:
    """How many tokens of a text memory for all inputs of the products allows, at least 2 and at most ``most``."""
    depth = sum({product.input: product.depth for product in products}.values())
    return max(min(most, _HELD_BYTES // (4 * max(depth, 1))), 2)


@contextmanager
def tapped(decoder: Decoder, products: Sequence[Product]) -> Iterator[Taps]:
    """A function from ids to what each product reads, float32, shape (tokens, depth), by ``Product.input``."""
    import onnxruntime

    model = unpruned(decoder.model)
    wanted = {product.name: product.input for product in products}
    # The head reads another tensor where no token's scores are left out.
    tensors = {wanted[node.name]: node.input[0] for node in model.graph.node if node.name in wanted}
    names = list(tensors.values())
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
    finally:
        path.unlink()

    def read(ids: Sequence[int]) -> dict[str, Array]:
        found = session.run(names, _feeds(session, np.asarray(ids, np.int64), decoder.head_size))
        return {name: array.reshape(len(ids), -1) for name, array in zip(tensors, found, strict=True)}

    yield read


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
