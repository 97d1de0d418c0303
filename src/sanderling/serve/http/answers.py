"""Answers of HTTP as bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from http import HTTPStatus

from sanderling.serve.errors import code_of, told

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
_RETRY_S = 1
_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


def status_line(status: int) -> bytes:
    """The first line of an answer."""
    return _LINES.get(status) or f"HTTP/1.1 {status} Status\r\n".encode()


def head(status: int, headers: Iterable[tuple[bytes, bytes]], *, keep_alive: bool, is_old: bool = False) -> bytes:
    """Status line and headers.

    Args:
        status: of HTTP.
        headers: without those about the connection.
        keep_alive: whether the connection stays.
        is_old: the client speaks HTTP/1.0, which closes connections unless told otherwise.
    """
    lines = [status_line(status)]
    for name, value in headers:
        lines += (name, b": ", value, b"\r\n")
    if not keep_alive:
        lines.append(b"Connection: close\r\n")
    elif is_old:
        lines.append(b"Connection: keep-alive\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def error_body(error: BaseException) -> bytes:
    """The protocol's form of an error."""
    return json.dumps({"error": told(error)}).encode()


def error_headers(error: BaseException) -> list[tuple[bytes, bytes]]:
    """Headers of an error's answer beside those of its body."""
    status = code_of(error).status
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return [(b"Retry-After", str(_RETRY_S).encode())]
    return [(b"WWW-Authenticate", b"Bearer")] if status == HTTPStatus.UNAUTHORIZED else []


def whole_error(error: BaseException, *, keep_alive: bool, is_old: bool = False) -> bytes:
    """A whole answer that tells of an error."""
    body = error_body(error)
    headers = [
        (b"Content-Type", b"application/json"),
        (b"Content-Length", str(len(body)).encode()),
        *error_headers(error),
    ]
    return head(code_of(error).status, headers, keep_alive=keep_alive, is_old=is_old) + body
