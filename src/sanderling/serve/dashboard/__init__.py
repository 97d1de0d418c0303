"""The dashboard: one page, its style and its scripts, and the stream that moves it. Nothing comes from elsewhere."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from sanderling.serve.control import Control
from sanderling.serve.errors import NotFoundError
from sanderling.serve.http.openapi import JSON, TEXT, Description, Operation, model_ref
from sanderling.serve.metrics import CONTENT_TYPE
from sanderling.serve.snapshot import Snapshot

if TYPE_CHECKING:
    from sanderling.serve.live import Live
    from sanderling.serve.metrics import Metrics
    from sanderling.serve.services import Services

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_PAGE = "index.html"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
DESCRIPTION = Description(
    "dashboard",
    (
        Operation("GET", "/", "The dashboard", {"text/html": TEXT}),
        Operation("GET", "/dashboard/{name}", "A file of the dashboard", dict.fromkeys(_TYPES.values(), TEXT)),
        Operation("GET", "/v1/live", "What happens, as server-sent events", {"text/event-stream": TEXT}),
        Operation("GET", "/v1/live/now", "The last second", {JSON: model_ref(Snapshot)}),
        Operation("GET", "/metrics", "Metrics as Prometheus reads them", {"text/plain": TEXT}),
    ),
    models=(Snapshot,),
)


class Asset(NamedTuple):
    """A file of the page."""

    content: bytes
    media_type: str
    tag: str


def assets() -> dict[str, Asset]:
    """All files of the page by name; a request can reach nothing else."""
    found = {}
    for entry in (resources.files("sanderling.serve.dashboard") / "page").iterdir():
        suffix = entry.name.rpartition(".")[2]
        if suffix in _TYPES:
            content = entry.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            found[entry.name] = Asset(content, _TYPES[suffix], tag)
    return found


def dashboard_routes(services: Services, live: Live, metrics: Metrics) -> list[Route]:
    """The page, what it shows (as a stream at ``/v1/live``, once at ``/v1/live/now``), its commands, and metrics."""
    files = assets()

    async def page(request: Request) -> Response:
        return _file(files, _PAGE, request)

    async def file(request: Request) -> Response:
        return _file(files, request.path_params["name"], request)

    async def stream(request: Request) -> Response:  # noqa: ARG001
        live.check_room()
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}
        return StreamingResponse(live.watch(), media_type="text/event-stream", headers=headers)

    async def now(request: Request) -> Response:  # noqa: ARG001
        return Response(live.snapshot().model_dump_json(), media_type="application/json")

    async def exposition(request: Request) -> Response:  # noqa: ARG001
        return Response(await run_in_threadpool(metrics.exposition), headers={"Content-Type": CONTENT_TYPE})

    return [
        Route("/", page),
        Route("/dashboard/{name}", file),
        Route("/v1/live", stream),
        Route("/v1/live/now", now),
        Route("/metrics", exposition),
        *Control(services, live).routes(),
    ]


def _file(files: dict[str, Asset], name: str, request: Request) -> Response:
    asset = files.get(name)
    if asset is None:
        raise NotFoundError(f"the dashboard has no file '{name[:80]}'")
    headers = {**_HEADERS, "ETag": asset.tag}
    if request.headers.get("if-none-match") == asset.tag:
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media_type, headers=headers)
