"""One connection: bytes in, requests out one after the other, answers in their order.

Bodies of a known size are received where they stay. Between requests all connections of a server share one buffer to
receive into, so that an idle one costs little.
"""

from __future__ import annotations

import asyncio
import enum
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

from sanderling.core.errors import SanderlingError
from sanderling.serve.errors import HeadersTooLargeError, NotReadyError, TooSlowError
from sanderling.serve.http import answers
from sanderling.serve.http.asgi import AsgiExchange
from sanderling.serve.http.body import ChunkedHead, SizedBody, check_size
from sanderling.serve.http.head import END, Head, parse_head
from sanderling.serve.http.infer_exchange import InferExchange
from sanderling.serve.tensors import Buffer

if TYPE_CHECKING:
    from sanderling.serve.http.server import HttpServer

_CHUNKED = b"chunked"
_KEPT_HEADS = 256
_LARGE_BYTES = 2**20  # from which on a body counts for what all together may hold
_LINGER_S = 2.0  # in which a client may read why its request was refused, before the connection is closed


class Exchange(Protocol):
    """A request that is being answered."""

    def start(self, body: memoryview) -> None:
        """Answer it."""

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""


class _State(enum.Enum):
    HEAD = enum.auto()
    BODY = enum.auto()
    CHUNKS = enum.auto()
    BUSY = enum.auto()
    LINGERING = enum.auto()


