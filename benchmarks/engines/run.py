"""Measure the choice: `python -m benchmarks.engines.run [--folder DIR]`.

Builds each model once (any accuracy budget: the weights of some are random), tunes it, then times every candidate that
passed the check exhaustively, all in turn. Needs `requirements-models.txt`. About six minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.build.data import photo_crops
from benchmarks.engines import table
from benchmarks.zoo.mobilenet_v2 import mobilenet_v2_weights
from sanderling.api import build, tune
from sanderling.core.machine import describe_machine, fingerprint
from sanderling.core.statistics import percentiles
from sanderling.demo.story import ARGUMENTS, MODEL, PREPROCESSING, find_weights
from sanderling.measure.tune.candidates import Candidate
from sanderling.measure.tune.stable import Stable, batch_feeds
from sanderling.model.package import Package
from sanderling.run.engines import engine
from sanderling.run.engines.base import Compute, EngineOptions
from sanderling.run.session import load

RESULTS = Path(__file__).with_name("results.json")
_PASSES, _REPEATS = 25, 4
_OVERHEAD_CALLS = 3000
_LOADS = 7


def main() -> None:
    """Run all models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where data and packages go; a temporary folder by default")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        packages = _packages(folder)
        models = [measure(name, package) for name, package in packages.items()]
        overhead = session_overhead(next(iter(packages.values())))
    value = {
        "command": "python -m benchmarks.engines.run",
        "machine": describe_machine().model_dump(),
        "fingerprint": fingerprint(),
        "exhaustive": {"passes": _PASSES, "repeats_a_pass": _REPEATS},
        "models": models,
        "session_overhead_us": overhead,
    }
    RESULTS.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    table.main()


def measure(name: str, package: Path) -> dict[str, Any]:
    """Tune a package, then time everything."""
    print(f"{name}: tune", flush=True)
    result = tune(package, seconds=60)
    raced = [candidate for candidate in result.candidates if candidate.status != "excluded"]
    print(f"{name}: exhaustive", flush=True)
    with ExitStack() as stack:
        stable = Stable(Package.open(package), stack)
        candidates = [_candidate(entry.name) for entry in raced]
        start = time.perf_counter()
        samples: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
        for _ in range(_PASSES):
            for candidate in candidates:
                samples[candidate.name] += stable.time(candidate, 1, _REPEATS)
        seconds = time.perf_counter() - start
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
        "excluded": {c.name: c.reason for c in result.candidates if c.status == "excluded"},
        "cold_start_ms": cold_start(package, candidates),
    }


def cold_start(package: Path, candidates: list[Candidate]) -> dict[str, dict[str, float]]:
    """Median milliseconds of loading, without a cache and with a warm one, by engine and variant that uses one."""
    opened = Package.open(package)
    found = {}
    for name, variant in sorted({(c.engine, c.variant) for c in candidates if c.engine != "onnxruntime"}):
        model = opened.file(opened.variant(variant).file)
        with tempfile.TemporaryDirectory() as folder:
            plain, cached = EngineOptions(threads=1), EngineOptions(threads=1, cache=Path(folder))
            engine(name).load(model, cached).close()
            samples: dict[str, list[float]] = {"uncached": [], "cached": []}
            for _ in range(_LOADS):
                for kind, options in (("uncached", plain), ("cached", cached)):
                    start = time.perf_counter()
                    engine(name).load(model, options).close()
                    samples[kind].append((time.perf_counter() - start) * 1e3)
        found[f"{name}/{variant}"] = {kind: float(np.median(values)) for kind, values in samples.items()}
    return found


def session_overhead(package: Path) -> dict[str, float]:
    """Microseconds that a session adds to the engine's own call, on the null engine's stand-in for a graph."""
    opened = Package.open(package)
    feeds = batch_feeds(opened.golden(), 1)
    graph = opened.file(opened.variant("fp32").file)
    bare = engine("null").load(graph, EngineOptions())
    with load(package, variant="fp32") as session:
        session._executable = bare  # the session's own work is what is measured
        calls = {"engine": partial(bare.run, feeds), "session": partial(session.run, feeds)}
        samples: dict[str, list[float]] = {"engine": [], "session": []}
        for _ in range(_OVERHEAD_CALLS):
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                samples[name].append((time.perf_counter() - start) * 1e6)
    medians = {name: float(np.median(values)) for name, values in samples.items()}
    return {**medians, "added": medians["session"] - medians["engine"]}


def _candidate(name: str) -> Candidate:
    engine_name, device, variant, threads, batch = name.split("/")
    variant, _, compute = variant.partition("+")
    return Candidate(
        engine_name, device, variant, variant, Compute(compute or "exact"), int(threads[1:]), int(batch[1:])
    )


def _packages(folder: Path) -> dict[str, Path]:
    calibration, evaluation = photo_crops(folder)
    common: dict[str, Any] = {
        "inputs": ["input=1,3,224,224"],
        "calibration": calibration,
        "evaluation": evaluation,
        "budget": "agreement=100",
        "repeats": 10,
    }
    lite0 = {"weights": find_weights(), "factory_arguments": ARGUMENTS, "preprocess": json.dumps(PREPROCESSING)}
    mobilenet = {"weights": mobilenet_v2_weights(), "preprocess": "imagenet"}
    sources: dict[str, tuple[str, dict[str, Any]]] = {
        "EfficientNet-Lite0": (MODEL, lite0),
        "MobileNetV2": ("benchmarks.zoo.mobilenet_v2:mobilenet_v2", mobilenet),
        "ResNet-18, random weights": ("benchmarks.zoo.resnet18:resnet18", {"preprocess": "imagenet"}),
    }
    packages = {}
    for number, (name, (source, options)) in enumerate(sources.items()):
        print(f"{name}: build", flush=True)
        packages[name] = build(source, folder / f"engines{number}.sdl", **common, **options).path
    return packages


if __name__ == "__main__":
    main()
