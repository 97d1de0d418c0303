"""Errors as OpenAI's clients understand them; the statuses are those of every route."""

from __future__ import annotations

from typing import Any

from sanderling.core.errors import ContextError, DeadlineError
from sanderling.serve.errors import NotFoundError, RequestError, UnauthorizedError, code_of, told

_PATHS = ("/v1/chat/", "/v1/completions", "/v1/embeddings", "/v1/models")


class ParameterError(RequestError):
    """A parameter is missing, or none that can be used.

    Attributes:
        parameter: its name; empty where the request as a whole is meant.
    """

    def __init__(self, message: str, parameter: str) -> None:
        super().__init__(message)
        self.parameter = parameter


class UnknownModelError(NotFoundError):
    """A request names a model that is not there."""


def is_ours(path: str) -> bool:
    """Whether a route is one of OpenAI's."""
    return path.startswith(_PATHS)


def error_object(error: BaseException) -> dict[str, Any]:
    """An error as OpenAI's object, without the object that it is the ``error`` of."""
    parameter, code = None, None
    if isinstance(error, ParameterError):
        parameter = error.parameter or None
    elif isinstance(error, UnknownModelError):
        parameter, code = "model", "model_not_found"
    elif isinstance(error, ContextError):
        code = "context_length_exceeded"
    elif isinstance(error, DeadlineError):
        code = "timeout"
    return {"message": told(error), "type": _kind(error), "param": parameter, "code": code}


def _kind(error: BaseException) -> str:
    status = code_of(error).status
    if isinstance(error, UnauthorizedError):
        return "authentication_error"
    if status == 503:
        return "overloaded_error"
    return "invalid_request_error" if 400 <= status < 500 or status == 501 else "server_error"