class Connection(asyncio.BufferedProtocol):
    """One connection of a client.

    Args:
        server: that it belongs to.

    Attributes:
        deadline_s: of the loop's clock, when the server ends what the connection waits for.
        can_write: cleared while the client takes no more of an answer.
    """

    __slots__ = (
        "_body",
        "_chunks",
        "_exchange",
        "_head",
        "_held_bytes",
        "_is_paused",
        "_is_pumping",
        "_keep_alive",
        "_rest",
        "_state",
        "can_write",
        "deadline_s",
        "server",
        "transport",
    )

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.transport: asyncio.Transport
        self.deadline_s = math.inf
        self.can_write: asyncio.Event | None = None
        self._state = _State.HEAD
        self._rest = b""
        self._head: Head | None = None
        self._body: SizedBody | None = None
        self._chunks: ChunkedHead | None = None
        self._exchange: Exchange | None = None
        self._keep_alive = True
        self._is_pumping = False
        self._held_bytes = 0
        self._is_paused = False

    @property
    def is_idle(self) -> bool:
        """Whether no request has begun."""
        return self._state is _State.HEAD and not self._rest

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self.transport = cast("asyncio.Transport", transport)
        self._wait(self.server.limits.idle_s)
        if not self.server.admit(self):
            self.refuse(NotReadyError("the server has as many connections as it takes: try again later"))
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Called by the loop: the client has hung up, or the connection was closed."""
        self.server.forget(self)
        self._drop()
        self._let_go()
        if self.can_write is not None:
            self.can_write.set()

    def eof_received(self) -> bool:
        """Called by the loop: the client sends no more, which counts as hanging up."""
        self._drop()
        return False

    def pause_writing(self) -> None:
        """Called by the loop: the client takes the answer slower than it comes."""
        self.can_write = asyncio.Event()
        self._wait(self.server.limits.write_s)

    def resume_writing(self) -> None:
        """Called by the loop."""
        if self.can_write is not None:
            self.can_write.set()
        self.can_write = None
        if self._state is _State.BUSY:
            self.deadline_s = math.inf
        elif self._state is _State.HEAD:
            self._wait(self.server.limits.idle_s)
        self._go_on()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Called by the loop: where the next bytes go."""
        if self._state is _State.BODY and self._body is not None and not self._body.is_whole:
            return self._body.room()
        return self.server.scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the loop: bytes have come."""
        if self._state is _State.BODY and self._body is not None and not self._body.is_whole:
            self._body.filled += nbytes
            if self._body.is_whole:
                self._pump()
        elif self._state is not _State.LINGERING:
            came = bytes(self.server.scratch[:nbytes])
            if self.is_idle:
                self._wait(self.server.limits.header_s)
            self._rest = self._rest + came if self._rest else came
            if self._state is not _State.BUSY:
                self._pump()
            if self._rest and self._must_wait and len(self._rest) > self.server.limits.header_bytes:
                self.transport.pause_reading()
                self._is_paused = True

    @property
    def _must_wait(self) -> bool:
        """Whether what has come waits for an answer to be made or taken."""
        return self._state is _State.BUSY or self.can_write is not None

    def overdue(self) -> None:
        """The time for what the connection waits for is over."""
        if self._state in (_State.BODY, _State.CHUNKS) or (self._state is _State.HEAD and self._rest):
            self.refuse(TooSlowError("the request did not come in time: send it in one go"))
        elif self.is_idle and self.can_write is None:
            self.transport.close()
        else:
            self.transport.abort()

    def retire(self) -> None:
        """The server shuts down: close after the answer that is being made, or now."""
        self._keep_alive = False
        if self.is_idle:
            self.transport.close()

    def ending(self) -> bytes:
        """The last of an answer's headers, and the line that ends them."""
        if not self.keeps_alive:
            return b"Connection: close\r\n\r\n"
        return b"Connection: keep-alive\r\n\r\n" if self.is_old else b"\r\n"

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection stays after this answer."""
        return self._keep_alive and self._head is not None and self._head.keep_alive

    @property
    def is_old(self) -> bool:
        """Whether the client speaks HTTP/1.0."""
        return self._head is not None and self._head.version == "1.0"

    def send(self, parts: Sequence[Buffer]) -> None:
        """Write a part of an answer."""
        if self.transport.is_closing():
            return
        if len(parts) == 1:
            self.transport.write(parts[0])
        else:
            self.transport.writelines(parts)

    def finish(self, parts: Sequence[Buffer] = ()) -> None:
        """Write the last of an answer, and go on to the next request."""
        if parts:
            self.send(parts)
        keeps_alive = self.keeps_alive
        if self._held_bytes:
            self._let_go()
        self._head = self._body = self._chunks = self._exchange = None
        if not keeps_alive:
            self._linger()
            return
        self._state = _State.HEAD
        self._wait(self.server.limits.header_s if self._rest else self.server.limits.idle_s)
        if not self._is_pumping and (self._rest or self._is_paused):
            self._go_on()

    def fail(self, error: BaseException) -> None:
        """Tell the client of an error, and go on to the next request."""
        self.finish([answers.whole_error(error, keep_alive=self.keeps_alive, is_old=self.is_old)])

    def refuse(self, error: BaseException) -> None:
        """Tell the client of an error, and close the connection: what follows in it has no meaning."""
        self._keep_alive = False
        self._drop()
        self._let_go()
        self.send([answers.whole_error(error, keep_alive=False)])
        self._head = self._body = self._chunks = self._exchange = None
        self._linger()

    def _go_on(self) -> None:
        """Take what has waited, and read again."""
        self._pump()
        if self._is_paused and not self._must_wait and not self.transport.is_closing():
            self._is_paused = False
            self.transport.resume_reading()

    def _pump(self) -> None:
        """Go on as far as what has come allows."""
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while self._step():
                pass
        except SanderlingError as error:
            self.refuse(error)
        except Exception as error:  # noqa: BLE001 - one connection's fault is not the server's end
            self.server.services.log.failure("connection-failed", error)
            self.refuse(error)
        finally:
            self._is_pumping = False

    def _step(self) -> bool:
        """Take one step; False when more must come first."""
        if self.can_write is not None or self.transport.is_closing():
            return False
        if self._state is _State.HEAD:
            return self._read_head()
        if self._state is _State.BODY:
            assert self._body is not None
            if self._body.is_whole:
                self._begin(self._body.data)
                return True
        elif self._state is _State.CHUNKS:
            return self._read_chunks()
        return False

    def _read_head(self) -> bool:
        data = self._rest
        if data.startswith(b"\r\n"):
            data = self._rest = data.lstrip(b"\r\n")
        end = data.find(END) + len(END)
        limits = self.server.limits
        if end < len(END):
            if len(data) >= limits.header_bytes:
                raise HeadersTooLargeError(
                    f"the headers have {len(data)} bytes: at most {limits.header_bytes} are taken"
                )
            return False
        if end > limits.header_bytes:
            raise HeadersTooLargeError(f"the headers have {end} bytes: at most {limits.header_bytes} are taken")
        self._head = head = self._parsed(data[:end])
        self._rest = data[end:]
        check_size(head.length, limits.body_bytes)
        if head.length > _LARGE_BYTES:
            self._hold(head.length)
        self._exchange = InferExchange(self, head, head.model) if head.model else AsgiExchange(self, head)
        self._wait(limits.body_s)
        if isinstance(head, ChunkedHead) and head.chunked:
            self._chunks, self._state = head, _State.CHUNKS
        else:
            self._body = body = self.server.bodies.take(head.length, head.json_length or 0)
            if head.length:
                self._rest = self._rest[body.put(self._rest) :]
            self._state = _State.BODY
            if body.is_whole:
                self._begin(body.data)
                return True
        if head.expects_continue and not self._rest and not (self._body and self._body.filled):
            self.send([answers.CONTINUE])
        return True

    def _parsed(self, data: bytes) -> Head:
        """A head; those of inference requests are kept, as a client mostly sends the same."""
        heads = self.server.heads
        known = heads.get(data)
        if known is not None:
            return known
        limits = self.server.limits
        head = parse_head(data, limits, ChunkedHead(limits.body_bytes) if _CHUNKED in data.lower() else None)
        if head.model and not head.chunked:
            if len(heads) >= _KEPT_HEADS:
                heads.clear()
            heads[data] = head
        return head

    def _read_chunks(self) -> bool:
        assert self._chunks is not None
        data, self._rest = self._rest, b""
        if data:
            self._chunks.feed(data)
            if len(self._chunks.body) > _LARGE_BYTES and not self._held_bytes:  # and nobody knows how many more
                self._hold(self.server.limits.body_bytes)
        if not self._chunks.is_whole:
            return False
        if self._chunks.has_more:  # where the next request begins is not known
            self._keep_alive = False
        self._begin(memoryview(self._chunks.body))
        return True

    def _begin(self, body: memoryview) -> None:
        """Answer a request that has come."""
        assert self._exchange is not None
        self._state = _State.BUSY
        self.deadline_s = math.inf
        self._exchange.start(body)

    def _hold(self, size_bytes: int) -> None:
        self.server.hold(size_bytes)
        self._held_bytes = size_bytes

    def _let_go(self) -> None:
        self.server.let_go(self._held_bytes)
        self._held_bytes = 0

    def _wait(self, seconds: float) -> None:
        self.deadline_s = self.server.loop.time() + seconds

    def _drop(self) -> None:
        if self._exchange is not None:
            self._exchange.cancel()
            self._exchange = None

    def _linger(self) -> None:
        """Close once the client has read the answer, so that what it still sends does not destroy that."""
        if self.transport.is_closing():
            return
        if self._state is _State.BUSY or not self.transport.can_write_eof():
            self.transport.close()
            return
        self._state = _State.LINGERING
        self._rest = b""
        self._wait(_LINGER_S)
        self.transport.write_eof()
