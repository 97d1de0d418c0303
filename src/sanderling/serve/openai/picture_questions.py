"""Chats with a model that answers questions about pictures: the last question, about the last picture.

Such a model knows a list of answers and follows no instructions, so that what would need more than that is refused.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response, StreamingResponse

from sanderling.core.tensor import Array
from sanderling.model.manifest import Manifest
from sanderling.model.multimodal import QUESTIONS
from sanderling.run.session import Session
from sanderling.serve.openai.answers import CachedTokens, Form, Usage
from sanderling.serve.openai.errors import ParameterError
from sanderling.serve.openai.requests import ChatRequest
from sanderling.tasks.multimodal import Reading
from sanderling.tasks.vision import best_labels

if TYPE_CHECKING:
    from sanderling.serve.data_plane import DataPlane, ServedModel

_INSTRUCTIONS = ("system", "developer")


def answers_questions(manifest: Manifest) -> bool:
    """Whether a package's model answers questions about pictures."""
    return manifest.multimodal is not None and manifest.multimodal.task == QUESTIONS


class PictureQuestions:
    """Answers chats with the models of a data plane; each model's tokenizer is read once."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._readings: weakref.WeakKeyDictionary[Session, Reading] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    async def answer(self, asked: ChatRequest, model: ServedModel) -> Response:
        """The likeliest answer, whole or as a stream of one piece.

        Raises:
            ParameterError: the messages hold instructions, no picture or no question, or a form is asked for.
            SanderlingError: the picture cannot be read, or the question cannot be answered.
        """
        manifest = model.session.manifest
        if not answers_questions(manifest):
            raise ParameterError(f"model '{asked.model}' answers no questions: it matches pictures with texts", "model")
        question, picture = _last_question(asked)
        feeds, tokens = await asyncio.to_thread(self._feeds, model.tensors, question, picture)
        outputs = await asyncio.wrap_future(self._plane.submit(model, feeds))
        text = best_labels(manifest, outputs, top=1)[0].label
        form = Form(asked.model, is_chat=True, includes_usage=asked.includes_usage)
        usage = Usage(
            prompt_tokens=tokens,
            completion_tokens=1,
            total_tokens=tokens + 1,
            prompt_tokens_details=CachedTokens(cached_tokens=0),
        )
        if asked.stream:
            return StreamingResponse(_events(form, text, usage), media_type="text/event-stream")
        return JSONResponse(form.whole(text, "stop", usage))

    def _feeds(self, session: Session, question: str, picture: bytes) -> tuple[dict[str, Array], int]:
        """Inputs of one row under the package's names, and the question's tokens."""
        with self._lock:
            reading = self._readings.get(session)
            if reading is None:
                reading = self._readings[session] = Reading(session.package)
        spec = session.manifest.multimodal
        assert spec is not None
        contents = {spec.leaf("picture").name: reading.picture(picture), spec.leaf("text").name: reading.text(question)}
        feeds = {
            f"{branch}.{name}": array for branch, content in contents.items() for name, array in content.feeds().items()
        }
        return feeds, reading.count(question)


def _last_question(asked: ChatRequest) -> tuple[str, bytes]:
    if any(message.role in _INSTRUCTIONS for message in asked.messages):
        raise ParameterError(f"model '{asked.model}' follows no instructions: give user messages alone", "messages")
    if asked.response_format is not None and asked.response_format.type != "text":
        raise ParameterError(f"model '{asked.model}' answers in plain words alone", "response_format")
    last = asked.messages[-1]
    if last.role != "user" or not last.text.strip():
        raise ParameterError("the last message has no question: expected text of a user", "messages")
    urls = [url for message in asked.messages if message.role == "user" for url in message.pictures]
    if not urls:
        raise ParameterError("the messages have no picture: expected a part of type image_url", "messages")
    return last.text, _decoded(urls[-1])


def _decoded(url: str) -> bytes:
    head, _, data = url.partition(",")
    if not head.startswith("data:image/") or not head.endswith(";base64"):
        raise ParameterError(
            "a picture's url is no data:image/…;base64,…: nothing is fetched from elsewhere", "messages"
        )
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ParameterError(f"a picture's url is no valid base64: {error}", "messages") from None


def _events(form: Form, text: str, usage: Usage) -> Iterator[bytes]:
    for content in (form.first(), form.piece(text), form.last("stop"), form.counts(usage)):
        if content is not None:
            yield _event(content)
    yield b"data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
