"""An answer of a language model in an event loop: it comes from another thread, and is cancelled with its client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from sanderling.core.errors import EngineError
from sanderling.run.text.base import Sampling
from sanderling.run.text.session import Prompt
from sanderling.run.text.stream import TextResult, TextStream
from sanderling.serve.data_plane import Finished
from sanderling.serve.errors import NotReadyError
from sanderling.serve.openai.finding import find_model
from sanderling.serve.traces import TRACE

if TYPE_CHECKING:
    from sanderling.serve.data_plane import DataPlane, ServedModel


class Answer:
    """An answer that is on its way."""

    def __init__(self, stream: TextStream, news: asyncio.Event) -> None:
        self._stream = stream
        self._news = news

    async def pieces(self) -> AsyncGenerator[str, None]:
        """Its pieces as they come.

        Raises:
            SanderlingError: it has failed.
        """
        while True:
            self._news.clear()
            is_over = self._stream.is_over
            piece = self._stream.take()
            if piece:
                yield piece
            elif is_over:
                self._stream.result()
                return
            else:
                await self._news.wait()

    async def result(self) -> TextResult:
        """All of it, when it is over.

        Raises:
            SanderlingError: it has failed.
        """
        async for _ in self.pieces():
            pass
        return self._stream.result()


@asynccontextmanager
async def answering(
    plane: DataPlane,
    named: str,
    prompt: Prompt,
    sampling: Sampling,
    *,
    stop: Sequence[str] = (),
    schema: str = "",
) -> AsyncIterator[Answer]:
    """Let a model answer, and count it; leaving ends what is not over.

    Args:
        plane: that has the model.
        named: ``NAME`` or ``NAME:VERSION``.
        prompt: as of ``TextSession.start``.
        sampling: likewise.
        stop: likewise.
        schema: likewise.

    Raises:
        UnknownModelError: there is no such model.
        NotReadyError: the server shuts down.
        SanderlingError: the prompt or an option cannot be used, or too many requests wait.
    """
    model, since_s = find_model(plane, named), time.monotonic()
    plane.begin()
    stream: TextStream | None = None
    outcome: TextResult | BaseException = CancelledError()
    try:
        while stream is None:
            try:
                stream, news = await _start(plane, model, prompt, sampling, stop=stop, schema=schema)
            except EngineError:
                if not model.is_leaving:
                    raise
                model = find_model(plane, named)  # it was just replaced
        yield Answer(stream, news)
        outcome = stream.result()
    except Exception as error:
        outcome = error
        raise
    finally:
        tokens = 0
        if stream is not None:
            stream.cancel()
            tokens = stream.tokens
        plane.end(model, _finished(model, outcome, since_s=since_s)._replace(tokens=tokens, trace=TRACE.get()))


async def _start(
    plane: DataPlane, model: ServedModel, prompt: Prompt, sampling: Sampling, *, stop: Sequence[str], schema: str
) -> tuple[TextStream, asyncio.Event]:
    """Begin an answer; what tokenises a long prompt, or loads a model, holds nobody up."""
    if not plane.is_accepting:
        raise NotReadyError("the server shuts down and takes no more requests: ask another one")
    news, loop = asyncio.Event(), asyncio.get_running_loop()

    def notify() -> None:
        try:
            loop.call_soon_threadsafe(news.set)
        except RuntimeError:  # the loop is closed, and nobody waits
            return

    start = partial(model.text.start, prompt, sampling, stop=stop, schema=schema, notify=notify)
    return await asyncio.to_thread(start), news


def _finished(model: ServedModel, outcome: TextResult | BaseException, *, since_s: float) -> Finished:
    """What is told about an answer that its client has got, or did not get."""
    if not isinstance(outcome, TextResult):
        model.note(outcome)
        return model.refused(outcome, since_s=since_s)
    model.note(None)
    total_ms = (time.monotonic() - since_s) * 1e3
    return Finished(
        model.name,
        model.version,
        ok=True,
        queue_ms=max(total_ms - outcome.total_ms, 0.0),
        compute_ms=outcome.total_ms,
        total_ms=total_ms,
        batch_rows=1,
        batch_requests=1,
        lane=model.text.lane,
        device=model.text.device,
        precision=model.text.variant.precision.value,
        first_ms=outcome.first_ms,
    )
