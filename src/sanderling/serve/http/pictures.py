"""Routes that take a picture as it is: what is on it, and where."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from sanderling.core.errors import OptionError
from sanderling.core.tensor import Feeds
from sanderling.model.manifest import Manifest
from sanderling.run.vision.detections import DetectionRules
from sanderling.serve.errors import RequestError
from sanderling.tasks.vision import (
    best_detections,
    best_labels,
    check_classifier,
    check_detector,
    check_pictures,
    picture_feeds,
    placed_feeds,
)

if TYPE_CHECKING:
    from sanderling.serve.data_plane import ServedModel
    from sanderling.serve.services import Services

_TOP = 5
_RULES = DetectionRules()
T = TypeVar("T")


def picture_routes(services: Services) -> list[BaseRoute]:
    """``/v1/classify`` and ``/v1/detect``."""
    pictures = _Pictures(services)
    return [
        Route("/v1/classify", pictures.classify, methods=["POST"]),
        Route("/v1/detect", pictures.detect, methods=["POST"]),
    ]


class _Pictures:
    def __init__(self, services: Services) -> None:
        self._plane = services.plane

    async def classify(self, request: Request) -> Response:
        """The likeliest classes; ``model``, ``version`` and ``top`` are in the query."""
        top = _number(request, "top", _TOP, least=1, most=1000)
        model = self._find(request, check_classifier, "classifier")
        feeds = await _read(picture_feeds, model, await request.body())
        model, outputs = await self._run(model, feeds)
        labels = best_labels(model.session.manifest, outputs, top=int(top))
        return _answer(model, {"labels": [label.model_dump() for label in labels]})

    async def detect(self, request: Request) -> Response:
        """Objects and their boxes; ``model``, ``version``, ``score`` and ``overlap`` are in the query."""
        least = _number(request, "score", _RULES.least_score, least=0, most=1)
        overlap = _number(request, "overlap", _RULES.most_overlap, least=0, most=1)
        model = self._find(request, check_detector, "detector")
        feeds, placement = await _read(placed_feeds, model, await request.body())
        model, outputs = await self._run(model, feeds)
        rules = DetectionRules(least_score=least, most_overlap=overlap)
        found = best_detections(model.session.manifest, outputs, placement, rules)
        size = {"width": placement.source_width, "height": placement.source_height}
        return _answer(model, {"objects": [each.model_dump(exclude_none=True) for each in found], "boxes_in": size})

    def _find(self, request: Request, check: Callable[[Manifest], object], kind: str) -> ServedModel:
        """The model that the query names, or the only one that can."""
        name, version = request.query_params.get("model", ""), request.query_params.get("version", "")
        if not name:
            able = sorted({model.name for model in self._plane.models if _can(model, check)})
            if not able:
                there = ", ".join(sorted({model.name for model in self._plane.models})) or "none"
                raise OptionError(f"this server has no {kind} of pictures: its models are {there}")
            if len(able) > 1:
                raise OptionError(
                    f"this server has {len(able)} models that are a {kind} of pictures: name one with ?model=NAME; "
                    f"available are {', '.join(able)}"
                )
            name = able[0]
        model = self._plane.model(name, version)
        check_pictures(model.session.manifest)
        check(model.session.manifest)
        return model

    async def _run(self, model: ServedModel, feeds: Feeds) -> tuple[ServedModel, Feeds]:
        """The version that has answered, and its results."""
        answering = [model]
        outputs = await asyncio.wrap_future(self._plane.submit(model, feeds, moved=answering.append))
        return answering[-1], outputs


async def _read(make: Callable[[Manifest, BinaryIO], T], model: ServedModel, body: bytes) -> T:
    """What is made of a request's picture, beside the event loop."""
    if not body:
        raise RequestError("the body is empty: expected a picture, such as a JPEG or PNG file")
    return await asyncio.to_thread(make, model.session.manifest, io.BytesIO(body))


def _can(model: ServedModel, check: Callable[[Manifest], object]) -> bool:
    try:
        check_pictures(model.session.manifest)
        check(model.session.manifest)
    except OptionError:
        return False
    return True


def _number(request: Request, name: str, default: float, *, least: float, most: float) -> float:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise OptionError(f"query '{name}' is {text[:40]}: expected a number from {least:g} to {most:g}")
    return value


def _answer(model: ServedModel, content: dict[str, Any]) -> Response:
    return JSONResponse({"model": model.name, "version": model.version, **content})
