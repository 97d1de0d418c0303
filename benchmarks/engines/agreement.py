"""How an engine's outputs agree with ONNX Runtime's: `python -m benchmarks.engines.agreement --engine rknn`.

Builds EfficientNet-Lite0 on the demonstration's photos, and runs FP32 and INT8 over 240 crops of other photos on the
engine's devices that are named. Writes `agreement-ENGINE.json`. Needs `requirements-models.txt`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.build.data import photo_crops
from sanderling.api import build
from sanderling.core.machine import describe_machine
from sanderling.core.progress import Silent
from sanderling.core.tensor import Array
from sanderling.demo.story import ARGUMENTS, MODEL, PREPROCESSING, find_weights
from sanderling.measure.accuracy import Run, compare_outputs
from sanderling.measure.samples import SampleReader, Samples
from sanderling.model.package import Package
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions

_BATCH = 8


def main() -> None:
    """Measure one engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--device", action="append", help="repeatable; the engine's first by default")
    parser.add_argument("--folder", type=Path, help="of data and package, which are used again; temporary by default")
    arguments = parser.parse_args()
    devices = arguments.device or [engine(arguments.engine).devices()[0].device]
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        package, samples = _package(folder)
        rows = [
            measure(arguments.engine, device, variant, package, samples)
            for device in devices
            for variant in ("fp32", "int8")
        ]
    value = {
        "command": f"python -m benchmarks.engines.agreement --engine {arguments.engine}",
        "machine": describe_machine().model_dump(),
        "engine": arguments.engine,
        "engine_version": engine(arguments.engine).availability().version,
        "model": "EfficientNet-Lite0",
        "samples": len(samples),
        "results": rows,
    }
    target = Path(__file__).with_name(f"agreement-{arguments.engine}.json")
    target.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def measure(name: str, device: str, variant: str, package: Package, samples: Samples) -> dict[str, Any]:
    """One variant on one device, against ONNX Runtime with the same graph and with FP32."""
    info = next(info for info in engine(name).devices() if info.device == device)
    model = package.file(package.variant(variant).file)
    start = time.perf_counter()
    executable = engine(name).load(model, EngineOptions(device=device, compute=info.computes[0]))
    load_s = time.perf_counter() - start
    same = engine().load(model, EngineOptions())
    exact = engine().load(package.file(package.variant("fp32").file), EngineOptions())
    start = time.perf_counter()
    got = [executable.run(feeds) for feeds in samples.batches(_BATCH)]
    run_s = time.perf_counter() - start
    against = {}
    for title, reference in (("the same graph", same), ("fp32", exact)):
        runs = {"reference": reference.run, name: _replay(got)}
        records = compare_outputs(reference.run, runs, samples, batch=_BATCH, classify=True, progress=Silent())
        equal = records[name].predicted() == records["reference"].predicted()
        cosines = records[name].worst_cosines()
        against[title] = {
            "top1_agreement": float(np.mean(equal)),
            "cosine_mean": float(cosines.mean()),
            "cosine_least": float(cosines.min()),
        }
    placement = executable.placement
    executable.close()
    row = {
        "device": device,
        "variant": variant,
        "compute": info.computes[0],
        "against": against,
        "placement": {kind: round(share, 4) for kind, share in placement.kinds.items()},
        "fell_back": placement.fell_back,
        "detail": placement.detail,
        "load_s": round(load_s, 2),
        "run_ms_a_sample": round(run_s / len(samples) * 1e3),
    }
    print(json.dumps(row), flush=True)
    return row


def _replay(outputs: list[dict[str, Array]]) -> Run:
    kept = iter(outputs)
    return lambda _: next(kept)


def _package(folder: Path) -> tuple[Package, Samples]:
    calibration, evaluation = photo_crops(folder)
    target = folder / "agreement.sdl"
    if not target.exists():
        _build(target, calibration, evaluation)
    package = Package.open(target)
    manifest = package.manifest
    reader = SampleReader(manifest.inputs, manifest.preprocessing, manifest.labels, Silent())
    return package, reader.read(evaluation)


def _build(target: Path, calibration: Path, evaluation: Path) -> None:
    print("build", flush=True)
    build(
        MODEL,
        target,
        inputs=["input=1,3,224,224"],
        dynamic=["batch"],
        weights=find_weights(),
        factory_arguments=ARGUMENTS,
        preprocess=json.dumps(PREPROCESSING),
        calibration=calibration,
        evaluation=evaluation,
        precision="fp32,int8",
        budget="agreement=100",
        repeats=5,
    )


if __name__ == "__main__":
    main()
