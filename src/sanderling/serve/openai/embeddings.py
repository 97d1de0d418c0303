"""``/v1/embeddings``: each input is a request of its own, so that the runtime joins them to batches."""

from __future__ import annotations

import asyncio
import base64
import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sanderling.core.tensor import Array, TensorSpec
from sanderling.run.session import Session
from sanderling.serve.openai.answers import Embedding, EmbeddingList, EmbeddingUsage
from sanderling.serve.openai.errors import ParameterError
from sanderling.serve.openai.finding import find_model
from sanderling.serve.openai.requests import EmbeddingRequest, read_request
from sanderling.tasks.embeddings import TextEncoder, embedding_spec

if TYPE_CHECKING:
    from sanderling.serve.data_plane import DataPlane, ServedModel


class Embeddings:
    """Embeds texts with the models of a data plane; each model's tokenizer is read once."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._encoders: weakref.WeakKeyDictionary[Session, TextEncoder] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    async def embed(self, request: Request) -> Response:
        """The embeddings of all inputs, in their order."""
        asked = read_request(await request.body(), EmbeddingRequest)
        model = find_model(self._plane, asked.model)
        embedding_spec(model.session.manifest)
        encoder = await asyncio.to_thread(self._encoder, model.tensors)
        _check_dimensions(asked.dimensions, model.tensors.outputs[0])
        rows = await asyncio.to_thread(lambda: [encoder.ids(each) for each in asked.inputs])
        vectors = await asyncio.gather(*(self._vector(model, encoder, ids) for ids in rows))
        tokens = sum(map(len, rows))
        found = EmbeddingList(
            data=tuple(
                Embedding(index=index, embedding=_written(vector, asked.encoding_format or "float"))
                for index, vector in enumerate(vectors)
            ),
            model=asked.model,
            usage=EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens),
        )
        return JSONResponse(found.model_dump())

    def _encoder(self, session: Session) -> TextEncoder:
        with self._lock:
            encoder = self._encoders.get(session)
            if encoder is None:
                encoder = self._encoders[session] = TextEncoder(session)
            return encoder

    async def _vector(self, model: ServedModel, encoder: TextEncoder, ids: list[int]) -> Array:
        outputs = await asyncio.wrap_future(self._plane.submit(model, encoder.feeds(ids)))
        return encoder.embedding(outputs, len(ids))


def _check_dimensions(wanted: int | None, output: TensorSpec) -> None:
    width = output.shape[-1]
    if wanted is not None and wanted != width:
        raise ParameterError(f"parameter 'dimensions' is {wanted}: this model's embeddings have {width}", "dimensions")


def _written(vector: Array, form: str) -> list[float] | str:
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(value) for value in np.asarray(vector)]
