"""What both sides of the comparison do, and how it is timed. It imports nothing of ours: the peer's Python runs it too.

Times are processor seconds of a process with one thread: what other work on the machine takes is not in them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

PROMPT_TOKENS = 512
SHORT_TOKENS = 16
FIRST_TOKENS = 32
STEPS = 24


class Reader(Protocol):
    """A loaded language model that reads tokens."""

    def restart(self) -> None:
        """Forget what was read."""

    def read(self, ids: Sequence[int]) -> None:
        """Read tokens in one call, so that the scores after the last are known."""

    def score(self, ids: Sequence[int]) -> list[float]:
        """Log-probability of each token but the first."""


def serve(reader: Reader) -> None:
    """Do what each line on stdin asks for, and answer with a line of JSON."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # for libraries that print
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "turn":
            answer: Any = _turn(reader, asked["prompt"])
        elif asked["do"] == "memory":
            answer = _peak_bytes()
        else:
            answer = [reader.score(ids) for ids in asked["texts"]]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _turn(reader: Reader, prompt: Sequence[int]) -> dict[str, float]:
    reader.restart()
    prefill_s = _seconds(lambda: reader.read(prompt))
    long_s = _seconds(lambda: _write(reader)) / STEPS
    reader.restart()
    first_s = _seconds(lambda: reader.read(prompt[:FIRST_TOKENS]))
    reader.restart()
    reader.read(prompt[:SHORT_TOKENS])
    short_s = _seconds(lambda: _write(reader)) / STEPS
    return {"prefill_s": prefill_s, "long_s": long_s, "first_s": first_s, "short_s": short_s}


def _write(reader: Reader) -> None:
    for token in range(STEPS):
        reader.read([token + 100])


def _seconds(call: Callable[[], None]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) << 10
