"""One way to run a language model, measured in a process of its own: `python -m … REQUEST` prints a line of JSON.

A crash of an engine ends this process alone, and memory is that of one model.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from sanderling.core.errors import SanderlingError, first_line
from sanderling.core.statistics import relative_error
from sanderling.measure.text import peak_bytes
from sanderling.measure.text_golden import golden_outputs
from sanderling.model.package import Package
from sanderling.run.text.base import Generation, TextModel
from sanderling.run.text.loading import load_model

PROMPT_TOKENS, ANSWER_TOKENS = 128, 32
SEQUENCES = 4


class TextRequestTimes(BaseModel):
    """What one candidate did.

    Attributes:
        failure: why it is out; nothing else counts then.
        request_ms: of each request: a prompt of 128 tokens, and 32 tokens of an answer.
        first_ms: of each request's first token.
        shared_ms: a token, of each round in which four requests are written at once.
        peak_rss_bytes: of the process.
    """

    model_config = ConfigDict(frozen=True)

    failure: str = ""
    request_ms: tuple[float, ...] = ()
    first_ms: tuple[float, ...] = ()
    shared_ms: tuple[float, ...] = ()
    peak_rss_bytes: int = 0


def measure(package: Package, variant: str, engine: str, threads: int, repeats: int) -> TextRequestTimes:
    """Load a candidate, compare it with the golden vectors, and time requests; the first of them warms up.

    Raises:
        SanderlingError: it does not load, or fails.
    """
    with closing(load_model(package, package.variant(variant), threads=threads, engine=engine)) as model:
        failure = _difference(package, variant, model)
        if failure:
            return TextRequestTimes(failure=failure)
        rows = [_request(model) for _ in range(repeats + 1)][1:]
        shared = [_shared(model) for _ in range(repeats)]
        return TextRequestTimes(
            request_ms=tuple(row[0] for row in rows),
            first_ms=tuple(row[1] for row in rows),
            shared_ms=tuple(shared),
            peak_rss_bytes=peak_bytes(),
        )


def _difference(package: Package, variant: str, model: TextModel) -> str:
    """In words how it departs from the golden vectors; empty where it does not."""
    golden = package.golden()
    expected = golden.outputs[variant]
    found = golden_outputs(model, golden.inputs["prompts"], expected["greedy"])
    error, most = relative_error(expected["scores"], found["scores"]), package.manifest.golden.tolerance[variant]
    return "" if error <= most else f"relative error {error:.1e} of the golden scores, at most {most:.0e}"


def _request(model: TextModel) -> tuple[float, float]:
    """Milliseconds of a request, and of its first token."""
    prompt = _prompt(model, 0)
    generation = model.generation(capacity=len(prompt) + ANSWER_TOKENS)
    start = time.perf_counter()
    generation.append(prompt)
    generation.next()
    first = time.perf_counter()
    for _ in range(ANSWER_TOKENS - 1):
        generation.next()
    end = time.perf_counter()
    generation.close()
    return (end - start) * 1e3, (first - start) * 1e3


def _shared(model: TextModel) -> float:
    """Milliseconds a token where four requests are written at once."""
    generations = [model.generation(capacity=PROMPT_TOKENS + ANSWER_TOKENS) for _ in range(SEQUENCES)]
    for place, generation in enumerate(generations):
        generation.append(_prompt(model, place)[: PROMPT_TOKENS // 2])
    write = _together(model, generations) if model.most_together >= SEQUENCES else _in_turn(generations)
    write()
    start = time.perf_counter()
    for _ in range(ANSWER_TOKENS // SEQUENCES):
        write()
    took = time.perf_counter() - start
    for generation in generations:
        generation.close()
    return took * 1e3 / (ANSWER_TOKENS // SEQUENCES * SEQUENCES)


def _together(model: TextModel, generations: list[Generation]) -> Callable[[], object]:
    tokens = _prompt(model, SEQUENCES)[:SEQUENCES]
    return lambda: model.append_together(generations, tokens)


def _in_turn(generations: list[Generation]) -> Callable[[], object]:
    return lambda: [generation.next() for generation in generations]


def _prompt(model: TextModel, seed: int) -> list[int]:
    length = min(PROMPT_TOKENS, max(model.spec.context_length - ANSWER_TOKENS, 1))
    return [int(token) for token in np.random.default_rng(seed).integers(0, model.spec.vocabulary, length)]


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    try:
        opened = Package.open(Path(asked["package"]), check_hashes=False)
        told = measure(opened, asked["variant"], asked["engine"], asked["threads"], asked["repeats"])
    except SanderlingError as error:
        told = TextRequestTimes(failure=first_line(error))
    sys.stdout.write(told.model_dump_json() + "\n")
