"""Inference as routes of the ASGI application, for a server of somebody else; ours has its own protocol for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sanderling.core.errors import GuardError
from sanderling.serve.data_plane import explained
from sanderling.serve.errors import RequestError, TooLargeError
from sanderling.serve.http.body import unpack
from sanderling.serve.http.inference import InferRequest, has_long_answer, is_long, read_request, write_response
from sanderling.serve.output_places import OutputPlaces

if TYPE_CHECKING:
    from sanderling.serve.data_plane import ServedModel
    from sanderling.serve.services import Services

_LENGTH = "inference-header-content-length"


def inference_routes(services: Services) -> list[BaseRoute]:
    """``/v2/models/NAME/infer``, with and without a version."""
    inference = _Inference(services)
    return [
        Route("/v2/models/{name}/infer", inference.infer, methods=["POST"]),
        Route("/v2/models/{name}/versions/{version}/infer", inference.infer, methods=["POST"]),
    ]


class _Inference:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def infer(self, request: Request) -> Response:
        """Run a request and give its results as the client wants them."""
        version = request.path_params.get("version", "")
        model = self._services.plane.model(request.path_params["name"], version)
        body = await self._body(request)
        timeout_us, length = _whole(request, "timeout"), _whole(request, _LENGTH)
        left_ms = timeout_us / 1e3 if timeout_us else None
        if is_long(body, length):
            read = await self._services.aside.run(read_request, body, length, self._services.memory, left_ms=left_ms)
        else:
            read = read_request(body, length, self._services.memory, left_ms=left_ms)
        return await self._run(model, read, is_pinned=bool(version))

    async def _run(self, model: ServedModel, request: InferRequest, *, is_pinned: bool) -> Response:
        places = OutputPlaces(request.places, model.session, request.feeds, self._services.memory)
        answering = [model]
        future = self._services.plane.submit(
            model,
            request.feeds,
            outputs=request.names,
            deadline_ms=request.deadline_ms,
            priority=request.priority,
            buffers=places.buffers,
            pinned=is_pinned,
            moved=answering.append,
        )
        try:
            outputs = await asyncio.wrap_future(future)
        except GuardError as error:
            raise explained(error, request.feeds) from error
        written, model = places.write(outputs), answering[-1]
        if has_long_answer(request, outputs):
            text, tails = await self._services.aside.run(write_response, model, request, outputs, written)
        else:
            text, tails = write_response(model, request, outputs, written)
        if not tails:
            return Response(text, media_type="application/json")
        return Response(
            b"".join([text, *tails]), media_type="application/octet-stream", headers={_LENGTH: str(len(text))}
        )

    async def _body(self, request: Request) -> memoryview:
        """The whole body, unpacked; never more than the limit of it."""
        limit = self._services.settings.limits.body_bytes
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > limit:
                raise TooLargeError(f"the body has more than {limit} bytes, which is the limit: send less at a time")
        encoding = request.headers.get("content-encoding", "").strip().lower().encode()
        if not encoding or encoding == b"identity":
            return memoryview(body)
        aligned_at = _whole(request, _LENGTH) or 0
        return await self._services.aside.run(unpack, memoryview(body), encoding, limit, aligned_at)


def _whole(request: Request, name: str) -> int | None:
    """A header that is a whole number; None where it is not there."""
    value = request.headers.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 20):
        raise RequestError(f"header {name} is '{value[:40]}': expected a whole number ≥ 0")
    return int(value)
