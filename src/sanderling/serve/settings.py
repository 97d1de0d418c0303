"""What a server is told when it starts."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from sanderling.core.errors import OptionError
from sanderling.serve.repository_settings import RepositorySettings

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Limits:
    """What one client may cost.

    Attributes:
        body_bytes: of a request, also after it is unpacked.
        held_bytes: of all large requests together, from their heads to their answers.
        header_bytes: of the request line and all headers together.
        headers: in number.
        connections: at a time.
        header_s: from a request's first byte to the end of its headers.
        body_s: from there to the end of its body.
        idle_s: between two requests.
        write_s: in which a client must take some of an answer that waits for it.
    """

    body_bytes: int = 64 * 2**20
    held_bytes: int = 2**30
    header_bytes: int = 16 * 2**10
    headers: int = 100
    connections: int = 10_000
    header_s: float = 10.0
    body_s: float = 60.0
    idle_s: float = 75.0
    write_s: float = 60.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (value > 0 and math.isfinite(value)):
                raise OptionError(f"limit {name} is {value:g}: expected a number above 0")
        if self.held_bytes < self.body_bytes:
            object.__setattr__(self, "held_bytes", self.body_bytes)


@dataclass(frozen=True)
class Settings:
    """How to serve.

    Attributes:
        packages: folders or zips of them.
        policy: file; one that allows three models by default.
        host: to listen at; others than this machine reach the server only at another address than loopback.
        http_port: 0 lets the system choose; None for no HTTP.
        grpc_port: likewise.
        metrics_port: likewise; metrics are also at ``/metrics`` of HTTP.
        repository: folder of packages that is watched.
        watching: how it is watched, and how versions follow each other.
        token: for control routes.
        shared_memory_prefix: that keys of shared memory must begin with; empty to allow none.
        certificate: PEM file; HTTPS with it.
        private_key: PEM file of it, where it is another one.
        threads: of one call; 0 leaves it to the plan or the engine.
        drain_s: that requests may take to end when the server shuts down.
        log_json: one JSON object a line.
        traces: send a span of every request to an OpenTelemetry collector.
    """

    packages: tuple[Path, ...] = ()
    policy: Path | None = None
    host: str = LOOPBACK
    http_port: int | None = 8000
    grpc_port: int | None = 8001
    metrics_port: int | None = 8002
    repository: Path | None = None
    watching: RepositorySettings = field(default_factory=RepositorySettings)
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    shared_memory_prefix: str = ""
    certificate: Path | None = None
    private_key: Path | None = None
    threads: int = 0
    drain_s: float = 10.0
    log_json: bool = False
    traces: bool = False
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if not self.packages and self.repository is None:
            raise OptionError("nothing to serve: name a package (NAME.sdl), or a folder of them with --repository")
        ports = [port for port in (self.http_port, self.grpc_port, self.metrics_port) if port]
        if len(set(ports)) < len(ports):
            raise OptionError(f"one port for several services: {', '.join(map(str, ports))}; give each its own")
        if self.private_key is not None and self.certificate is None:
            raise OptionError("a private key was given without a certificate: give --certificate as well")
        if not self.token:
            raise OptionError("the token for control routes is empty: unset SANDERLING_TOKEN to have one made")
