"""How fast a language model reads and writes here, in how much memory, and how well it predicts."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from sanderling.core.errors import EngineError, OptionError, first_line
from sanderling.core.machine import Machine, describe_machine, usable_cores
from sanderling.core.progress import Event, Progress, Silent
from sanderling.core.statistics import percentiles
from sanderling.measure.perplexity import text_perplexity
from sanderling.measure.texts import default_texts, read_texts
from sanderling.model.manifest import Latency
from sanderling.model.package import Package
from sanderling.model.text import TextSpec
from sanderling.run.text.base import TextModel
from sanderling.run.text.engines import text_engine
from sanderling.run.text.loading import load_model, text_place, text_spec

PREFILL_TOKENS = 512
TTFT_TOKENS = 32
SHORT_CONTEXT = 16
_MEMORY_STEPS = 16
_TIMEOUT_S = 600
_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss


class TextTiming(BaseModel):
    """Speeds of one variant, medians over rounds in which all variants took turns.

    Attributes:
        prefill_tokens: of the prompt that ``prefill_tokens_per_s`` is measured with, read in one call.
        decode_tokens_per_s: one token after the other, after a context of 16 tokens.
        decode_long_tokens_per_s: the same after ``prefill_tokens``.
        ttft_ms: from a prompt of 32 tokens to the first token.
        inter_token_ms: of single steps after 16 tokens.
    """

    model_config = ConfigDict(frozen=True)

    prefill_tokens: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    decode_long_tokens_per_s: float
    ttft_ms: float
    inter_token_ms: Latency


class TextVariantBench(TextTiming):
    """One variant's numbers.

    Attributes:
        perplexity: by text.
        peak_rss_bytes: of a fresh process that loads it, reads a prompt and writes 16 tokens; None if it failed.
    """

    id: str
    precision: str
    engine: str
    size_bytes: int
    perplexity: dict[str, float]
    peak_rss_bytes: int | None


class TextBenchResult(BaseModel):
    """All variants, measured in turn in one run."""

    model_config = ConfigDict(frozen=True)

    package: str
    machine: Machine
    threads: int
    rounds: int
    variants: tuple[TextVariantBench, ...]


def bench_text(
    path: str | Path,
    *,
    variants: Sequence[str] = (),
    threads: int = 0,
    rounds: int = 5,
    texts: Sequence[str | Path] = (),
    progress: Progress | None = None,
) -> TextBenchResult:
    """Measure variants of a language model.

    Args:
        path: of the package.
        variants: ids; all without any.
        threads: of one call; 0 means all usable cores.
        rounds: in which every variant reads and writes once.
        texts: files that perplexity is measured on; a text in prose and one about code by default.
        progress: told about each round.

    Raises:
        PackageError: the package is broken.
        OptionError: an unknown variant, no rounds, or the package is of another kind of model.
        DataError: a text cannot be used.
    """
    if rounds < 1 or threads < 0:
        raise OptionError(f"{rounds} rounds with {threads} threads: expected at least 1 round, and 0 threads or more")
    progress = progress or Silent()
    package = Package.open(path)
    text_spec(package)
    chosen = [package.variant(name) for name in variants] or list(package.manifest.variants)
    written = read_texts(texts) if texts else default_texts()
    engines = {variant.id: text_place(package, variant=variant.id).engine for variant in chosen}
    models = {
        variant.id: load_model(package, variant, threads=threads, engine=engines[variant.id]) for variant in chosen
    }
    progress.stage("measure speed", rounds)
    timings = time_models(models, rounds=rounds, progress=progress)
    progress.stage("measure perplexity", len(chosen))
    predicted = {}
    for name, model in models.items():
        predicted[name] = {title: text_perplexity(model, title, text)[0] for title, text in written.items()}
        model.close()
        progress.advance()
    progress.stage("measure memory", len(chosen))
    return TextBenchResult(
        package=package.path.name,
        machine=describe_machine(),
        threads=threads or usable_cores(),
        rounds=rounds,
        variants=tuple(
            TextVariantBench(
                **timings[variant.id].model_dump(),
                id=variant.id,
                precision=variant.precision,
                engine=engines[variant.id],
                size_bytes=variant.size_bytes,
                perplexity=predicted[variant.id],
                peak_rss_bytes=memory_of_folder(
                    package.file(variant.file).parent, models[variant.id].spec, engines[variant.id], threads, progress
                ),
            )
            for variant in chosen
        ),
    )


def time_models(
    models: Mapping[str, TextModel], *, rounds: int, steps: int = 32, progress: Progress | None = None
) -> dict[str, TextTiming]:
    """Let models read and write in turn (A B C A B C …); one untimed turn of each comes first."""
    turns: dict[str, list[_Turn]] = {name: [] for name in models}
    for number in range(rounds + 1):
        for name, model in models.items():
            turn = _turn(model, steps)
            if number:
                turns[name].append(turn)
        if progress and number:
            progress.advance()
    return {name: _summary(found) for name, found in turns.items()}


def memory_of_folder(folder: Path, spec: TextSpec, engine: str, threads: int, progress: Progress) -> int | None:
    """``peak_rss_bytes`` of a variant's folder; an event where it could not be measured."""
    try:
        return peak_rss_bytes(folder, spec, engine=engine, threads=threads)
    except EngineError as error:
        progress.event(Event(kind="memory-not-measured", subject=folder.name, reason=str(error)))
        return None
    finally:
        progress.advance()


