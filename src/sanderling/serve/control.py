"""What the dashboard can change: the way of running, what is loaded, and a trial of another policy. For a token only.

The token comes in a header that no foreign page can send for a user, so a link or a form cannot do anything here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sanderling.run.policy.document import parse_policy
from sanderling.serve.errors import RequestError, TooLargeError
from sanderling.serve.http.openapi import JSON, TEXT, Description, Operation, Schema, model_ref
from sanderling.serve.snapshot import lane_parts, model_key
from sanderling.serve.trial import Trial, try_policy

if TYPE_CHECKING:
    from sanderling.serve.data_plane import ServedModel
    from sanderling.serve.live import Live
    from sanderling.serve.services import Services

_LIMIT_BYTES = 1 << 20
_WHOLE: Schema = {"type": "integer"}
_FLAG: Schema = {"type": "boolean"}
_Handler = Callable[[Request], Awaitable[Response]]
Word = Annotated[str, StringConstraints(max_length=256)]


class Command(BaseModel):
    """What every command names; the default version without one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Word
    version: Word = ""


class Switch(Command):
    """Another device or precision; without both, the policy chooses again."""

    device: Word | None = None
    precision: Word | None = None


class TryPolicy(Command):
    """A policy file's text."""

    policy: str


_Form = TypeVar("_Form", bound=Command)


def _said(**properties: Schema) -> dict[str, Schema]:
    return {JSON: {"type": "object", "properties": properties, "required": list(properties)}}


def _command(path: str, summary: str, answers: dict[str, Schema], form: type[Command]) -> Operation:
    return Operation(
        "POST",
        path,
        summary,
        answers,
        body={JSON: model_ref(form)},
        needs_body=True,
        errors=(404, 409, 501),
        needs_token=True,
    )


DESCRIPTION = Description(
    "control",
    (
        Operation("GET", "/v1/control", "Whether the token is right", _said(token=TEXT), needs_token=True),
        _command("/v1/control/switch", "Use another device or precision", _said(lane=TEXT), Switch),
        _command("/v1/control/load", "Load a model into memory", _said(lane=TEXT, size_bytes=_WHOLE), Command),
        _command(
            "/v1/control/release",
            "Give a model's memory back until its next request",
            _said(released=_FLAG, released_bytes=_WHOLE),
            Command,
        ),
        Operation(
            "GET",
            "/v1/control/policy",
            "The policy that a model follows",
            _said(model=TEXT, version=TEXT, policy=TEXT),
            query={"model": TEXT, "version": TEXT},
            errors=(404,),
            needs_token=True,
        ),
        _command(
            "/v1/control/policy/try", "Play the last minutes with another policy", {JSON: model_ref(Trial)}, TryPolicy
        ),
    ),
    models=(Command, Switch, TryPolicy, Trial),
)


class Control:
    """Carries out commands.

    Args:
        services: with the models, and the token that every command must bring.
        live: that knows the last minutes.
    """

    def __init__(self, services: Services, live: Live) -> None:
        self._services = services
        self._plane = services.plane
        self._live = live

    def routes(self) -> list[Route]:
        """All commands as routes of an application."""
        commands: tuple[tuple[str, str, _Handler], ...] = (
            ("GET", "/v1/control", self._hello),
            ("POST", "/v1/control/switch", self._switch),
            ("POST", "/v1/control/load", self._load),
            ("POST", "/v1/control/release", self._release),
            ("GET", "/v1/control/policy", self._policy),
            ("POST", "/v1/control/policy/try", self._try),
        )
        return [Route(path, partial(self._answer, handler), methods=[method]) for method, path, handler in commands]

    async def _answer(self, handler: _Handler, request: Request) -> Response:
        self._services.check_token(request.headers.get("authorization", ""))
        return await handler(request)

    async def _hello(self, _: Request) -> Response:
        return JSONResponse({"token": "accepted"})

    async def _switch(self, request: Request) -> Response:
        command = await _read(request, Switch)
        session = self._model(command).tensors
        lane = await run_in_threadpool(session.switch, device=command.device, precision=command.precision)
        return JSONResponse({"lane": lane})

    async def _load(self, request: Request) -> Response:
        session = self._model(await _read(request, Command)).session
        await run_in_threadpool(session.load)
        return JSONResponse({"lane": session.lane, "size_bytes": session.size_bytes})

    async def _release(self, request: Request) -> Response:
        session = self._model(await _read(request, Command)).session
        before_bytes = session.size_bytes
        released = await run_in_threadpool(session.release)
        return JSONResponse({"released": released, "released_bytes": before_bytes - session.size_bytes})

    async def _policy(self, request: Request) -> Response:
        query = request.query_params
        model = self._plane.model(query.get("model", ""), query.get("version", ""))
        return JSONResponse({"model": model.name, "version": model.version, "policy": model.session.policy.to_text()})

    async def _try(self, request: Request) -> Response:
        command = await _read(request, TryPolicy)
        model = self._model(command)
        trial = await run_in_threadpool(self._tried, model, command.policy)
        return JSONResponse(trial.model_dump(mode="json"))

    def _tried(self, model: ServedModel, text: str) -> Trial:
        """Play the last minutes of every model that shares its devices and follows the same policy."""
        proposed, current = parse_policy(text), model.session.policy
        runtime = model.session.runtime
        alike = [other for other in self._plane.models if other.session.runtime is runtime]
        models = [other for other in alike if other.session.policy == current]
        kinds = {device: kind for other in models for device, kind in other.session.devices.items()}
        return try_policy(
            proposed,
            current,
            self._live.arrivals,
            {model_key(other): _measured(other) for other in models},
            kinds,
            self._live.samples,
        )

    def _model(self, command: Command) -> ServedModel:
        return self._plane.model(command.model, command.version)


async def _read(request: Request, form: type[_Form]) -> _Form:
    """The command in a body.

    Raises:
        TooLargeError: it is longer than any command.
        RequestError: it is no such command.
    """
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _LIMIT_BYTES:
            raise TooLargeError(f"a command has more than {_LIMIT_BYTES} bytes")
    try:
        return form.model_validate_json(bytes(body))
    except ValidationError as error:
        detail = error.errors()[0]
        place = ".".join(map(str, detail["loc"])) or "the command"
        raise RequestError(f"{place}: {detail['msg']}; expected {', '.join(form.model_fields)}") from error


def _measured(model: ServedModel) -> dict[str, dict[int, float]]:
    """Milliseconds by rows of the first way of running on each device that was used, the one in use before others."""
    session = model.session
    found: dict[str, dict[int, float]] = {}
    for index in sorted(range(len(session.lanes)), key=lambda index: session.lanes[index] != session.lane):
        latency = session.runtime.latency(session.name, index)
        device = lane_parts(session.lanes[index]).device
        if latency.sizes and device not in found:
            found[device] = dict(zip(latency.sizes, latency.means_ms, strict=True))
    return found
