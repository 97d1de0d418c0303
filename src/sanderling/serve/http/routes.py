"""Every route that is no inference of tensors: the protocol's, Triton's extensions, pictures, and OpenAI's.

Source: Open Inference Protocol, REST; Triton's extensions "model repository", "model configuration", "statistics" and
"system shared memory".
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from sanderling.core.errors import SanderlingError
from sanderling.serve.descriptions import describe_config, describe_model, describe_server
from sanderling.serve.errors import (
    MethodError,
    NotFoundError,
    NotReadyError,
    RequestError,
    TooLargeError,
    code_of,
    told,
)
from sanderling.serve.http.answers import error_headers
from sanderling.serve.http.asgi_inference import inference_routes
from sanderling.serve.http.openapi import Description, document_route
from sanderling.serve.http.operations import PICTURES, PROTOCOL
from sanderling.serve.http.pictures import picture_routes
from sanderling.serve.openai.errors import error_object, is_ours
from sanderling.serve.openai.operations import OPENAI
from sanderling.serve.openai.routes import openai_routes

if TYPE_CHECKING:
    from sanderling.serve.data_plane import ServedModel
    from sanderling.serve.services import Services

_JSON_BYTES = 2**20  # of a command: it is read in the event loop
Handler = Callable[[Request], Awaitable[Response]]


def make_app(
    services: Services, extra: Sequence[BaseRoute] = (), descriptions: Sequence[Description] = ()
) -> Starlette:
    """The application with all routes.

    Args:
        services: that they show.
        extra: routes of other parts of the server, such as the dashboard's.
        descriptions: of these.
    """
    models, control, memory = _Models(services), _Control(services), _Memory(services)
    routes: list[BaseRoute] = [
        Route("/v2", _server),
        Route("/v2/health/live", _live),
        Route("/v2/health/ready", models.server_ready),
        Route("/v2/models/stats", models.all_statistics),
        *_model_routes("", models.describe),
        *_model_routes("/ready", models.ready),
        *_model_routes("/config", models.config),
        *_model_routes("/stats", models.statistics),
        Route("/v2/repository/index", control.index, methods=["POST"]),
        Route("/v2/repository/models/{name}/load", control.load, methods=["POST"]),
        Route("/v2/repository/models/{name}/unload", control.unload, methods=["POST"]),
        Route("/v2/systemsharedmemory/status", memory.status),
        Route("/v2/systemsharedmemory/region/{region}/status", memory.status),
        Route("/v2/systemsharedmemory/region/{region}/register", memory.register, methods=["POST"]),
        Route("/v2/systemsharedmemory/region/{region}/unregister", memory.unregister, methods=["POST"]),
        Route("/v2/systemsharedmemory/unregister", memory.unregister, methods=["POST"]),
        *inference_routes(services),
        *picture_routes(services),
        *openai_routes(services),
        *extra,
    ]
    routes.append(document_route([PROTOCOL, PICTURES, OPENAI, *descriptions], routes))
    handlers: dict[Any, Any] = {SanderlingError: _on_error, HTTPException: _on_http}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False  # by a Host that the client chooses
    return app


async def read_json(request: Request) -> dict[str, Any]:
    """The object in a request's body; an empty one where there is no body.

    Raises:
        RequestError: it is no JSON object.
        TooLargeError: it is longer than any command.
    """
    body = await request.body()
    if not body:
        return {}
    if len(body) > _JSON_BYTES:
        raise TooLargeError(f"the body has {len(body)} bytes: at most {_JSON_BYTES} are taken by a command")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the request is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise RequestError(f"the request is a JSON {type(content).__name__}: expected an object")
    return content


def _model_routes(tail: str, handler: Handler) -> list[BaseRoute]:
    return [
        Route(f"/v2/models/{{name}}{tail}", handler),
        Route(f"/v2/models/{{name}}/versions/{{version}}{tail}", handler),
    ]


async def _server(request: Request) -> Response:  # noqa: ARG001
    return JSONResponse(describe_server())


async def _live(request: Request) -> Response:  # noqa: ARG001
    return JSONResponse({"live": True})


class _Models:
    """What is told about models."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._plane = services.plane

    async def server_ready(self, request: Request) -> Response:  # noqa: ARG002
        """Whether requests would be run."""
        if not self._services.is_ready:
            raise NotReadyError("the server is not ready: it starts, shuts down, or a model fails")
        return JSONResponse({"ready": True})

    async def describe(self, request: Request) -> Response:
        """Tensors and versions."""
        return JSONResponse(describe_model(self._plane, self._model(request)))

    async def ready(self, request: Request) -> Response:
        """Whether requests of this model would be run."""
        model = self._model(request)
        if not (self._services.is_started and self._plane.is_accepting and model.is_ready):
            raise NotReadyError(f"model '{model.name}' is not ready")
        return JSONResponse({"name": model.name, "ready": True})

    async def config(self, request: Request) -> Response:
        """The configuration."""
        return JSONResponse(describe_config(self._model(request)))

    async def statistics(self, request: Request) -> Response:
        """Of one version, or of all versions of a model."""
        name, version = request.path_params["name"], request.path_params.get("version", "")
        self._plane.model(name, version)
        found = [model for model in self._plane.models if model.name == name and version in ("", model.version)]
        return _statistics(found)

    async def all_statistics(self, request: Request) -> Response:  # noqa: ARG002
        """Of all models."""
        return _statistics(self._plane.models)

    def _model(self, request: Request) -> ServedModel:
        name, version = request.path_params["name"], request.path_params.get("version", "")
        return self._plane.model(name, version or self._plane.default_version(name))


