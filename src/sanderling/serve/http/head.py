"""The head of a request: its line and headers, as httptools reads them."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

import httptools

from sanderling.serve.errors import HeadersTooLargeError, RequestError
from sanderling.serve.settings import Limits

END = b"\r\n\r\n"
_INFER = re.compile(rb"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")


class Head:
    """The line and headers of one request.

    Attributes:
        method: such as ``POST``.
        target: as it came, with the query.
        headers: names in lower case, in their order.
        named: by name; the last one where a name is there twice.
        length: of the body; 0 without one.
        chunked: the body comes in chunks.
        encoding: of the body, such as ``gzip``; empty for none.
        expects_continue: the client waits to be told that its body is wanted.
        keep_alive: the client will use the connection again.
        model: and version, of an inference request; None for any other request.
        json_length: of an inference request with tensors as bytes, where those begin.
        timeout_us: of an inference request.
    """

    __slots__ = (
        "chunked",
        "encoding",
        "expects_continue",
        "headers",
        "json_length",
        "keep_alive",
        "length",
        "method",
        "model",
        "named",
        "parser",
        "target",
        "timeout_us",
        "version",
    )

    def __init__(self) -> None:
        self.method = ""
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.named: dict[bytes, bytes] = {}
        self.length = 0
        self.chunked = False
        self.keep_alive = True
        self.version = "1.1"
        self.model: tuple[str, str] | None = None
        self.encoding = b""
        self.expects_continue = False
        self.json_length: int | None = None
        self.timeout_us: int | None = None
        self.parser: httptools.HttpRequestParser

    @property
    def path(self) -> bytes:
        """The target without its query."""
        return self.target.partition(b"?")[0]

    @property
    def query(self) -> bytes:
        """What stands behind the question mark."""
        return self.target.partition(b"?")[2]

    def whole(self, name: bytes) -> int | None:
        """A header with a whole number.

        Raises:
            RequestError: it is none.
        """
        value = self.named.get(name)
        if value is None:
            return None
        if not value.isdigit() or len(value) > 18:
            shown = value[:40].decode("ascii", "backslashreplace")
            raise RequestError(f"header {name.decode().title()} is '{shown}': expected a whole number ≥ 0")
        return int(value)

    def on_url(self, url: bytes) -> None:
        """Called by the parser."""
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Called by the parser, which forgets these when a message ends."""
        self.method = self.parser.get_method().decode("ascii")
        self.version = self.parser.get_http_version()
        self.keep_alive = self.parser.should_keep_alive()


def parse_head(data: bytes, limits: Limits, receiver: Head | None = None) -> Head:
    """Read a head.

    Args:
        data: up to and with the empty line.
        limits: of the server.
        receiver: to fill, which may take more calls of the parser.

    Raises:
        RequestError: it is no HTTP/1 request, or not a proper one.
        HeadersTooLargeError: it has too many headers.
    """
    head = Head() if receiver is None else receiver
    head.parser = parser = httptools.HttpRequestParser(head)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass  # the client offers another protocol, and we stay with this one
    except httptools.HttpParserError as error:
        raise RequestError(f"this is no HTTP request: {error}") from None
    if not head.method:
        raise RequestError("this is no HTTP/1 request: its head has no end")
    if len(head.headers) > limits.headers:
        raise HeadersTooLargeError(f"the request has {len(head.headers)} headers: at most {limits.headers} are taken")
    head.named = dict(head.headers)
    coding = head.named.get(b"transfer-encoding", b"").strip().lower()
    if coding:
        if coding != b"chunked" or b"content-length" in head.named:
            raise RequestError("Transfer-Encoding must be chunked, and without Content-Length")
        head.chunked = True
    else:
        head.length = head.whole(b"content-length") or 0
    encoding = head.named.get(b"content-encoding", b"").strip().lower()
    head.encoding = b"" if encoding == b"identity" else encoding
    head.expects_continue = head.named.get(b"expect", b"").lower() == b"100-continue"
    found = _INFER.fullmatch(head.path) if head.method == "POST" else None
    if found:
        head.model = _text(found[1]), _text(found[2] or b"")
        head.json_length = head.whole(b"inference-header-content-length")
        head.timeout_us = head.whole(b"timeout")
    return head


def trace_of(head: Head) -> str:
    """``traceparent`` of a request; empty without one."""
    value = head.named.get(b"traceparent")
    return value.decode("latin-1") if value is not None else ""


def _text(quoted: bytes) -> str:
    return (unquote_to_bytes(quoted) if b"%" in quoted else quoted).decode("utf-8", "replace")
