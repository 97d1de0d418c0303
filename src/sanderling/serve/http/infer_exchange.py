"""One inference request on a connection, from its body to its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future
from types import MappingProxyType
from typing import TYPE_CHECKING

from sanderling.core.errors import SanderlingError
from sanderling.run.results import Outputs
from sanderling.serve.data_plane import ServedModel, explained
from sanderling.serve.http.body import unpack
from sanderling.serve.http.head import Head
from sanderling.serve.http.inference import InferRequest, read_request, write_response
from sanderling.serve.output_places import OutputPlaces
from sanderling.serve.tensors import Buffer

if TYPE_CHECKING:
    from sanderling.serve.http.protocol import Connection

_NOTHING: Mapping[str, int] = MappingProxyType({})
_JOINED_BYTES = 8192  # an answer up to this size goes out as one piece, which costs less than a list of them
_JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
_BINARY = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n"
    b"Content-Length: %d\r\n"
)


class InferExchange:
    """One inference request. It runs in the event loop's thread, apart from the model's work.

    Args:
        connection: that it came by.
        head: of the request.
        target: model and version.
    """

    __slots__ = ("_connection", "_future", "_head", "_is_over", "_model", "_places", "_request", "_target")

    def __init__(self, connection: Connection, head: Head, target: tuple[str, str]) -> None:
        self._connection = connection
        self._head = head
        self._target = target
        self._future: Future[Outputs] | None = None
        self._is_over = False
        self._model: ServedModel
        self._request: InferRequest
        self._places: OutputPlaces | None = None

    def start(self, body: memoryview) -> None:
        """Answer the request, whose body has come."""
        if self._head.encoding:
            self._unpack(body, self._head.encoding)
        else:
            self._run(body)

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""
        self._is_over = True
        if self._future is not None:
            self._future.cancel()

    def _unpack(self, body: memoryview, encoding: bytes) -> None:
        """Unpack in another thread, as that takes a while."""
        server = self._connection.server
        limit = server.limits.body_bytes
        task = server.loop.run_in_executor(None, unpack, body, encoding, limit, self._head.json_length or 0)
        task.add_done_callback(self._unpacked)

    def _unpacked(self, task: asyncio.Future[memoryview]) -> None:
        if self._is_over or task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._fail(error)
        else:
            self._run(task.result())

    def _run(self, body: memoryview) -> None:
        server = self._connection.server
        plane, memory = server.services.plane, server.services.memory
        head = self._head
        try:
            name, version = self._target
            self._model = model = plane.model(name, version)
            left_ms = head.timeout_us / 1e3 if head.timeout_us else None
            self._request = request = read_request(body, head.json_length, memory, left_ms=left_ms)
            if request.places:
                self._places = OutputPlaces(request.places, model.session, request.feeds, memory)
            self._future = self._submit(request, pinned=bool(version))
        except Exception as error:  # noqa: BLE001 - the client is told, and the server goes on
            self._fail(error)
            return
        server.completions.watch(self._future, self._received)

    def _submit(self, request: InferRequest, *, pinned: bool) -> Future[Outputs]:
        server = self._connection.server
        return server.services.plane.submit(
            self._model,
            request.feeds,
            outputs=request.names,
            deadline_ms=request.deadline_ms,
            priority=request.priority,
            buffers=self._places.buffers if self._places is not None else None,
            pinned=pinned,
            visit=server.completions.visit,
        )

    def _received(self, future: Future[Outputs]) -> None:
        """The model has answered."""
        if self._is_over:
            return
        try:
            outputs = future.result(0)
            written = self._places.write(outputs) if self._places is not None else _NOTHING
            text, tails = write_response(self._model, self._request, outputs, written)
        except (CancelledError, Exception) as error:  # noqa: BLE001 - the client is told, and the server goes on
            self._fail(explained(error, self._request.feeds))
            return
        self._is_over = True
        self._connection.finish(self._answer(text, tails))

    def _answer(self, text: bytes, tails: list[Buffer]) -> list[Buffer]:
        size = len(text) + sum(map(len, tails))
        first = _BINARY % (len(text), size) if tails else _JSON % size
        parts = [first + self._echoed() + self._connection.ending() + text, *tails]
        return [b"".join(parts)] if size < _JOINED_BYTES else parts

    def _echoed(self) -> bytes:
        """The client's own name for the request, so that it finds it in its traces."""
        identifier = self._head.named.get(b"x-request-id")
        return b"X-Request-Id: %s\r\n" % identifier if identifier else b""

    def _fail(self, error: BaseException) -> None:
        self._is_over = True
        if not isinstance(error, SanderlingError | CancelledError):
            self._connection.server.services.log.failure("request-failed", error, model=self._target[0])
        self._connection.fail(error)