def peak_rss_bytes(folder: Path, spec: TextSpec, *, engine: str, threads: int) -> int:
    """Peak resident memory of a fresh process that loads a variant, reads a prompt and writes some tokens.

    Raises:
        EngineError: the process failed or took more than ten minutes.
    """
    request = {"folder": str(folder), "spec": spec.model_dump(), "engine": engine, "threads": threads}
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, json.dumps(request)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
            env={**os.environ, "MALLOC_ARENA_MAX": "2"},
        )
        return int(done.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        detail = (getattr(error, "stderr", "") or first_line(error)).strip().splitlines()[-1]
        raise EngineError(f"memory of {folder.name} could not be measured: {detail}") from error


class _Turn(BaseModel):
    prefill_tokens: int
    prefill_s: float
    ttft_s: float
    short_s: tuple[float, ...]
    long_s: tuple[float, ...]


def _turn(model: TextModel, steps: int) -> _Turn:
    context = model.spec.context_length
    length = min(PREFILL_TOKENS, max(context - steps, 1))
    prompt = np.random.default_rng(0).integers(0, model.spec.vocabulary, length).tolist()
    generation = model.generation(capacity=min(length + steps, context))
    prefill_s = _seconds(lambda: generation.append(prompt))
    long_s = [_seconds(generation.next) for _ in range(steps // 2)]
    generation.rewind(0)
    ttft_s = _seconds(lambda: generation.append(prompt[:TTFT_TOKENS])) + _seconds(generation.next)
    generation.rewind(0)
    generation.append(prompt[:SHORT_CONTEXT])
    generation.next()  # takes the prompt's own scores; each step after it reads a token
    short_s = [_seconds(generation.next) for _ in range(min(steps, generation.capacity - generation.length))]
    generation.close()
    # The first step after a prompt chooses from scores that are there already.
    return _Turn(
        prefill_tokens=length, prefill_s=prefill_s, ttft_s=ttft_s, short_s=tuple(short_s), long_s=tuple(long_s[1:])
    )


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _summary(turns: Sequence[_Turn]) -> TextTiming:
    short = [second for turn in turns for second in turn.short_s]
    long = [second for turn in turns for second in turn.long_s]
    told = percentiles([second * 1e3 for second in short])
    return TextTiming(
        prefill_tokens=turns[0].prefill_tokens,
        prefill_tokens_per_s=turns[0].prefill_tokens / float(np.median([turn.prefill_s for turn in turns])),
        decode_tokens_per_s=1 / float(np.median(short)),
        decode_long_tokens_per_s=1 / float(np.median(long)),
        ttft_ms=1e3 * float(np.median([turn.ttft_s for turn in turns])),
        inter_token_ms=Latency(p50=told["p50"], p95=told["p95"], p99=told["p99"]),
    )


def _measure(request: str) -> int:
    wanted = json.loads(request)
    spec = TextSpec.model_validate(wanted["spec"])
    model = text_engine(wanted["engine"]).load(Path(wanted["folder"]), spec, threads=wanted["threads"])
    length = min(PREFILL_TOKENS, max(spec.context_length - _MEMORY_STEPS, 1))
    generation = model.generation(capacity=min(length + _MEMORY_STEPS, spec.context_length))
    generation.append(np.random.default_rng(0).integers(0, spec.vocabulary, length).tolist())
    while generation.length < generation.capacity:
        generation.next()
    return peak_bytes()


def peak_bytes() -> int:
    """Peak resident memory of this process; on Linux without what its parent had when it was started."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) << 10
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT_BYTES


if __name__ == "__main__":
    sys.stdout.write(f"{_measure(sys.argv[1])}\n")
