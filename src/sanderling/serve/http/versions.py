"""Routes that Triton does not have: going back to the version before, and letting a canary get all requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

if TYPE_CHECKING:
    from sanderling.serve.repository import Repository
    from sanderling.serve.services import Services


def version_routes(services: Services, repository: Repository) -> list[BaseRoute]:
    """``/v2/repository/models/NAME/rollback`` and ``/promote``; both need the token."""

    def route(verb: str, call: Callable[[str], str]) -> Route:
        async def answer(request: Request) -> Response:
            services.check_token(request.headers.get("authorization", ""))
            name = request.path_params["name"]
            return JSONResponse({"name": name, "version": await asyncio.to_thread(call, name)})

        return Route(f"/v2/repository/models/{{name}}/{verb}", answer, methods=["POST"])

    return [route("rollback", repository.rollback), route("promote", repository.promote)]
