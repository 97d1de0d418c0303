"""`sanderling serve`: packages over HTTP and gRPC."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sanderling.cli.output import reporting_errors
from sanderling.core.errors import OptionError, UnavailableError

if TYPE_CHECKING:
    from sanderling.serve.server import Server
    from sanderling.serve.settings import Settings

TOKEN = "SANDERLING_TOKEN"  # noqa: S105 - the variable's name
_MEBIBYTE = 2**20


def serve(
    packages: Annotated[
        list[Path], typer.Argument(metavar="PKG", help="Package folders NAME.sdl, or zips of them.")
    ] = [],  # noqa: B006 - typer reads the default
    policy: Annotated[Path | None, typer.Option(help="Policy file for all packages.")] = None,
    http: Annotated[int, typer.Option(help="Port of HTTP; 0 for any, -1 for none.")] = 8000,
    grpc: Annotated[int, typer.Option(help="Port of gRPC; 0 for any, -1 for none.")] = 8001,
    metrics: Annotated[int, typer.Option(help="Port of Prometheus metrics; 0 for any, -1 for none.")] = 8002,
    host: Annotated[str, typer.Option(help="Address to listen at; only this machine by default.")] = "127.0.0.1",
    repository: Annotated[Path | None, typer.Option(help="Folder of packages that is watched.")] = None,
    versions: Annotated[
        str, typer.Option(help="Of the repository that are served: latest, latest=N, specific=N,N or all.")
    ] = "latest",
    canary: Annotated[
        float, typer.Option(min=0, max=0.99, help="Share of requests that tries a new version; 0 swaps at once.")
    ] = 0,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that a version stays loaded which another one replaced.")
    ] = 60,
    shared_memory_prefix: Annotated[
        str, typer.Option(help="Let clients lend shared memory whose key begins so, such as /camera-; / for any.")
    ] = "",
    certificate: Annotated[Path | None, typer.Option(help="PEM file: serve HTTPS.")] = None,
    private_key: Annotated[Path | None, typer.Option(help="PEM file, where the certificate's has no key.")] = None,
    threads: Annotated[int, typer.Option(min=0, help="Of one call; 0 leaves it to the plan or the engine.")] = 0,
    max_body: Annotated[float, typer.Option(help="Largest request, in MiB.")] = 64,
    max_connections: Annotated[int, typer.Option(help="Of HTTP, at a time.")] = 10_000,
    drain: Annotated[float, typer.Option(min=0, help="Seconds that requests may take to end at the end.")] = 10,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log one JSON object a line.")] = False,
    otel: Annotated[
        bool, typer.Option("--otel", help="Send traces to an OpenTelemetry collector, as OTEL_… variables say.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout once it serves.")] = False,
) -> None:
    """Serve packages by the Open Inference Protocol, until Ctrl-C or SIGTERM; SIGHUP follows policy and repository.

    Control routes need the token in SANDERLING_TOKEN, or one that is made and printed.
    """
    with reporting_errors(as_json=as_json):
        try:
            from sanderling.serve.server import serve as run_server
        except ImportError as error:
            raise UnavailableError(
                f"serving needs '{error.name}', which is not installed: pip install 'sanderling[serve]'"
            ) from error
        from sanderling.serve.canary import CanaryRules
        from sanderling.serve.log import Log
        from sanderling.serve.repository_settings import RepositorySettings
        from sanderling.serve.settings import Limits, Settings
        from sanderling.serve.traces import is_configured
        from sanderling.serve.version_policy import parse_version_policy

        given = os.environ.get(TOKEN)
        settings = Settings(
            tuple(packages),
            policy=policy,
            host=host,
            http_port=_port("--http", http),
            grpc_port=_port("--grpc", grpc),
            metrics_port=_port("--metrics", metrics),
            repository=repository,
            watching=RepositorySettings(
                grace_s=grace,
                versions=parse_version_policy(versions),
                canary=CanaryRules(share=canary) if canary else None,
            ),
            **({} if given is None else {"token": given}),
            shared_memory_prefix=shared_memory_prefix,
            certificate=certificate,
            private_key=private_key,
            threads=threads,
            drain_s=drain,
            log_json=log_json,
            traces=otel or is_configured(Log(as_json=log_json)),
            limits=Limits(body_bytes=int(max_body * _MEBIBYTE), connections=max_connections),
        )
        run_server(settings, started=lambda server: _say(server, settings, made=given is None, as_json=as_json))


def _port(option: str, port: int) -> int | None:
    if not -1 <= port < 2**16:
        raise OptionError(f"{option} {port} is no port: expected 1 to 65535, 0 for any, -1 for none")
    return None if port < 0 else port


def _say(server: Server, settings: Settings, *, made: bool, as_json: bool) -> None:
    """Say what is served where, and on what."""
    import json

    models = server.services.plane.models
    if as_json:
        value = {
            "models": [
                {"name": each.name, "version": each.version, "lanes": list(each.session.lanes)} for each in models
            ],
            "ports": {name: end.port for name, end in server.ends.items()},
            "host": settings.host,
            **({"token": settings.token} if made else {}),
        }
        sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
        sys.stdout.flush()
        return
    lines = [f"{each.name} version {each.version}: {', '.join(each.session.lanes)}" for each in models]
    scheme = "https" if settings.certificate else "http"
    for name, end in server.ends.items():
        at = f"{scheme}://{settings.host}:{end.port}" if name in ("http", "metrics") else f"{settings.host}:{end.port}"
        lines.append(f"{name}: {at}")
    if made:
        lines.append(f"token for control routes: {settings.token} (set {TOKEN} to choose it)")
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()
