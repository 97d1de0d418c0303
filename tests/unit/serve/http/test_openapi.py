"""The OpenAPI document says what the routes are."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from starlette.testclient import TestClient

from sanderling.run.pool import Pool
from sanderling.serve.control import DESCRIPTION as CONTROL
from sanderling.serve.dashboard import DESCRIPTION as DASHBOARD
from sanderling.serve.dashboard import dashboard_routes
from sanderling.serve.data_plane import DataPlane
from sanderling.serve.http.openapi import JSON, Description, Operation, keys_of
from sanderling.serve.http.operations import VERSIONS
from sanderling.serve.http.routes import make_app
from sanderling.serve.http.versions import version_routes
from sanderling.serve.live import Live
from sanderling.serve.log import Log
from sanderling.serve.metrics import Metrics
from sanderling.serve.repository import Repository
from sanderling.serve.services import Services
from sanderling.serve.settings import Settings


@pytest.fixture(scope="module")
def services():
    with Pool() as pool:
        yield Services(Settings(packages=("none.sdl",)), DataPlane(pool), Log())


@pytest.fixture(scope="module")
def app(services, tmp_path_factory):
    """With every route that a server can have."""
    plane = services.plane
    repository = Repository(tmp_path_factory.mktemp("repository"), plane.pool, plane)
    with Live(plane) as live:
        extra = [*dashboard_routes(services, live, Metrics(plane)), *version_routes(services, repository)]
        yield make_app(services, extra, [DASHBOARD, CONTROL, VERSIONS])
    repository.close()


@pytest.fixture(scope="module")
def document(app) -> dict[str, Any]:
    return TestClient(app).get("/openapi.json").json()


def test_every_route_is_described_and_every_description_has_a_route(app, document):
    described = [(path, method.upper()) for path, methods in document["paths"].items() for method in methods]
    assert sorted(described) == sorted(keys_of(app.routes))


def test_every_schema_that_is_referred_to_is_there_and_is_one(document):
    schemas = document["components"]["schemas"]
    assert references(document) == schemas.keys()
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def references(content: object) -> set[str]:
    """Names of all schemas that are referred to."""
    if isinstance(content, list):
        return set().union(*map(references, content))
    if not isinstance(content, dict):
        return set()
    own = {content["$ref"].removeprefix("#/components/schemas/")} if "$ref" in content else set()
    return own.union(*map(references, content.values()))


def test_what_needs_the_token_says_so(document):
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert ("security" in operation) == ("401" in operation["responses"]), path
    assert "security" in document["paths"]["/v2/repository/models/{name}/load"]["post"]
    assert "security" not in document["paths"]["/v2/repository/index"]["post"]


def test_a_server_without_a_repository_describes_none(services):
    paths = TestClient(make_app(services, (), [VERSIONS])).get("/openapi.json").json()["paths"]
    assert "/v2/repository/models/{name}/rollback" not in paths
    assert "/v1/control" not in paths


def test_another_part_describes_its_own_routes(services):
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def hello(request):  # noqa: ARG001
        return JSONResponse({})

    part = Description("other", (Operation("GET", "/v1/other", "Another part", {JSON: {"type": "object"}}),))
    paths = TestClient(make_app(services, [Route("/v1/other", hello)], [part])).get("/openapi.json").json()["paths"]
    assert paths["/v1/other"]["get"]["tags"] == ["other"]


@pytest.mark.parametrize("path", ["/v2/", "/v2/health/live/", "/openapi.json/"])
def test_a_route_with_a_slash_more_is_none_and_sends_nobody_elsewhere(app, path):
    answer = TestClient(app).get(path, follow_redirects=False)
    assert (answer.status_code, list(answer.json())) == (404, ["error"])


def test_a_wrong_method_is_told_the_right_one(app):
    answer = TestClient(app).get("/v2/models/tiny/infer")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert "does not know GET: expected POST" in answer.json()["error"]
