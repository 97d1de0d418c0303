from __future__ import annotations

import asyncio

import pytest

from sanderling.core import errors as core
from sanderling.serve import errors as serve
from sanderling.serve.errors import code_of, told


@pytest.mark.parametrize(
    ("error", "status", "grpc"),
    [
        (core.TensorError(""), 400, "INVALID_ARGUMENT"),
        (core.OptionError(""), 400, "INVALID_ARGUMENT"),
        (serve.RequestError(""), 400, "INVALID_ARGUMENT"),
        (serve.UnauthorizedError(""), 401, "UNAUTHENTICATED"),
        (serve.NotFoundError(""), 404, "NOT_FOUND"),
        (serve.MethodError(""), 405, "UNIMPLEMENTED"),
        (serve.TooSlowError(""), 408, "DEADLINE_EXCEEDED"),
        (serve.ConflictError(""), 409, "ALREADY_EXISTS"),
        (serve.TooLargeError(""), 413, "RESOURCE_EXHAUSTED"),
        (serve.MediaError(""), 415, "INVALID_ARGUMENT"),
        (serve.HeadersTooLargeError(""), 431, "RESOURCE_EXHAUSTED"),
        (asyncio.CancelledError(), 499, "CANCELLED"),
        (core.EngineError(""), 500, "INTERNAL"),
        (core.GuardError(""), 500, "INTERNAL"),
        (KeyError("x"), 500, "INTERNAL"),
        (core.UnavailableError(""), 501, "UNIMPLEMENTED"),
        (core.QueueFullError(""), 503, "UNAVAILABLE"),
        (serve.NotReadyError(""), 503, "UNAVAILABLE"),
        (core.DeadlineError(""), 504, "DEADLINE_EXCEEDED"),
    ],
)
def test_every_error_has_its_codes(error, status, grpc):
    assert code_of(error) == (status, grpc)


def test_an_error_that_nobody_foresaw_tells_the_client_nothing_of_the_server():
    assert told(OSError("/etc/secret")) == "the server failed with OSError; its log says more"
    assert told(core.TensorError("a\n b")) == "a b"


def test_half_a_surrogate_pair_that_a_client_sent_can_be_told_back():
    assert told(core.OptionError("'\ud800' is refused")).encode() == b"'\\ud800' is refused"
