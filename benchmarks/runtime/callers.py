"""Callers of a drill: they run, submit and await, with priorities and deadlines, and cancel what they like."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.runtime.ledger import CANCELLED, Account
from sanderling.core.errors import QueueFullError, SanderlingError, TensorError
from sanderling.core.tensor import Feeds
from sanderling.run.results import Outputs
from sanderling.run.session import Session
from tests.requests import numbered

_IN_FLIGHT = 6
_BACK_OFF_S = 0.001
_ROWS = (1, 1, 1, 2, 3)
TOLD_S = 20.0  # in which a request must be told something


@dataclass(frozen=True)
class Load:
    """What callers do.

    Attributes:
        deadlines_ms: that they choose from.
        cancelled: share of requests that their callers cancel.
        malformed: share of further requests that no model takes.
        odd: whether arrays are strided, turned or read-only.
        threads: of each of the three kinds of callers.
    """

    deadlines_ms: tuple[float | None, ...] = (None, None, 60_000.0)
    cancelled: float = 0.0
    malformed: float = 0.0
    odd: bool = False
    threads: int = 3


class Callers:
    """Threads that call whatever session there is, until they are stopped."""

    def __init__(self, session: Callable[[], Session], account: Account, load: Load) -> None:
        self._session, self._account, self._load = session, account, load
        self._stop = threading.Event()
        kinds = (self._run, self._submit, self._await)
        self._threads = [
            threading.Thread(target=kind, args=(place,), name=f"caller-{place}", daemon=True)
            for place, kind in enumerate(kinds * load.threads)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> list[str]:
        """Let every request be told its fate; returns the names of callers that still wait."""
        self._stop.set()
        for thread in self._threads:
            thread.join(TOLD_S + 5)
        return [thread.name for thread in self._threads if thread.is_alive()]

    def _run(self, place: int) -> None:
        chance = random.Random(place)
        while not self._stop.is_set():
            number, feeds, options = self._request(chance)
            try:
                outcome: Outputs | BaseException = self._session().run(feeds, **options)
            except SanderlingError as error:
                outcome = error
                _back_off(error)
            self._account.told(number, outcome)

    def _submit(self, place: int) -> None:
        chance = random.Random(place)
        flying: deque[Future[Outputs]] = deque()
        while not self._stop.is_set() or flying:
            if self._stop.is_set() or len(flying) >= _IN_FLIGHT:
                _settled(flying.popleft())
                continue
            number, feeds, options = self._request(chance)
            session = self._session()
            stream = (id(session), place, options["priority"])
            try:
                future = session.submit(feeds, **options)
            except SanderlingError as error:
                self._account.told(number, error)
                _back_off(error)
                continue
            future.add_done_callback(partial(self._told, number, stream))
            flying.append(future)
            if chance.random() < self._load.cancelled:
                chance.choice(flying).cancel()

    def _told(self, number: int, stream: Hashable, future: Future[Outputs]) -> None:
        self._account.told(number, _outcome(future), stream=stream)

    def _await(self, place: int) -> None:
        asyncio.run(self._awaiting(place))

    async def _awaiting(self, place: int) -> None:
        chance = random.Random(place)
        flying: set[asyncio.Task[None]] = set()
        while not self._stop.is_set():
            flying.add(asyncio.create_task(self._awaited(*self._request(chance))))
            if chance.random() < self._load.cancelled:
                await asyncio.sleep(0)
                chance.choice(list(flying)).cancel()
            if len(flying) >= _IN_FLIGHT:
                _, flying = await asyncio.wait(flying, return_when=asyncio.FIRST_COMPLETED)
        if flying:
            await asyncio.wait(flying, timeout=TOLD_S)

    async def _awaited(self, number: int, feeds: Feeds, options: dict[str, Any]) -> None:
        try:
            outcome: Outputs | BaseException | str = await self._session().run_async(feeds, **options)
        except SanderlingError as error:
            outcome = error
        except asyncio.CancelledError:
            outcome = CANCELLED
        self._account.told(number, outcome)
        if isinstance(outcome, QueueFullError):
            await asyncio.sleep(_BACK_OFF_S)

    def _request(self, chance: random.Random) -> tuple[int, Feeds, dict[str, Any]]:
        """A request; before some, one that must be refused."""
        if chance.random() < self._load.malformed:
            self._malformed(chance)
        rows = chance.choice(_ROWS)
        number = self._account.issue(rows)
        feeds = numbered(number, rows)
        if self._load.odd:
            feeds = {name: _odd(array, chance) for name, array in feeds.items()}
        options = {"deadline_ms": chance.choice(self._load.deadlines_ms), "priority": chance.choice((-1, 0, 0, 1))}
        return number, feeds, options

    def _malformed(self, chance: random.Random) -> None:
        good = numbered(0)
        bad: dict[str, Any] = chance.choice(
            (
                {"a": good["a"]},
                {**good, "c": good["a"]},
                {**good, "b": good["b"].astype(np.float64)},
                {**good, "b": good["b"][:, :2]},
                {**good, "b": np.zeros((2, 3), np.float32)},
                {**good, "b": good["b"].tolist()},
                numbered(0, 0),
            )
        )
        number = self._account.issue(1)
        try:
            outcome: Outputs | BaseException = self._session().run(bad)
        except TensorError as error:
            outcome = error
        self._account.told(number, outcome)


def _back_off(error: SanderlingError) -> None:
    """Callers that asked again at once would leave no processor time for what they ask for."""
    if isinstance(error, QueueFullError):
        time.sleep(_BACK_OFF_S)


def _settled(future: Future[Outputs]) -> None:
    """Wait until a future is done, however it ends."""
    try:
        future.exception(TOLD_S)
    except (CancelledError, FutureTimeout):
        return


def _outcome(future: Future[Outputs]) -> Outputs | BaseException | str:
    if future.cancelled():
        return CANCELLED
    return future.exception() or future.result()


def _odd(array: np.ndarray[Any, Any], chance: random.Random) -> np.ndarray[Any, Any]:
    kind = chance.randrange(4)
    if kind == 0:
        return np.repeat(array, 2, axis=1)[:, ::2]
    if kind == 1:
        return np.asfortranarray(array)
    if kind == 2:
        return array[::-1].copy()[::-1]
    array = array.copy()
    array.flags.writeable = False
    return array
