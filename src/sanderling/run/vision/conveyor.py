"""Things that pass through stages, each stage in a thread of its own, so that all work at once.

With ``newest``, a thing is let in so that it finds no queue: at the time at which every stage, by what it took so far,
will be free when the thing gets there. What comes meanwhile is replaced by what comes after it. Where the second stage
takes longer than it did so far, what the first one made for it is replaced by newer things too. So latency stays near
the sum of the stages' times, however much too fast things come.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from sanderling.run.vision.channels import Channel, ChannelEndError

Drop = Literal["newest", "none"]
Stage = tuple[str, Callable[[Any], Any]]

DELIVERY = "deliver"
CAPTURE = "capture"
_WAITING = 2  # things between two stages where none may be dropped
_KEPT = 10_000  # durations of each stage
_RECENT = 15  # of them make the estimate
_STALE_SHARE = 0.1  # of the time that a thing is about to take: an older one is not worth letting in
_LEAST_WAIT_S = 1e-3
_JOIN_S = 15.0


@dataclass(eq=False)
class Item:
    """A thing on its way.

    Attributes:
        value: what the last stage made of it.
        born_s: when it came, by ``time.monotonic``.
        started_s: when each stage took it up.
    """

    value: Any
    born_s: float
    started_s: list[float] = field(default_factory=list)


class Conveyor:
    """Moves things from a feed through stages to whoever iterates over it; once.

    Args:
        feed: things as they come.
        stages: names and what is done, in their order.
        drop: see the module; ``none`` takes all things, as fast as can be.
        discard: is given what the first stage made where a newer thing takes its place.

    Attributes:
        captured: things that came.
        durations_s: of each stage, the last ten thousand; ``capture`` and ``deliver`` (what the caller does) too.
    """

    def __init__(
        self,
        feed: Iterable[Any],
        stages: Sequence[Stage],
        *,
        drop: Drop = "none",
        discard: Callable[[Any], None] | None = None,
    ) -> None:
        self.captured = 0
        self._replaced = self._discarded = 0
        names = (CAPTURE, *(name for name, _ in stages), DELIVERY)
        self.durations_s: dict[str, deque[float]] = {name: deque(maxlen=_KEPT) for name in names}
        self._feed, self._stages, self._drop, self._discard = feed, stages, drop, discard
        self._channels: list[Channel[Item]] = [
            Channel(1 if drop == "newest" else _WAITING) for _ in range(len(stages) + 1)
        ]
        self._failure: BaseException | None = None
        self._feed_failure: BaseException | None = None
        self._last: Item | None = None
        self._threads: list[threading.Thread] = []

    @property
    def dropped(self) -> int:
        """Things that were replaced by newer ones."""
        return self._replaced + self._discarded

    def __iter__(self) -> Generator[Item, None, None]:
        """Things that have passed all stages, in their order; ends the threads when it is left.

        Raises:
            BaseException: what a stage or the feed raised; after a feed's, all that came before it is delivered first.
        """
        self._start()
        try:
            while True:
                try:
                    item = self._channels[-1].get()
                except ChannelEndError:
                    break
                start_s = time.monotonic()
                item.started_s.append(start_s)
                yield item
                self.durations_s[DELIVERY].append(time.monotonic() - start_s)
        finally:
            self.close()
        failure = self._failure or self._feed_failure
        if failure is not None:
            raise failure

    def close(self) -> None:
        """End all threads; what is on its way is let go of."""
        for channel in self._channels:
            channel.end(abort=True)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_JOIN_S)

    def _start(self) -> None:
        self._threads = [threading.Thread(target=self._capture, name="sanderling-capture", daemon=True)]
        for place, (name, work) in enumerate(self._stages):
            arguments = (place, name, work)
            thread = threading.Thread(target=self._work, args=arguments, name=f"sanderling-{name}", daemon=True)
            self._threads.append(thread)
        for thread in self._threads:
            thread.start()

    def _capture(self) -> None:
        first, start_s = self._channels[0], time.monotonic()
        try:
            for value in self._feed:
                born_s = time.monotonic()
                self.durations_s[CAPTURE].append(born_s - start_s)
                self.captured += 1
                if self._drop == "newest":
                    self._replaced += first.replace(Item(value, born_s))
                else:
                    first.put(Item(value, born_s))
                start_s = time.monotonic()
        except ChannelEndError:
            return
        except BaseException as error:  # noqa: BLE001 - is raised where results are taken
            self._feed_failure = error
        first.end()

    def _work(self, place: int, name: str, work: Callable[[Any], Any]) -> None:
        incoming, outgoing = self._channels[place], self._channels[place + 1]
        admits = place == 0 and self._drop == "newest"
        try:
            while True:
                item = self._admitted() if admits else incoming.get()
                self._do(item, name, work)
                outgoing.put(item)
                if admits:
                    self._renew(name, work)
        except ChannelEndError:
            outgoing.end()
        except BaseException as error:  # noqa: BLE001 - is raised where results are taken
            self._failure = self._failure or error
            for channel in self._channels:
                channel.end(abort=True)

    def _do(self, item: Item, name: str, work: Callable[[Any], Any]) -> None:
        start_s = time.monotonic()
        item.started_s.append(start_s)
        item.value = work(item.value)
        self.durations_s[name].append(time.monotonic() - start_s)

    def _renew(self, name: str, work: Callable[[Any], Any]) -> None:
        """Until the second stage takes up what the first one made, make it anew of what has come.

        It waits for as long as that takes first: the second stage is a little late more often than not.
        """
        newest, made = self._channels[:2]
        while not made.wait_until_taken(max(self.durations_s[name][-1], _LEAST_WAIT_S)):
            if newest.oldest() is None:
                continue
            item = newest.get()
            value = item.value
            self._do(item, name, work)
            older = made.exchange(item)
            unused = (older or item).value
            if older is not None:
                self._last = item
                self._discarded += 1
            else:  # too late: its time is when the stage is free again
                item.value, item.started_s = value, []
                self._discarded += not newest.put_back(item)
            if self._discard is not None:
                self._discard(unused)

    def _admitted(self) -> Item:
        """The newest thing, when nothing will be in its way."""
        incoming = self._channels[0]
        while True:
            wait_s = self._free_at_s() - time.monotonic()
            if wait_s <= 0:
                break
            time.sleep(min(wait_s, 0.05))
        waiting = incoming.oldest()
        if waiting is not None:
            age_s, interval_s = time.monotonic() - waiting.born_s, self._interval_s()
            if age_s > _STALE_SHARE * sum(self._estimates_s()) and age_s < interval_s:
                incoming.wait_for_newer(1.5 * interval_s - age_s)
        item = incoming.get()
        self._last = item
        return item

    def _free_at_s(self) -> float:
        """When to let the next thing in, so that it meets every stage just as that gets free."""
        if self._last is None:
            return 0.0
        now_s, started_s = time.monotonic(), list(self._last.started_s)
        free_at_s, before_s, start_s = 0.0, 0.0, 0.0
        for place, takes_s in enumerate(self._estimates_s()):
            start_s = started_s[place] if place < len(started_s) else max(start_s, now_s)
            free_at_s = max(free_at_s, start_s + takes_s - before_s)
            start_s += takes_s
            before_s += takes_s
        return free_at_s

    def _estimates_s(self) -> list[float]:
        """What each stage takes, delivery included, by the last few things."""
        names = [*(name for name, _ in self._stages), DELIVERY]
        return [_recent(self.durations_s[name]) for name in names]

    def _interval_s(self) -> float:
        return _recent(self.durations_s[CAPTURE])


def _recent(durations_s: deque[float]) -> float:
    """Upper quartile of the last few: with less, a thing would often meet a stage that is not free yet."""
    count = len(durations_s)
    few = [durations_s[index] for index in range(max(count - _RECENT, 0) - count, 0)]
    return float(np.percentile(few, 75)) if few else 0.0