def _statistics(models: Sequence[ServedModel]) -> Response:
    return JSONResponse({"model_stats": [model.statistics.to_json(model.name, model.version) for model in models]})


class _Control:
    """Loads and unloads models; what changes anything needs the token."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def index(self, request: Request) -> Response:
        """Everything that is loaded or could be."""
        ready_only = (await read_json(request)).get("ready", False)
        if not isinstance(ready_only, bool):
            raise RequestError(f"'ready' is {str(ready_only)[:40]}: expected true or false")
        found = await asyncio.to_thread(lambda: self._services.repository.index(ready_only=ready_only))
        return JSONResponse(list(map(dict, found)))

    async def load(self, request: Request) -> Response:
        """Load a model."""
        parameters = await self._parameters(request)
        await asyncio.to_thread(self._services.repository.load, request.path_params["name"], parameters)
        return Response(status_code=200)

    async def unload(self, request: Request) -> Response:
        """Unload a model."""
        parameters = await self._parameters(request)
        await asyncio.to_thread(self._services.repository.unload, request.path_params["name"], parameters)
        return Response(status_code=200)

    async def _parameters(self, request: Request) -> dict[str, Any]:
        self._services.check_token(request.headers.get("authorization", ""))
        parameters = (await read_json(request)).get("parameters", {})
        if not isinstance(parameters, dict):
            raise RequestError(f"'parameters' is a {type(parameters).__name__}: expected an object")
        return parameters


class _Memory:
    """Shared memory that clients lend."""

    def __init__(self, services: Services) -> None:
        self._memory = services.memory

    async def status(self, request: Request) -> Response:
        """Regions that are registered."""
        regions = self._memory.regions(request.path_params.get("region", ""))
        return JSONResponse(
            [
                {"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.size_bytes}
                for region in regions
            ]
        )

    async def register(self, request: Request) -> Response:
        """Map a region."""
        content = await read_json(request)
        key, offset, size_bytes = content.get("key"), content.get("offset", 0), content.get("byte_size")
        if not isinstance(key, str) or type(offset) is not int or type(size_bytes) is not int:
            raise RequestError(
                "a region needs 'key' (string), 'byte_size' and, if it is not 0, 'offset' (whole numbers)"
            )
        self._memory.register(request.path_params["region"], key, offset=offset, size_bytes=size_bytes)
        return Response(status_code=200)

    async def unregister(self, request: Request) -> Response:
        """Forget one region or all."""
        self._memory.unregister(request.path_params.get("region", ""))
        return Response(status_code=200)


async def _on_error(request: Request, error: Exception) -> Response:
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    return JSONResponse({"error": _told_of(request, error)}, code_of(error).status, headers)


def _told_of(request: Request, error: Exception) -> str | dict[str, Any]:
    return error_object(error) if is_ours(request.url.path) else told(error)


async def _on_http(request: Request, error: Exception) -> Response:
    """The framework's own errors: an unknown route, or a method that it does not know."""
    assert isinstance(error, HTTPException)
    shown = request.url.path[:200]
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        unknown = MethodError(f"{shown} does not know {request.method[:20]}: expected {allowed}")
        return JSONResponse({"error": _told_of(request, unknown)}, code_of(unknown).status, {"Allow": allowed})
    if error.status_code == 404:
        ours: SanderlingError = NotFoundError(
            f"there is no {shown} here: routes are those of the Open Inference Protocol, under /v2"
        )
    else:
        ours = RequestError(str(error.detail))
    return await _on_error(request, ours)
