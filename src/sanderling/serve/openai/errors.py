"""Errors as OpenAI's clients understand them; the statuses are those of every route."""

from __future__ import annotations

from typing import Any

from sanderling.core.errors import DeadlineError
from sanderling.serve.errors import NotFoundError, RequestError, UnauthorizedError, code_of, told


class ParameterError(RequestError):
    """A parameter is missing, or none that can be used.

    Attributes:
        parameter: its name; empty where the request as a whole is meant.
        code: OpenAI's word for it, where there is one.
    """

    def __init__(self, message: str, parameter: str, code: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.code = code


def error_object(error: BaseException) -> dict[str, Any]:
    """An error as OpenAI's object, without the object that it is the ``error`` of."""
    parameter, code = None, None
    if isinstance(error, ParameterError):
        parameter, code = error.parameter or None, error.code
    elif isinstance(error, NotFoundError):
        code = "not_found"
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
