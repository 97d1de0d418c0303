"""Measure the build: `python -m benchmarks.build.run [--only NAME] [--folder DIR]`.

Writes `benchmarks/build/results.json` and regenerates `docs/benchmarks.md`. Needs the packages of
`requirements-models.txt`, and Debian's `dataset-fashion-mnist` and `opencv-doc`. About ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.build import table
from benchmarks.build.cases import Case, make_cases
from sanderling.api import build, verify
from sanderling.core.machine import describe_machine
from sanderling.core.tensor import random_feeds
from sanderling.measure.latency import Timing, time_interleaved
from sanderling.measure.memory import session_memory_bytes
from sanderling.model.package import Package
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions

RESULTS = Path(__file__).with_name("results.json")
_THREADS = (1, 2)
_BATCHES = (1, 8)
_MEMORY_REPEATS = 5
_START_REPEATS = 15


def main() -> None:
    """Run all cases, or those whose name contains ``--only``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--folder", type=Path, help="where data and packages go; a temporary folder by default")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        cases = [case for case in make_cases(folder) if arguments.only.lower() in case.name.lower()]
        results = [measure_case(case, folder / f"case{index}.sdl") for index, case in enumerate(cases)]
        whole = measure_whole_processes(folder, folder / "case0.sdl") if not arguments.only else None
    if arguments.only:
        print(json.dumps(results, indent=1))
        return
    value = {
        "command": "python -m benchmarks.build.run",
        "machine": describe_machine().model_dump(),
        "cases": results,
        "whole_processes": whole,
    }
    RESULTS.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    table.main()


def measure_case(case: Case, package: Path) -> dict[str, Any]:
    """Build one model and compare its INT8 variant with FP32."""
    print(f"{case.name}: build", flush=True)
    start = time.perf_counter()
    result = build(case.source, package, **case.options)
    seconds = time.perf_counter() - start
    int8 = result.manifest.variant("int8")
    fp32 = result.manifest.variant("fp32")
    assert int8 is not None
    assert fp32 is not None
    assert int8.accuracy is not None
    assert result.evidence.quantization is not None
    further = {name: _agreement(package, path) for name, path in case.more_data.items()}
    print(f"{case.name}: speed and memory", flush=True)
    return {
        "name": case.name,
        "build_seconds": round(seconds, 1),
        "calibration_samples": result.evidence.quantization.samples,
        "kept": next(c.model_dump() for c in result.evidence.quantization.candidates if c.kept),
        "chosen": result.manifest.chosen,
        "accuracy": int8.accuracy.model_dump(),
        "fp32_accuracy": fp32.accuracy.model_dump() if fp32.accuracy else None,
        "further_accuracy": further,
        "size_bytes": {"fp32": fp32.size_bytes, "int8": int8.size_bytes},
        "memory_bytes": {name: _memory(package, name) for name in ("fp32", "int8")},
        "speed": [_speed(package, threads, batch) for threads in _THREADS for batch in _BATCHES],
    }


def _agreement(package: Path, data: Path) -> dict[str, Any]:
    return verify(package, evaluation=data).accuracy["int8"].model_dump()


def _memory(package: Path, variant: str) -> list[int]:
    opened = Package.open(package)
    path, options = opened.file(opened.variant(variant).file), EngineOptions(threads=2)
    return [session_memory_bytes(path, engine_name="onnxruntime", options=options) for _ in range(_MEMORY_REPEATS)]


def _speed(package: Path, threads: int, batch: int) -> dict[str, Any]:
    """INT8 against FP32, one call of each in turn; the ratio is the median over the pairs."""
    opened = Package.open(package)
    feeds = random_feeds(opened.manifest.inputs, batch=batch)
    with ExitStack() as stack:
        calls = {}
        for name in ("fp32", "int8"):
            path = opened.file(opened.variant(name).file)
            executable = engine().load(path, EngineOptions(threads=threads))
            stack.callback(executable.close)
            calls[name] = partial(executable.run, feeds)
        timings = time_interleaved(calls, warmup=20, repeats=200, seconds=15)
    pairs = np.array(timings["fp32"].samples_ms) / np.array(timings["int8"].samples_ms)
    return {
        "threads": threads,
        "batch": batch,
        "ratio_median": round(float(np.median(pairs)), 3),
        **{name: _percentiles(timing) for name, timing in timings.items()},
    }


def _percentiles(timing: Timing) -> dict[str, Any]:
    return timing.model_dump(exclude={"samples_ms"})


def measure_whole_processes(folder: Path, package: Path) -> dict[str, Any]:
    """Build from ONNX in a process of its own (time, peak memory), and how long commands take to start."""
    model = package / "model.fp32.onnx"
    photo = next((folder / "crops-evaluation").glob("*.png"))
    print("whole processes", flush=True)
    baseline = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    seconds, peak = _build_from_onnx(model, folder)
    pairs = {
        "help": ([sys.executable, "-c", ""], [_command(), "--help"]),
        "run": ([sys.executable, "-c", ""], [_command(), "run", str(package), str(photo)]),
    }
    return {
        "build_from_onnx": {
            "seconds": seconds,
            "peak_memory_bytes": peak,
            "limit_bytes": 8 * model.stat().st_size + 500_000_000,
            "children_before_bytes": baseline * 1024,
        },
        "start_seconds": {name: _interleaved(*commands) for name, commands in pairs.items()},
    }


def _build_from_onnx(model: Path, folder: Path) -> tuple[float, int]:
    """Seconds and peak resident memory (largest single process) of a build with 128 photos."""
    from sanderling.demo.story import PREPROCESSING

    command = [_command(), "build", str(model), "-o", str(folder / "from-onnx.sdl")]
    command += ["--calibration", str(folder / "crops-calibration"), "--preprocess", json.dumps(PREPROCESSING)]
    code = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], capture_output=True); "
        "print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - start
    status, kilobytes = done.stdout.split()
    if status != "0":
        raise SystemExit(f"the build from ONNX ended with {status}")
    return round(seconds, 1), int(kilobytes) * 1024


def _interleaved(first: list[str], second: list[str]) -> dict[str, float]:
    """Median wall seconds of two commands run in turn, and of the difference."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(_START_REPEATS):
        for command, seconds in zip((first, second), times, strict=True):
            start = time.perf_counter()
            subprocess.run(command, capture_output=True, check=True)
            seconds.append(time.perf_counter() - start)
    differences = [b - a for a, b in zip(*times, strict=True)]
    return {
        "interpreter_median": round(statistics.median(times[0]), 4),
        "command_median": round(statistics.median(times[1]), 4),
        "difference_median": round(statistics.median(differences), 4),
        "repeats": _START_REPEATS,
    }


def _command() -> str:
    return str(Path(sys.executable).with_name("sanderling"))


if __name__ == "__main__":
    main()
