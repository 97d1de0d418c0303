"""The HTTP end of a server: it listens, keeps its connections, and ends those that take too long."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from sanderling.core.errors import OptionError
from sanderling.serve.errors import NotReadyError
from sanderling.serve.http.body import BodyPool
from sanderling.serve.http.completions import Completions
from sanderling.serve.http.head import Head
from sanderling.serve.http.protocol import Connection

if TYPE_CHECKING:
    from sanderling.serve.http.asgi import Application
    from sanderling.serve.services import Services

_SWEEP_S = 0.5
_SCRATCH_BYTES = 16 * 2**10
_BACKLOG = 1024


class HttpServer:
    """Listens for HTTP/1.1. Used from the event loop's thread alone.

    Args:
        services: that it is an end of.
        app: that answers what is no inference.

    Attributes:
        loop: that it runs in.
        limits: of the settings.
        completions: by which results come from other threads.
        scratch: that connections receive into.
        bodies: memory for bodies of requests.
        heads: of inference requests, by their bytes.
        tasks: requests that the application answers.
        port: that it listens at.
    """

    def __init__(self, services: Services, app: Application) -> None:
        self.services = services
        self.app = app
        self.loop = asyncio.get_running_loop()
        self.limits = services.settings.limits
        self.completions = Completions(self.loop, lambda: services.plane.pool.runtime.run_short())
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.bodies = BodyPool()
        self.heads: dict[bytes, Head] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self._connections: set[Connection] = set()
        self._held_bytes = 0
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            OptionError: the port is taken, or there is no such address.
        """
        settings = self.services.settings
        context = tls_context(settings.certificate, settings.private_key) if settings.certificate else None
        try:
            self._listener = await self.loop.create_server(
                lambda: Connection(self), settings.host, settings.http_port, ssl=context, backlog=_BACKLOG
            )
        except OSError as error:
            raise cannot_listen("HTTP", settings.host, settings.http_port or 0, "--http", error) from error
        self.port = self._listener.sockets[0].getsockname()[1]
        self._sweeper = self.loop.create_task(self._sweep())

    async def stop(self, drain_s: float) -> None:
        """Take no more connections, let requests end within ``drain_s``, and close the rest."""
        if self._listener is not None:
            self._listener.close()
        end_s = self.loop.time() + drain_s
        for connection in list(self._connections):
            connection.retire()
        while self._connections and self.loop.time() < end_s:
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.transport.abort()
        for task in list(self.tasks):
            task.cancel()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def admit(self, connection: Connection) -> bool:
        """Count a connection; False where there are too many."""
        self._connections.add(connection)
        return len(self._connections) <= self.limits.connections

    def forget(self, connection: Connection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)

    def hold(self, size_bytes: int) -> None:
        """Count the bytes of a large request.

        Raises:
            NotReadyError: with those of others they are too many.
        """
        if self._held_bytes + size_bytes > self.limits.held_bytes:
            raise NotReadyError(
                f"the server holds {self._held_bytes} bytes of large requests: {size_bytes} more are too many now; "
                "try again later"
            )
        self._held_bytes += size_bytes

    def let_go(self, size_bytes: int) -> None:
        """A large request was answered, or its client has hung up."""
        self._held_bytes -= size_bytes

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._connections)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_s = self.loop.time()
            for connection in [each for each in self._connections if each.deadline_s < now_s]:
                connection.overdue()


def tls_context(certificate: Path, private_key: Path | None) -> ssl.SSLContext:
    """What TLS needs.

    Raises:
        OptionError: a file is missing, or the two do not belong together.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, private_key)
    except (OSError, ssl.SSLError) as error:
        raise OptionError(f"certificate {certificate} cannot be used: {error}") from error
    return context


def cannot_listen(what: str, host: str, port: int, option: str, error: OSError) -> OptionError:
    """The error of a port or address that cannot be used."""
    reason = (error.strerror or str(error)).lower()
    return OptionError(f"{what} cannot listen at {host}:{port}: {reason}; give {option} another port, or 0 for any")
