"""A camera beside a language model: `python -m benchmarks.text.sharing CHAT.sdl PICTURES.sdl [--seconds S]`.

Pictures come at 30 a second, each of no use after 33 ms. Beside them a model writes answers, or reads one long prompt
after the other, or rests. Measured: pictures that were late or refused, and what is left of the model's own speed; in
one runtime, where steps and pictures take turns by the policy, and as two sessions that know nothing of each other.
With the seconds and threads that it takes by itself, it ends within four minutes on a machine at rest.
"""

from __future__ import annotations

import argparse
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from sanderling.core.errors import DeadlineError
from sanderling.core.machine import describe_machine
from sanderling.core.statistics import percentiles
from sanderling.core.tensor import random_feeds
from sanderling.run.pool import Pool
from sanderling.run.results import Outputs
from sanderling.run.session import Session, load
from sanderling.run.text.base import Sampling
from sanderling.run.text.loading import load_text
from sanderling.run.text.pooled import PooledText
from sanderling.run.text.session import TextSession

RESULTS = Path(__file__).with_name("sharing.json")
_PERIOD_S = 1 / 30
_PROMPT_TOKENS = 512
_BEGINNING = "Once upon a time, in a small town by the sea,"
_WARM_S = 2.0
_LOOK_S = 0.02
_NUMBERS = itertools.count()  # of prompts
_WARM_CALLS = 20

Text = TextSession | PooledText


@dataclass(frozen=True)
class Measured:
    """What became of the pictures and of the text.

    Attributes:
        pictures: that came.
        missed: share of them that was refused, or done after 33 ms.
        picture_ms: percentiles of those that were done.
        tokens_per_s: written, or read of prompts.
        share: of what the model does alone.
    """

    setting: str
    work: str
    threads: int
    pictures: int
    missed: float
    picture_ms: dict[str, float] | None
    tokens_per_s: float
    share: float


class Camera:
    """Sends pictures to a session, 30 a second, until it is stopped."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._feeds = random_feeds(session.inputs, seed=1)
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self.latencies_ms: list[float] = []
        self.pictures = self.missed = 0

    def run(self) -> None:
        """Send and count."""
        due_s = time.monotonic()
        while not self._stopped.is_set():
            self.pictures += 1
            began_s = time.monotonic()
            try:
                future = self._session.submit(self._feeds, deadline_ms=_PERIOD_S * 1e3, stream=object())
            except DeadlineError:
                self.missed += 1
            else:
                future.add_done_callback(partial(self._done, began_s))
            due_s = max(due_s + _PERIOD_S, time.monotonic() - _PERIOD_S)
            self._stopped.wait(max(due_s - time.monotonic(), 0.0))

    def stop(self) -> None:
        """Send no more."""
        self._stopped.set()

    def _done(self, began_s: float, future: Future[Outputs]) -> None:
        latency_ms = (time.monotonic() - began_s) * 1e3
        error = future.exception()
        with self._lock:
            if error is not None or latency_ms > _PERIOD_S * 1e3:
                self.missed += 1
            if error is None:
                self.latencies_ms.append(latency_ms)


def write(text: Text, seconds: float) -> float:
    """Tokens a second of answers, one after the other."""
    began_s, tokens, number = time.monotonic() + _WARM_S, 0, 0
    while time.monotonic() < began_s + seconds:
        with text.start(_BEGINNING, Sampling(temperature=1.0, seed=number)) as stream:
            seen, number = 0, number + 1
            while not stream.is_over and (now_s := time.monotonic()) < began_s + seconds:
                before, seen = seen, stream.tokens
                tokens += seen - before if now_s > began_s else 0
                time.sleep(_LOOK_S)
    return tokens / seconds


def rest(text: Text, seconds: float) -> float:  # noqa: ARG001 - what the camera has by itself
    """Nothing."""
    time.sleep(seconds)
    return 1.0


def read(text: Text, seconds: float) -> float:
    """Tokens a second of prompts of 512 tokens, one after the other, none like another."""
    began_s, tokens = time.monotonic(), 0
    while time.monotonic() < began_s + seconds:
        number = next(_NUMBERS)  # one that was read before would be kept
        ids = [1000 + (number * 7919 + place * 31) % 20_000 for place in range(_PROMPT_TOKENS)]
        text.start(ids, Sampling(temperature=0.0, max_tokens=1)).result()
        tokens += _PROMPT_TOKENS
    return tokens / (time.monotonic() - began_s)


@contextmanager
def together(chat: Path, pictures: Path, threads: int) -> Iterator[tuple[Text, Session]]:
    """Both in one pool."""
    with Pool() as pool:
        yield pool.load_text(chat, threads=threads, name="chat"), pool.load(pictures, threads=threads, name="pictures")


@contextmanager
def apart(chat: Path, pictures: Path, threads: int) -> Iterator[tuple[Text, Session]]:
    """Both for themselves."""
    with load_text(chat, threads=threads) as text, load(pictures, threads=threads) as session:
        yield text, session


def measure(
    setting: str, work: Callable[[Text, float], float], text: Text, session: Session, threads: int, seconds: float
) -> Measured:
    """The model's speed by itself, then beside the camera."""
    for _ in range(_WARM_CALLS):  # what a first call takes would have the next ones refused
        session.run(random_feeds(session.inputs, seed=1))
    time.sleep(_WARM_S)  # pictures of before are forgotten
    alone = work(text, seconds) if work is not rest else 1.0
    camera = Camera(session)
    thread = threading.Thread(target=camera.run)
    thread.start()
    rate = work(text, seconds)
    camera.stop()
    thread.join()
    latencies = camera.latencies_ms
    return Measured(
        setting=setting,
        work=work.__name__,
        threads=threads,
        pictures=camera.pictures,
        missed=camera.missed / camera.pictures,
        picture_ms=percentiles(latencies) if latencies else None,
        tokens_per_s=rate,
        share=rate / alone,
    )


def _told(each: Measured) -> str:
    alone = each.tokens_per_s / each.share
    return (
        f"{each.setting:9} {each.work:5} {each.threads} threads: {each.missed:6.1%} of {each.pictures} pictures "
        f"missed, text at {each.share:4.0%} of {alone:.1f} tokens/s"
    )


def main() -> None:
    """Measure both settings, both kinds of work, on one thread each and on all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chat", type=Path)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--seconds", type=float, default=7.0, help="of each part")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of a call of either model")
    parser.add_argument("--json", type=Path, help=f"write here, such as {RESULTS.name}")
    arguments = parser.parse_args()
    found = []
    for threads in arguments.threads:
        for setting in (together, apart):
            with setting(arguments.chat, arguments.pictures, threads) as (text, session):
                for work in (rest, write, read):
                    each = measure(setting.__name__, work, text, session, threads, arguments.seconds)
                    found.append(each)
                    print(_told(each), flush=True)
    if arguments.json is not None:
        value = {
            "machine": describe_machine().model_dump(),
            "packages": [arguments.chat.name, arguments.pictures.name],
            "seconds": arguments.seconds,
            "results": [asdict(each) for each in found],
        }
        arguments.json.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
