"""``/v1/chat/completions``, ``/v1/completions`` and ``/v1/models``, as OpenAI's clients ask for them.

Source: OpenAI API reference; streams are server-sent events that end with ``[DONE]``.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from sanderling.core.errors import SanderlingError
from sanderling.run.text.base import Message, Sampling
from sanderling.run.text.session import Prompt
from sanderling.run.text.stream import TextResult
from sanderling.serve.openai.answering import Answer, answering
from sanderling.serve.openai.answers import CachedTokens, Finish, Form, ModelCard, ModelList, Usage
from sanderling.serve.openai.embeddings import Embeddings
from sanderling.serve.openai.errors import ParameterError, UnknownModelError, error_object
from sanderling.serve.openai.finding import find_model
from sanderling.serve.openai.picture_questions import PictureQuestions, answers_questions
from sanderling.serve.openai.requests import ChatRequest, CompletionRequest, ResponseFormat, read_request

if TYPE_CHECKING:
    from sanderling.serve.data_plane import DataPlane, ServedModel
    from sanderling.serve.services import Services

_Result = TypeVar("_Result")
_Number = TypeVar("_Number", int, float)
_ROLES = {"developer": "system"}
_COMPLETION_TOKENS = 16  # where a completion does not say, as OpenAI has it
_SCHEMA_LENGTH = 2**16
_ANY_OBJECT = json.dumps({"type": "object"})


def openai_routes(services: Services) -> list[BaseRoute]:
    """The routes of OpenAI's interface."""
    texts, cards = _Texts(services.plane), _Cards(services.plane)
    embeddings = Embeddings(services.plane)
    return [
        Route("/v1/chat/completions", texts.chat, methods=["POST"]),
        Route("/v1/completions", texts.complete, methods=["POST"]),
        Route("/v1/embeddings", embeddings.embed, methods=["POST"]),
        Route("/v1/models", cards.all, methods=["GET"]),
        Route("/v1/models/{name}", cards.one, methods=["GET"]),
    ]


class _Texts:
    """Chats and completions."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._questions = PictureQuestions(plane)

    async def chat(self, request: Request) -> Response:
        """An answer to the messages of a conversation."""
        asked = read_request(await request.body(), ChatRequest)
        model = find_model(self._plane, asked.model)
        if model.session.manifest.multimodal is not None:
            return await self._questions.answer(asked, model)
        if any(each.pictures for each in asked.messages):
            raise ParameterError(f"model '{asked.model}' reads no pictures: give messages of text alone", "messages")
        messages = [Message(_ROLES.get(each.role, each.role), each.text) for each in asked.messages]
        schema = _schema(asked.response_format)
        return await self._answer(request, asked, messages, asked.most_tokens, schema=schema)

    async def complete(self, request: Request) -> Response:
        """What follows a prompt."""
        asked = read_request(await request.body(), CompletionRequest)
        return await self._answer(request, asked, asked.only_prompt, asked.max_tokens or _COMPLETION_TOKENS)

    async def _answer(
        self,
        request: Request,
        asked: ChatRequest | CompletionRequest,
        prompt: Prompt,
        most_tokens: int | None,
        *,
        schema: str = "",
    ) -> Response:
        sampling = Sampling(
            temperature=_given(asked.temperature, 1.0),
            top_p=_given(asked.top_p, 1.0),
            top_k=_given(asked.top_k, 0),
            repetition_penalty=_given(asked.repetition_penalty, 1.0),
            seed=None if asked.seed is None else asked.seed % 2**63,
            max_tokens=most_tokens,
        )
        form = Form(asked.model, is_chat=isinstance(asked, ChatRequest), includes_usage=asked.includes_usage)
        asking = answering(self._plane, asked.model, prompt, sampling, stop=asked.stops, schema=schema)
        if asked.stream:
            events = _events(asking, form)
            await _unless_gone(request, anext(events))  # what fails before the first token is told by a status
            return _EventStream(events)
        async with asking as answer:
            result = await _unless_gone(request, answer.result())
        return JSONResponse(form.whole(result.text, _finish(result), _usage(result)))


class _Cards:
    """The models that these routes know."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._created = int(time.time())

    async def all(self, request: Request) -> Response:  # noqa: ARG002
        """All of them; versions beside the default are ``NAME:VERSION``."""
        cards = {
            model.name if model.version == self._plane.default_version(model.name) else model.label: None
            for model in self._plane.models
            if _is_known(model)
        }
        found = ModelList(data=tuple(ModelCard(id=name, created=self._created) for name in cards))
        return JSONResponse(found.model_dump())

    async def one(self, request: Request) -> Response:
        """One of them."""
        name = request.path_params["name"]
        if not _is_known(find_model(self._plane, name)):
            raise UnknownModelError(f"model '{name}' takes tensors: ask /v2/models/{name}")
        return JSONResponse(ModelCard(id=name, created=self._created).model_dump())


class _EventStream(StreamingResponse):
    """Server-sent events; whoever makes them is told when the client has gone, wherever that is noticed."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Called by the server."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()


async def _events(asking: AbstractAsyncContextManager[Answer], form: Form) -> AsyncGenerator[bytes, None]:
    """The events of a stream; an empty one comes first, when there is text."""
    async with asking as answer, aclosing(answer.pieces()) as pieces:
        first = await anext(pieces, "")
        yield b""
        if (opening := form.first()) is not None:
            yield _event(opening)
        if first:
            yield _event(form.piece(first))
        try:
            async for piece in pieces:
                yield _event(form.piece(piece))
            result = await answer.result()
        except SanderlingError as error:  # too late for a status
            yield _event({"error": error_object(error)})
            raise
        yield _event(form.last(_finish(result)))
        if (counts := form.counts(_usage(result))) is not None:
            yield _event(counts)
    yield b"data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def _unless_gone(request: Request, work: Awaitable[_Result]) -> _Result:
    """The result of some work, which ends when the client hangs up."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise asyncio.CancelledError("the client has hung up")
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _schema(wanted: ResponseFormat | None) -> str:
    """The JSON schema that an answer must keep; empty for none.

    Raises:
        ParameterError: the schema is missing or too long.
    """
    if wanted is None or wanted.type == "text":
        return ""
    if wanted.type == "json_object":
        return _ANY_OBJECT
    if wanted.json_schema is None:
        raise ParameterError("parameter 'response_format.json_schema' is missing", "response_format")
    schema = json.dumps(wanted.json_schema.schema_)
    if len(schema) > _SCHEMA_LENGTH:
        raise ParameterError(
            f"parameter 'response_format.json_schema.schema' has {len(schema)} characters: at most {_SCHEMA_LENGTH} "
            "are taken",
            "response_format",
        )
    return schema


def _given(value: _Number | None, default: _Number) -> _Number:
    return default if value is None else value


def _finish(result: TextResult) -> Finish:
    return "length" if result.finish == "length" else "stop"


def _usage(result: TextResult) -> Usage:
    return Usage(
        prompt_tokens=result.prompt_tokens,
        completion_tokens=result.tokens,
        total_tokens=result.prompt_tokens + result.tokens,
        prompt_tokens_details=CachedTokens(cached_tokens=result.cached_tokens),
    )


def _is_known(model: ServedModel) -> bool:
    manifest = model.session.manifest
    return manifest.text is not None or manifest.embedding is not None or answers_questions(manifest)
