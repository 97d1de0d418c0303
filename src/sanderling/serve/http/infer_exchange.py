"""One inference request on a connection, from its body to its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from sanderling.core.errors import SanderlingError
from sanderling.run.results import Outputs
from sanderling.serve.data_plane import ServedModel, explained
from sanderling.serve.http.body import unpack
from sanderling.serve.http.head import Head, trace_of
from sanderling.serve.http.inference import InferRequest, has_long_answer, is_long, read_request, write_response
from sanderling.serve.http.packing import AT_ONCE_BYTES, LEAST_BYTES, PACKED, coding_of, packed
from sanderling.serve.output_places import OutputPlaces
from sanderling.serve.tensors import Buffer

if TYPE_CHECKING:
    from sanderling.serve.http.protocol import Connection

Result = TypeVar("Result")
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
            self._take(body)

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""
        self._is_over = True
        if self._future is not None:
            self._future.cancel()

    def _unpack(self, body: memoryview, encoding: bytes) -> None:
        limit = self._connection.server.limits.body_bytes
        self._aside(lambda: unpack(body, encoding, limit, self._head.json_length or 0), self._take)

    def _aside(self, call: Callable[[], Result], receive: Callable[[Result], None]) -> None:
        """Call something that takes a while in another thread, and go on with its result."""

        def done(task: asyncio.Future[Result]) -> None:
            if self._is_over or task.cancelled():
                return
            error = task.exception()
            if error is not None:
                self._fail(error)
            else:
                receive(task.result())

        try:
            self._connection.server.services.aside.run(call).add_done_callback(done)
        except SanderlingError as error:
            self._fail(error)

    def _take(self, body: memoryview) -> None:
        """Read the request, a long one in another thread, and run it."""
        if not is_long(body, self._head.json_length):
            self._run(lambda: self._read(body))
            return
        clock = self._connection.server.loop.time
        since_s = clock()

        def run(request: InferRequest) -> None:
            if request.deadline_ms is not None:
                request = request._replace(deadline_ms=request.deadline_ms - (clock() - since_s) * 1e3)
            self._run(lambda: request)

        self._aside(lambda: self._read(body), run)

    def _read(self, body: memoryview) -> InferRequest:
        head = self._head
        left_ms = head.timeout_us / 1e3 if head.timeout_us else None
        return read_request(body, head.json_length, self._connection.server.services.memory, left_ms=left_ms)

    def _run(self, read: Callable[[], InferRequest]) -> None:
        server = self._connection.server
        plane, memory = server.services.plane, server.services.memory
        try:
            name, version = self._target
            self._model = model = plane.model(name, version)
            self._request = request = read()
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
            moved=self._moved,
            trace=trace_of(self._head),
        )

    def _moved(self, model: ServedModel) -> None:
        self._model = model

    def _received(self, future: Future[Outputs]) -> None:
        """The model has answered."""
        if self._is_over:
            return
        try:
            outputs = future.result(0)
            if has_long_answer(self._request, outputs):
                self._aside(lambda: self._written(outputs), self._finish)
                return
            written = self._written(outputs)
        except (CancelledError, Exception) as error:  # noqa: BLE001 - the client is told, and the server goes on
            self._fail(explained(error, self._request.feeds))
            return
        self._finish(written)

    def _written(self, outputs: Outputs) -> tuple[bytes, list[Buffer]]:
        placed = self._places.write(outputs) if self._places is not None else _NOTHING
        return write_response(self._model, self._request, outputs, placed)

    def _finish(self, written: tuple[bytes, list[Buffer]]) -> None:
        """Answer, with a packed body where the client asks for one."""
        text, tails = written
        size = len(text) + sum(map(len, tails))
        accepted = self._head.named.get(b"accept-encoding")
        coding = coding_of(accepted) if accepted is not None and size >= LEAST_BYTES else b""
        if not coding:
            self._end(_BINARY % (len(text), size) if tails else _JSON % size, text, tails)
            return

        def end(body: bytes) -> None:
            head = _BINARY % (len(text), len(body)) if tails else _JSON % len(body)
            self._end(head + PACKED % coding, body, [])

        if size > AT_ONCE_BYTES:
            self._aside(lambda: packed([text, *tails], coding), end)
        else:
            end(packed([text, *tails], coding))

    def _end(self, head: bytes, body: bytes, tails: list[Buffer]) -> None:
        self._is_over = True
        parts = [head + self._echoed() + self._connection.ending() + body, *tails]
        size = len(body) + sum(map(len, tails))
        self._connection.finish([b"".join(parts)] if size < _JOINED_BYTES else parts)

    def _echoed(self) -> bytes:
        """The client's own name for the request, so that it finds it in its traces."""
        identifier = self._head.named.get(b"x-request-id")
        return b"X-Request-Id: %s\r\n" % identifier if identifier else b""

    def _fail(self, error: BaseException) -> None:
        self._is_over = True
        if not isinstance(error, SanderlingError | CancelledError):
            self._connection.server.services.log.failure("request-failed", error, model=self._target[0])
        self._connection.fail(error)
