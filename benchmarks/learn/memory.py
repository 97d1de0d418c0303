"""Peak memory of a whole process that trains, each in a process of its own: ``python -m benchmarks.learn.memory``.

What training adds is the peak of a process that trains, less that of one that only infers, on the same batch.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.learn.cases import MINILM, prepare_case

_STEPS = 4
_REPEATS = 3
_ROWS = 8


def measure(folder: Path) -> dict[str, Any]:
    """Peaks in bytes, the median of three processes each, of MiniLM with 8 texts of 64 tokens a step."""
    peaks: dict[str, float] = {}
    for kind, trainable in (("head", "head"), ("lora", MINILM.lora), ("full", "full")):
        package = folder / f"memory-{kind}.sdl"
        spec = prepare_case(MINILM, trainable, package)
        roles = ["infer", "train"] + (["features"] if spec.features is not None else [])
        for role in roles:
            peaks[f"{kind}/{role}"] = _peak("benchmarks.learn.memory_device", role, package)
        if kind != "head":
            peaks[f"{kind}/torch"] = _peak("benchmarks.learn.memory_torch", "train", package)
        print({name: round(value / 1e6) for name, value in peaks.items()}, flush=True)
    return {"model": MINILM.name, "batch": _ROWS, "steps": _STEPS, "repeats": _REPEATS, "peak_bytes": peaks}


def _peak(module: str, role: str, package: Path) -> float:
    found: list[float] = []
    for _ in range(_REPEATS):
        command = [sys.executable, "-m", module, role, str(package), str(_ROWS), str(_STEPS)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        found.append(json.loads(done.stdout)["peak_bytes"])
    return statistics.median(found)
