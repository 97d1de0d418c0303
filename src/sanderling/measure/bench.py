"""Measure every variant of a package on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from sanderling.core.errors import EngineError, OptionError
from sanderling.core.machine import Machine, describe_machine, usable_cores
from sanderling.core.progress import Event, Progress, Silent
from sanderling.core.tensor import random_feeds
from sanderling.measure.latency import Timing, time_interleaved
from sanderling.measure.memory import session_memory_bytes
from sanderling.model.manifest import Variant
from sanderling.model.package import Package
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions
from sanderling.run.placing import default_options
from sanderling.run.session import check_one_graph


class VariantBench(BaseModel):
    """One variant's numbers.

    Attributes:
        latency_ms: of one call with ``batch`` rows.
        throughput_per_s: rows a second, from the median call.
        memory_bytes: what loading and running adds to a fresh process; None where it could not be measured.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    precision: str
    engine: str
    size_bytes: int
    latency_ms: Timing
    throughput_per_s: float
    memory_bytes: int | None


class BenchResult(BaseModel):
    """All variants, measured in turn in one run."""

    model_config = ConfigDict(frozen=True)

    package: str
    machine: Machine
    threads: int
    batch: int
    variants: tuple[VariantBench, ...]


def bench(
    path: str | Path,
    *,
    variants: Sequence[str] = (),
    threads: int = 0,
    batch: int = 1,
    warmup: int = 10,
    repeats: int = 100,
    lean: bool = False,
    progress: Progress | None = None,
) -> BenchResult:
    """Time the variants in turn (A B C A B C …) on golden inputs, then measure each one's memory.

    Args:
        path: the package.
        variants: ids; all without any.
        threads: of one call; 0 means all usable cores.
        batch: rows of one call; more than 1 needs a dynamic batch.
        warmup: untimed calls of each.
        repeats: timed calls of each.
        lean: prefer little memory.
        progress: told about each round.

    Raises:
        PackageError: the package is broken.
        OptionError: an unknown variant, or a batch that the model does not take.
    """
    if min(batch, repeats) < 1 or min(threads, warmup) < 0:
        raise OptionError(
            f"batch {batch} and repeats {repeats} need at least 1, threads {threads} and warm-up {warmup} 0"
        )
    package = Package.open(path)
    check_one_graph(package)
    progress = progress or Silent()
    chosen = [package.variant(name) for name in variants] or list(package.manifest.variants)
    inputs = package.manifest.inputs
    fixed = [spec for spec in inputs if spec.shape and isinstance(spec.shape[0], int) and spec.shape[0] != batch]
    if batch > 1 and fixed:
        raise OptionError(
            f"batch {batch} does not fit input {fixed[0]}: build with --dynamic batch for other batch sizes"
        )
    feeds = random_feeds(inputs, batch=batch)
    with ExitStack() as stack:
        calls = {}
        for variant in chosen:
            executable = engine(variant.engines[0]).load(
                package.file(variant.file), default_options(variant, threads=threads, lean=lean)
            )
            stack.callback(executable.close)
            calls[variant.id] = partial(executable.run, feeds)
        progress.stage("measure latency", repeats)
        timings = time_interleaved(calls, warmup=warmup, repeats=repeats, progress=progress)
    progress.stage("measure memory", len(chosen))
    return BenchResult(
        package=package.path.name,
        machine=describe_machine(),
        threads=threads or usable_cores(),
        batch=batch,
        variants=tuple(
            _measured(
                package,
                variant,
                timings[variant.id],
                batch,
                default_options(variant, threads=threads, lean=lean),
                progress,
            )
            for variant in chosen
        ),
    )


def _measured(
    package: Package, variant: Variant, timing: Timing, batch: int, options: EngineOptions, progress: Progress
) -> VariantBench:
    memory = None
    name = variant.engines[0]
    try:
        path = package.file(variant.file)
        memory = session_memory_bytes(path, engine_name=name, options=options)
    except EngineError as error:
        progress.event(Event(kind="memory-not-measured", subject=variant.id, reason=str(error)))
    progress.advance()
    return VariantBench(
        id=variant.id,
        precision=variant.precision,
        engine=name,
        size_bytes=variant.size_bytes,
        latency_ms=timing,
        throughput_per_s=batch * 1e3 / timing.p50,
        memory_bytes=memory,
    )
