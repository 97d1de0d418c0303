"""What OpenAI's routes take and give, for the OpenAPI document."""

from __future__ import annotations

from sanderling.serve.http.openapi import ERROR, JSON, TEXT, Description, Operation, Schema, model_ref, ref
from sanderling.serve.openai.answers import EmbeddingList, ModelCard, ModelList
from sanderling.serve.openai.requests import ChatRequest, CompletionRequest, EmbeddingRequest

_EVENTS = "text/event-stream"
_NULLABLE: Schema = {"type": ["string", "null"]}
_WHOLE: Schema = {"type": "integer", "minimum": 0}
_OBJECT: Schema = {
    "type": "object",
    "properties": {"message": TEXT, "type": TEXT, "param": _NULLABLE, "code": _NULLABLE},
    "required": ["message", "type", "param", "code"],
}
_SCHEMAS: dict[str, Schema] = {
    "OpenAiError": {
        "description": "OpenAI's object; of what is wrong with headers or body, that of the other routes",
        "anyOf": [{"type": "object", "properties": {"error": _OBJECT}, "required": ["error"]}, ERROR],
    },
    "Completion": {
        "type": "object",
        "properties": {
            "id": TEXT,
            "object": {"type": "string", "enum": ["chat.completion", "text_completion"]},
            "created": _WHOLE,
            "model": TEXT,
            "choices": {"type": "array", "items": {"type": "object"}, "minItems": 1, "maxItems": 1},
            "usage": {"type": "object"},
        },
        "required": ["id", "object", "created", "model", "choices", "usage"],
    },
}
_ERROR = ref("OpenAiError")
_TEXT: dict[str, Schema] = {JSON: ref("Completion"), _EVENTS: TEXT}


OPENAI = Description(
    "openai",
    (
        Operation(
            "POST",
            "/v1/chat/completions",
            "An answer to the messages of a conversation",
            _TEXT,
            body={JSON: model_ref(ChatRequest)},
            needs_body=True,
            errors=(404, 501),
            error=_ERROR,
        ),
        Operation(
            "POST",
            "/v1/completions",
            "What follows a prompt",
            _TEXT,
            body={JSON: model_ref(CompletionRequest)},
            needs_body=True,
            errors=(404, 501),
            error=_ERROR,
        ),
        Operation(
            "POST",
            "/v1/embeddings",
            "Embeddings of texts",
            {JSON: model_ref(EmbeddingList)},
            body={JSON: model_ref(EmbeddingRequest)},
            needs_body=True,
            errors=(404, 501, 504),
            error=_ERROR,
        ),
        Operation(
            "GET", "/v1/models", "Models that generate or embed text", {JSON: model_ref(ModelList)}, error=_ERROR
        ),
        Operation("GET", "/v1/models/{name}", "One of them", {JSON: model_ref(ModelCard)}, error=_ERROR),
    ),
    _SCHEMAS,
    (ChatRequest, CompletionRequest, EmbeddingRequest, EmbeddingList, ModelList, ModelCard),
)
