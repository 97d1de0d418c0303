"""What a client is told when a request fails: errors of serving, and the codes of every error.

SanderlingError
├── InputError
│   ├── RequestError          what came does not follow the protocol
│   ├── NotFoundError         no such model, version or route
│   ├── MethodError           the route knows other methods
│   ├── UnauthorizedError     a token is missing or wrong
│   ├── ConflictError         it is there already, or is being changed
│   ├── TooLargeError         a body over its limit
│   ├── HeadersTooLargeError  headers over their limits
│   ├── TooSlowError          a request that did not come in time
│   └── MediaError            a content type or encoding that is not understood
└── RefusedError
    └── NotReadyError         the server or the model takes no requests now

This is the one place where an error gets its HTTP status and its gRPC code.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError
from typing import NamedTuple

from sanderling.core.errors import (
    DeadlineError,
    EngineError,
    GuardError,
    InputError,
    NotMetError,
    OutputError,
    RefusedError,
    SanderlingError,
    UnavailableError,
)


class RequestError(InputError):
    """What came does not follow the protocol."""


class NotFoundError(InputError):
    """There is no such model, version or route."""


class MethodError(InputError):
    """A route knows other methods."""


class UnauthorizedError(InputError):
    """A token is missing or wrong."""


class ConflictError(InputError):
    """It is there already, or is being changed."""


class TooLargeError(InputError):
    """A body is over its limit."""


class HeadersTooLargeError(InputError):
    """Headers are over their limits."""


class TooSlowError(InputError):
    """A request did not come in time."""


class MediaError(InputError):
    """A content type or encoding is not understood."""


class NotReadyError(RefusedError):
    """The server or the model takes no requests now."""


class Code(NamedTuple):
    """What an error is on the network.

    Attributes:
        status: of HTTP.
        grpc: name of gRPC's code.
    """

    status: int
    grpc: str


_INTERNAL = Code(500, "INTERNAL")
_CANCELLED = Code(499, "CANCELLED")
_CODES: tuple[tuple[type[SanderlingError], Code], ...] = (
    (NotFoundError, Code(404, "NOT_FOUND")),
    (MethodError, Code(405, "UNIMPLEMENTED")),
    (UnauthorizedError, Code(401, "UNAUTHENTICATED")),
    (ConflictError, Code(409, "ALREADY_EXISTS")),
    (TooLargeError, Code(413, "RESOURCE_EXHAUSTED")),
    (HeadersTooLargeError, Code(431, "RESOURCE_EXHAUSTED")),
    (TooSlowError, Code(408, "DEADLINE_EXCEEDED")),
    (MediaError, Code(415, "INVALID_ARGUMENT")),
    (InputError, Code(400, "INVALID_ARGUMENT")),
    (DeadlineError, Code(504, "DEADLINE_EXCEEDED")),
    (RefusedError, Code(503, "UNAVAILABLE")),
    (UnavailableError, Code(501, "UNIMPLEMENTED")),
    (NotMetError, Code(422, "FAILED_PRECONDITION")),
    (GuardError, _INTERNAL),
    (EngineError, _INTERNAL),
    (OutputError, _INTERNAL),
)


def code_of(error: BaseException) -> Code:
    """The HTTP status and gRPC code of an error."""
    if isinstance(error, CancelledError | asyncio.CancelledError):
        return _CANCELLED
    return next((code for kind, code in _CODES if isinstance(error, kind)), _INTERNAL)


def told(error: BaseException) -> str:
    """What the client is told: our own message; of an error that nobody foresaw only its kind.

    Such a message may hold paths and the like, which belong in the server's log.
    """
    if isinstance(error, SanderlingError):
        text = " ".join(str(error).split())
        return text.encode(errors="backslashreplace").decode()  # what came from JSON may be half a surrogate pair
    if isinstance(error, CancelledError | asyncio.CancelledError):
        return "the request was cancelled"
    return f"the server failed with {type(error).__name__}; its log says more"
