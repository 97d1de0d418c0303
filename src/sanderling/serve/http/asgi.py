"""A request that an ASGI application answers; its answer may be a stream.

Source: ASGI specification 3.0, "HTTP & WebSocket".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from sanderling.core.errors import SanderlingError
from sanderling.serve.http import answers
from sanderling.serve.http.body import unpack
from sanderling.serve.http.head import Head, trace_of
from sanderling.serve.http.packing import AT_ONCE_BYTES, LEAST_BYTES, coding_of, packed
from sanderling.serve.traces import TRACE

if TYPE_CHECKING:
    from sanderling.serve.http.protocol import Connection

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
_OWN_HEADERS = (b"connection", b"transfer-encoding")


class AsgiExchange:
    """One request for the application.

    Args:
        connection: that it came by.
        head: of the request.
    """

    __slots__ = (
        "_answer",
        "_body",
        "_connection",
        "_gone",
        "_head",
        "_is_chunked",
        "_is_given",
        "_is_over",
        "_is_started",
        "_start",
        "_task",
    )

    def __init__(self, connection: Connection, head: Head) -> None:
        self._connection = connection
        self._head = head
        self._body = b""
        self._gone = asyncio.Event()
        self._is_given = self._is_started = self._is_over = self._is_chunked = False
        self._answer = b""
        self._start: Message | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, body: memoryview) -> None:
        """Let the application answer."""
        server = self._connection.server
        self._body = bytes(body)
        self._task = server.loop.create_task(self._run(server.app))
        server.tasks.add(self._task)
        self._task.add_done_callback(server.tasks.discard)

    def cancel(self) -> None:
        """Tell the application that the client has hung up."""
        self._gone.set()

    async def _run(self, app: Application) -> None:
        TRACE.set(trace_of(self._head))
        try:
            await self._unpack()
            await app(self._scope(), self._receive, self._send)
            if not self._is_over:
                self._abandon(RuntimeError("the application gave no whole answer"))
        except asyncio.CancelledError:
            self._connection.transport.abort()
            raise
        except Exception as error:  # noqa: BLE001 - the client is told, and the server goes on
            self._abandon(error)

    async def _unpack(self) -> None:
        encoding = self._head.named.get(b"content-encoding", b"").strip().lower()
        if encoding and encoding != b"identity":
            server = self._connection.server
            limit = server.limits.body_bytes
            unpacked = await server.services.aside.run(unpack, self._body, encoding, limit)
            self._body = bytes(unpacked)

    def _scope(self) -> dict[str, Any]:
        head, transport = self._head, self._connection.transport
        peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": head.version,
            "method": head.method,
            "scheme": "https" if transport.get_extra_info("ssl_object") else "http",
            "path": unquote_to_bytes(head.path).decode("utf-8", "replace"),
            "raw_path": head.path,
            "query_string": head.query,
            "root_path": "",
            "headers": head.headers,
            "client": tuple(peer[:2]) if isinstance(peer, tuple) else None,
            "server": tuple(own[:2]) if isinstance(own, tuple) else None,
        }

    async def _receive(self) -> Message:
        if not self._is_given:
            self._is_given = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._gone.is_set():
            return
        if message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body":
            message = await self._begun(message)
            self._write(bytes(message.get("body", b"")), has_more=bool(message.get("more_body", False)))
            can_write = self._connection.can_write
            if can_write is not None and not self._is_over:
                await can_write.wait()

    async def _begun(self, message: Message) -> Message:
        """Begin the answer where its first piece has come; a whole one is packed where the client asks for that."""
        start, self._start = self._start, None
        if start is None:
            return message
        headers = list(start.get("headers", ()))
        body = bytes(message.get("body", b""))
        coding = b"" if message.get("more_body") else self._coding(start["status"], headers, body)
        if coding:
            if len(body) > AT_ONCE_BYTES:
                body = await self._connection.server.services.aside.run(packed, [body], coding)
            else:
                body = packed([body], coding)
            headers = [(name, value) for name, value in headers if name.lower() != b"content-length"]
            headers += [
                (b"Content-Length", str(len(body)).encode()),
                (b"Content-Encoding", coding),
                (b"Vary", b"Accept-Encoding"),
            ]
            message = {**message, "body": body}
        self._begin(start["status"], headers)
        return message

    def _coding(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bytes:
        """That an answer is packed in; empty where it stays as it is, as one does that has a tag or its own coding."""
        accepted = self._head.named.get(b"accept-encoding")
        if accepted is None or status != 200 or len(body) < LEAST_BYTES:
            return b""
        if any(name.lower() in (b"etag", b"content-encoding") for name, _ in headers):
            return b""
        return coding_of(accepted)

    def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._is_started = True
        kept = [(name, value) for name, value in headers if name.lower() not in _OWN_HEADERS]
        has_length = any(name.lower() == b"content-length" for name, _ in kept)
        has_body = status >= 200 and status not in (204, 304)
        connection = self._connection
        if has_body and not has_length:
            if connection.is_old:
                self._head.keep_alive = False  # the end of the connection is the end of the answer
            else:
                self._is_chunked = True
                kept.append((b"Transfer-Encoding", b"chunked"))
        self._answer = answers.head(status, kept, keep_alive=connection.keeps_alive, is_old=connection.is_old)

    def _write(self, body: bytes, *, has_more: bool) -> None:
        """Write a piece, the head with the first one."""
        pieces = [self._answer] if self._answer else []
        self._answer = b""
        if self._head.method != "HEAD":
            if self._is_chunked:
                pieces += [b"%x\r\n" % len(body), body, b"\r\n"] if body else []
                pieces += [] if has_more else [answers.LAST_CHUNK]
            elif body:
                pieces.append(body)
        if has_more:
            if pieces:
                self._connection.send([b"".join(pieces)])
            return
        self._is_over = True
        self._connection.finish([b"".join(pieces)] if pieces else [])

    def _abandon(self, error: Exception) -> None:
        """The application has failed."""
        if self._gone.is_set():
            return
        if not isinstance(error, SanderlingError):
            self._connection.server.services.log.failure(
                "request-failed", error, path=self._head.path.decode("latin-1")
            )
        if self._is_started and not self._answer:  # too late to say so
            self._connection.transport.abort()
        elif not self._is_over:
            self._is_over = True
            self._connection.fail(error)
