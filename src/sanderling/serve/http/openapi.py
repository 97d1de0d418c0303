"""What the HTTP routes are, as one OpenAPI document: one entry a route, beside the routes and no part of them.

Source: OpenAPI Specification 3.1.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.metadata import version as version_of
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

Schema = Mapping[str, Any]
JSON = "application/json"
BYTES: Schema = {"type": "string", "format": "binary"}
TEXT: Schema = {"type": "string"}
_PATH = "/openapi.json"
_IMPLIED = frozenset({"HEAD"})  # every GET route answers it
_PARAMETER = re.compile(r"{(\w+)}")
_SCHEMAS = "#/components/schemas/"
_NAME: Schema = {"type": "string", "minLength": 1}
_ERROR = "Error"  # of the routes that say nothing else
_ERROR_SCHEMA: Schema = {
    "type": "object",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
    "additionalProperties": False,
}
_ERRORS: Mapping[int, str] = {
    400: "the request is not what it says, or asks for what is not there",
    401: "the token is missing or wrong",
    404: "there is no such model, version, region or file",
    405: "the route knows other methods",
    408: "the request did not come in time",
    409: "it is there already, or is being changed",
    413: "the body is over its limit",
    415: "the body's encoding is neither gzip nor deflate",
    422: "a new version does not compute what its golden vectors say",
    431: "the headers are over their limits",
    500: "the engine failed, or a result failed its check",
    501: "this server does not allow it, or cannot do it",
    503: "too many requests wait, or the server starts, shuts down or fails: try again later",
    504: "the deadline cannot be kept",
}
_EVERYWHERE = (400, 405, 408, 413, 415, 431, 500, 503)


def ref(name: str) -> Schema:
    """A schema of the document by its name."""
    return {"$ref": _SCHEMAS + name}


def model_ref(model: type[BaseModel]) -> Schema:
    """The schema of a model that is among the document's ``models``."""
    return ref(model.__name__)


ERROR = ref(_ERROR)


class Operation(NamedTuple):
    """What one method of one route takes and gives.

    Attributes:
        method: of HTTP, such as ``GET``.
        path: as the route has it, such as ``/v2/models/{name}``.
        summary: one line.
        answers: of status 200, schemas by their media type; empty where it has no body.
        body: that is taken, schemas by media type; empty where there is none.
        needs_body: a request without it is refused.
        query: schemas of what may stand in the query, by name.
        headers: schemas of headers that it looks at, by name.
        errors: statuses beside those that any route may give.
        needs_token: it is a control route.
        error: schema of its errors; that of all routes by default.
    """

    method: str
    path: str
    summary: str
    answers: Mapping[str, Schema] = {}
    body: Mapping[str, Schema] = {}
    needs_body: bool = False
    query: Mapping[str, Schema] = {}
    headers: Mapping[str, Schema] = {}
    errors: tuple[int, ...] = ()
    needs_token: bool = False
    error: Schema = ERROR

    @property
    def key(self) -> tuple[str, str]:
        """Path and method."""
        return self.path, self.method


class Description(NamedTuple):
    """Operations of one part of the server, and the schemas that they refer to.

    Attributes:
        schemas: by name.
        models: that schemas are made of; each is called by its class's name.
    """

    tag: str
    operations: tuple[Operation, ...]
    schemas: Mapping[str, Schema] = {}
    models: tuple[type[BaseModel], ...] = ()


def document(descriptions: Iterable[Description], served: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The document of the operations that a server has.

    Args:
        descriptions: of all parts, also of those that this server may not have.
        served: paths and methods of its routes.
    """
    there = set(served)
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {}
    models: list[type[BaseModel]] = []
    for each in descriptions:
        operations = [operation for operation in each.operations if operation.key in there]
        if operations:
            schemas |= each.schemas
            models += each.models
        for operation in operations:
            paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, each.tag)
    _, made = models_json_schema([(model, "validation") for model in models], ref_template=f"{_SCHEMAS}{{model}}")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sanderling",
            "version": version_of("sanderling"),
            "description": "The Open Inference Protocol v2 with Triton's extensions, and Sanderling's own routes.",
        },
        "paths": paths,
        "components": {
            "schemas": {_ERROR: _ERROR_SCHEMA, **schemas, **made.get("$defs", {})},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def keys_of(routes: Iterable[BaseRoute]) -> list[tuple[str, str]]:
    """Paths and methods of routes."""
    known = [route for route in routes if isinstance(route, Route)]
    return [(route.path, method) for route in known for method in sorted((route.methods or set()) - _IMPLIED)]


def document_route(descriptions: Iterable[Description], routes: Iterable[BaseRoute]) -> Route:
    """``/openapi.json``: the document of these routes and of itself."""
    served = [
        (route.path, method)
        for route in routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - _IMPLIED
    ]
    content = document([*descriptions, DESCRIPTION], [*served, (_PATH, "GET")])

    async def answer(request: Request) -> Response:  # noqa: ARG001
        return JSONResponse(content)

    return Route(_PATH, answer)


def _described(operation: Operation, tag: str) -> dict[str, Any]:
    names = _PARAMETER.findall(operation.path)
    parameters = [
        *({"name": name, "in": "path", "required": True, "schema": _NAME} for name in names),
        *({"name": name, "in": "query", "schema": schema} for name, schema in operation.query.items()),
        *({"name": name, "in": "header", "schema": schema} for name, schema in operation.headers.items()),
    ]
    errors = {*_EVERYWHERE, *operation.errors, *((401,) if operation.needs_token else ()), *((404,) if names else ())}
    answers: dict[str, Any] = {"200": {"description": "done", **_content(operation.answers)}}
    for status in sorted(errors):
        answers[str(status)] = {"description": _ERRORS[status], **_content({JSON: operation.error})}
    described: dict[str, Any] = {"tags": [tag], "summary": operation.summary, "responses": answers}
    if parameters:
        described["parameters"] = parameters
    if operation.body:
        described["requestBody"] = {"required": operation.needs_body, **_content(operation.body)}
    if operation.needs_token:
        described["security"] = [{"token": []}]
    return described


def _content(schemas: Mapping[str, Schema]) -> dict[str, Any]:
    return {"content": {kind: {"schema": schema} for kind, schema in schemas.items()}} if schemas else {}


DESCRIPTION = Description(
    "server",
    (Operation("GET", _PATH, "This document", {JSON: {"type": "object", "required": ["openapi", "info", "paths"]}}),),
)
