"""The gRPC server: its port, its limits and its certificates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from sanderling.core.errors import OptionError, first_line
from sanderling.serve.grpc_.service import InferenceService

DEFAULT_PORT = 8001
LARGEST_MESSAGE_BYTES = 64 << 20
MOST_CALLS = 1024


@dataclass(frozen=True)
class Certificates:
    """Files in PEM for TLS.

    Attributes:
        chain: the server's certificate, and those it rests on.
        key: its private key; None where it is in the same file.
        client_authority: whose certificates clients must have; None lets every client in.
    """

    chain: Path
    key: Path | None = None
    client_authority: Path | None = None


class GrpcServer:
    """Serves the protocol on the event loop that starts it.

    Args:
        service: the calls.
        host: address to listen at.
        port: 0 for any free one.
        certificates: for TLS; plain text without them.
        largest_message_bytes: of a request; larger ones are refused with RESOURCE_EXHAUSTED.
        most_calls: at a time; more are refused with RESOURCE_EXHAUSTED.

    Attributes:
        port: that it listens at, once it has started.
    """

    def __init__(
        self,
        service: InferenceService,
        *,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        certificates: Certificates | None = None,
        largest_message_bytes: int = LARGEST_MESSAGE_BYTES,
        most_calls: int = MOST_CALLS,
    ) -> None:
        self.port = port
        self._address = f"[{host}]" if ":" in host else host
        self._credentials = _credentials(certificates) if certificates is not None else None
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", largest_message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),  # a second server at the port is an error, not a share of its requests
            ],
            maximum_concurrent_rpcs=most_calls,
        )
        self._server.add_generic_rpc_handlers((service.handler(),))

    async def start(self) -> None:
        """Listen.

        Raises:
            OptionError: the address cannot be listened at.
        """
        address = f"{self._address}:{self.port}"
        try:
            if self._credentials is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise OptionError(f"gRPC cannot listen at {address}: {first_line(error)}; is the port taken?") from error
        await self._server.start()

    async def stop(self, *, grace_s: float) -> None:
        """Take no more calls, let those that run end within ``grace_s``, and cut off the rest."""
        await self._server.stop(grace_s)


def _credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Raises OptionError for a file that cannot be read."""
    try:
        chain = certificates.chain.read_bytes()
        key = chain if certificates.key is None else certificates.key.read_bytes()
        authority = certificates.client_authority.read_bytes() if certificates.client_authority is not None else None
    except OSError as error:
        raise OptionError(f"a certificate for gRPC cannot be read: {first_line(error)}") from error
    return grpc.ssl_server_credentials(
        [(key, chain)], root_certificates=authority, require_client_auth=authority is not None
    )
