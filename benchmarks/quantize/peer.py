"""The peer: NNCF's `quantize_with_accuracy_control` on the same graph, with the same samples and the same metric.

NNCF lives in an environment of its own, which is made in the cache folder. Its ONNX backend is used, so that its result
is judged on the same engine as ours: accuracy, multiply–accumulates and speed are measured by the same code.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.quantize.judging import agreement, int8_share, latencies, read_samples, variant_files
from sanderling.core.arrays import write_npz
from sanderling.model.package import Package
from sanderling.run.environments import Environment, install

ENVIRONMENT = Environment(
    "nncf",
    ("nncf==3.4.0", "onnx==1.23.2", "onnxruntime==1.32.0", "openvino==2026.4.1", "numpy==2.4.6"),
    imports=("nncf", "onnxruntime"),
    size_bytes=800_000_000,
)
_PROGRAM = Path(__file__).with_name("nncf_control.py")
_MOST_SECONDS = 3600
_ENGINES = ("onnxruntime", "openvino")


def measure_peer(
    folder: Path, package: Package, calibration: Path, evaluation: Path, fresh: Path, max_drops: tuple[float, ...]
) -> dict[str, Any]:
    """Let NNCF keep each largest drop of agreement, in percentage points, and judge what it made beside our variants.

    Args:
        folder: to write to.
        package: whose FP32 graph is quantised.
        calibration: crops for ranges.
        evaluation: crops that NNCF decides on, as our build does.
        fresh: crops that nobody has seen.
        max_drops: allowed, in percentage points.
    """
    seen, unseen = read_samples(package, evaluation), read_samples(package, fresh)
    name = package.manifest.inputs[0].name
    arrays = {"calibration": read_samples(package, calibration), "validation": seen}
    samples = folder / "peer-samples.npz"
    write_npz(samples, {key: next(iter(value.batches(len(value))))[name] for key, value in arrays.items()})
    files = {name: path for name, path in variant_files(package).items() if name != "fp16"}
    python = install(ENVIRONMENT)
    runs = []
    for max_drop in max_drops:
        print(f"NNCF: max_drop {max_drop:g} points", flush=True)
        graph = folder / f"nncf-{max_drop:g}.onnx"
        told = _control(python, files["fp32"], samples, graph, max_drop / 100)
        files[graph.stem] = graph
        runs.append({"name": graph.stem, "max_drop": max_drop, "macs_int8_share": int8_share(graph), **told})
    on_seen, on_unseen = agreement(files, seen), agreement(files, unseen)
    return {
        "calibration_samples": len(arrays["calibration"]),
        "validation_samples": len(seen),
        "runs": [{**run, "evaluation": on_seen[run["name"]], "fresh": on_unseen[run["name"]]} for run in runs],
        "latency_p50_ms": {name: latencies(files, seen, name) for name in _ENGINES},
    }


def _control(python: Path, model: Path, samples: Path, output: Path, max_drop: float) -> dict[str, Any]:
    command = [str(python), "-I", str(_PROGRAM), str(model), str(samples), str(output), "--max-drop", str(max_drop)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False)
    if done.returncode:
        raise SystemExit(f"NNCF failed with {done.returncode}:\n{done.stderr[-3000:]}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told
