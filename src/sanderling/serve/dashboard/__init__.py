"""The dashboard: one page, its style and its scripts, and the stream that moves it. Nothing comes from elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sanderling.serve.errors import NotFoundError, code_of, told

if TYPE_CHECKING:
    from sanderling.serve.live import Live

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_PAGE = "index.html"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


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


def routes(live: Live) -> list[Route]:
    """The page, and what it shows: as a stream at ``/v1/live``, once at ``/v1/live/now``."""
    files = assets()

    async def page(request: Request) -> Response:
        return _file(files, _PAGE, request)

    async def file(request: Request) -> Response:
        return _file(files, request.path_params["name"], request)

    async def stream(_: Request) -> Response:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}
        return StreamingResponse(_messages(live), media_type="text/event-stream", headers=headers)

    async def now(_: Request) -> Response:
        return Response(live.snapshot().model_dump_json(), media_type="application/json")

    return [
        Route("/", page),
        Route("/dashboard/{name}", file),
        Route("/v1/live", stream),
        Route("/v1/live/now", now),
    ]


async def _messages(live: Live) -> AsyncIterator[bytes]:
    async for message in live.watch():
        yield message


def _file(files: dict[str, Asset], name: str, request: Request) -> Response:
    asset = files.get(name)
    if asset is None:
        error = NotFoundError(f"the dashboard has no file '{name[:80]}'")
        return JSONResponse({"error": told(error)}, code_of(error).status)
    headers = {**_HEADERS, "ETag": asset.tag}
    if request.headers.get("if-none-match") == asset.tag:
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media_type, headers=headers)
