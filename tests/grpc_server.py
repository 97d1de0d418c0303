"""A gRPC server on an event loop in a thread of its own, as the tests that call it need it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from sanderling.serve.data_plane import DataPlane
from sanderling.serve.grpc_.server import GrpcServer
from sanderling.serve.grpc_.service import InferenceService
from sanderling.serve.shared_memory import SharedMemoryRegistry

TIMEOUT_S = 20.0


@contextlib.contextmanager
def serving(
    plane: DataPlane,
    registry: SharedMemoryRegistry | None = None,
    *,
    service: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[str]:
    """Serve until the ``with`` ends; gives the address.

    Args:
        plane: with the models.
        registry: none is allowed by default.
        service: further arguments of ``InferenceService``.
        options: of ``GrpcServer``.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="grpc-server", daemon=True)
    thread.start()

    async def start() -> GrpcServer:
        calls = InferenceService(plane, registry or SharedMemoryRegistry(), **(service or {}))
        server = GrpcServer(calls, **{"port": 0, **options})
        await server.start()
        return server

    try:
        server = asyncio.run_coroutine_threadsafe(start(), loop).result(TIMEOUT_S)
        try:
            yield f"127.0.0.1:{server.port}"
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(grace_s=1.0), loop).result(TIMEOUT_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(TIMEOUT_S)
        loop.close()
