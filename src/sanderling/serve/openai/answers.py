"""What clients of OpenAI's interface get."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Finish = Literal["stop", "length"]


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class CachedTokens(_Answer):
    """Tokens of a prompt that were not computed again."""

    cached_tokens: int


class Usage(_Answer):
    """Counts of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class EmbeddingUsage(_Answer):
    """Counts of tokens that were embedded."""

    prompt_tokens: int
    total_tokens: int


class ModelCard(_Answer):
    """A model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "sanderling"


class ModelList(_Answer):
    """All models."""

    object: Literal["list"] = "list"
    data: tuple[ModelCard, ...]


class Embedding(_Answer):
    """The embedding of one input: numbers, or float32 in little-endian order as base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(_Answer):
    """The embeddings of all inputs, in their order."""

    object: Literal["list"] = "list"
    data: tuple[Embedding, ...]
    model: str
    usage: EmbeddingUsage


class Form:
    """The form of an answer, whole or in pieces: a chat's or a completion's.

    Args:
        model: that answers, as the client called it.
        is_chat: whether it is a chat's.
        includes_usage: whether a stream ends with the counts of tokens.
    """

    def __init__(self, model: str, *, is_chat: bool, includes_usage: bool = False) -> None:
        self._model = model
        self._is_chat = is_chat
        self._includes_usage = includes_usage
        self._id = f"{'chatcmpl' if is_chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._created = int(time.time())

    def whole(self, text: str, finish: Finish, usage: Usage) -> dict[str, Any]:
        """The answer in one."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
        if self._is_chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        kind = "chat.completion" if self._is_chat else "text_completion"
        return {**self._head(kind), "choices": [choice], "usage": usage.model_dump()}

    def first(self) -> dict[str, Any] | None:
        """What a stream begins with: a chat says whose message it is."""
        return self._piece({"role": "assistant", "content": ""}, None) if self._is_chat else None

    def piece(self, text: str) -> dict[str, Any]:
        """A piece of the text."""
        return self._piece({"content": text} if self._is_chat else text, None)

    def last(self, finish: Finish) -> dict[str, Any]:
        """The end of the text."""
        return self._piece({} if self._is_chat else "", finish)

    def counts(self, usage: Usage) -> dict[str, Any] | None:
        """What a stream ends with, where the client wants it."""
        return self._chunk([], usage) if self._includes_usage else None

    def _piece(self, content: dict[str, str] | str, finish: Finish | None) -> dict[str, Any]:
        named = {"delta" if self._is_chat else "text": content}
        return self._chunk([{"index": 0, **named, "logprobs": None, "finish_reason": finish}], None)

    def _chunk(self, choices: Sequence[dict[str, Any]], usage: Usage | None) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        chunk = {**self._head(kind), "choices": list(choices)}
        if self._includes_usage:
            chunk["usage"] = usage.model_dump() if usage is not None else None
        return chunk

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}
