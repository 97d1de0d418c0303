"""A gRPC server on an event loop in a thread of its own, as the tests that call it need it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sanderling.serve.data_plane import DataPlane
from sanderling.serve.grpc_.server import GrpcServer
from sanderling.serve.log import Log
from sanderling.serve.services import Repository, Services
from sanderling.serve.settings import Settings
from sanderling.serve.shared_memory import SharedMemoryRegistry

TIMEOUT_S = 20.0


@contextlib.contextmanager
def serving(
    plane: DataPlane,
    memory: SharedMemoryRegistry | None = None,
    *,
    repository: Repository | None = None,
    **settings: Any,
) -> Iterator[str]:
    """Serve until the ``with`` ends; gives the address.

    Args:
        plane: with the models.
        memory: none is allowed by default.
        repository: models that stay as they are by default.
        settings: of the server; a free port by default.
    """
    told = Settings(**{"packages": (Path("none.sdl"),), "grpc_port": 0, **settings})
    services = Services(told, plane, Log(), memory or SharedMemoryRegistry(), is_started=True)
    services.repository = repository or services.repository
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="grpc-server", daemon=True)
    thread.start()

    async def start() -> GrpcServer:
        server = GrpcServer(services)
        await server.start()
        return server

    try:
        server = asyncio.run_coroutine_threadsafe(start(), loop).result(TIMEOUT_S)
        try:
            yield f"127.0.0.1:{server.port}"
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(1.0), loop).result(TIMEOUT_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(TIMEOUT_S)
        loop.close()
