"""The gRPC server: its port, its limits and its certificate."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc

from sanderling.core.errors import OptionError, first_line
from sanderling.serve.grpc_.arrivals import Arrivals
from sanderling.serve.grpc_.service import InferenceService
from sanderling.serve.http.server import tls_context
from sanderling.serve.services import Services

_KEEPALIVE_MS = 60_000  # after which a silent client is asked whether it is there
_KEEPALIVE_TIMEOUT_MS = 20_000
_MOST_CALLS = 4096  # at a time; more are refused with RESOURCE_EXHAUSTED


class GrpcServer:
    """Serves the protocol on the event loop that starts it.

    Requests larger than the settings' ``body_bytes``, also after they are unpacked, are refused with
    RESOURCE_EXHAUSTED.

    Args:
        services: of the server.

    Attributes:
        port: that it listens at, once it has started.
    """

    def __init__(self, services: Services) -> None:
        settings = services.settings
        self.port = settings.grpc_port or 0
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self._address = f"{host}:{self.port}"
        self._credentials = _credentials(settings.certificate, settings.private_key) if settings.certificate else None
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", settings.limits.body_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", settings.limits.header_bytes),
                ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.server_handshake_timeout_ms", int(settings.limits.header_s * 1e3)),
                ("grpc.so_reuseport", 0),  # a second server at the port is an error, not a share of its requests
            ],
            maximum_concurrent_rpcs=_MOST_CALLS,
        )
        self._arrivals = Arrivals(settings.limits.body_s)
        self._server.add_generic_rpc_handlers((InferenceService(services, self._arrivals).handler(),))
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            OptionError: the port is taken, or there is no such address.
        """
        try:
            if self._credentials is None:
                self.port = self._server.add_insecure_port(self._address)
            else:
                self.port = self._server.add_secure_port(self._address, self._credentials)
        except RuntimeError as error:
            raise OptionError(
                f"gRPC cannot listen at {self._address}: {first_line(error)}; give --grpc another port, or 0 for any"
            ) from error
        await self._server.start()
        self._watcher = asyncio.get_running_loop().create_task(self._arrivals.watch())

    async def stop(self, drain_s: float) -> None:
        """Take no more calls, let those that run end within ``drain_s``, and cut off the rest."""
        await self._server.stop(drain_s)
        if self._watcher is not None:
            self._watcher.cancel()


def _credentials(certificate: Path, private_key: Path | None) -> grpc.ServerCredentials:
    """What TLS needs; the certificate's file holds the key as well where there is no other.

    Raises:
        OptionError: a file is missing, or the two do not belong together.
    """
    tls_context(certificate, private_key)  # gRPC itself says nothing before a client fails
    chain = certificate.read_bytes()
    return grpc.ssl_server_credentials([(chain if private_key is None else private_key.read_bytes(), chain)])
