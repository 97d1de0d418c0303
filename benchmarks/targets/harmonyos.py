"""What `.ms` files compute in MindSpore Lite's runtime: `python -m benchmarks.targets.harmonyos [--folder DIR]`.

Builds five models, exports each for HarmonyOS, and runs the files over samples that no calibration saw, against ONNX
Runtime with the package's own variants. Writes `harmonyos.json` and `docs/benchmarks-harmonyos.md`. Needs
`requirements-models.txt`, and `sanderling devices --install mindspore`. About 40 minutes on two cores; packages that
are in the folder already are used again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.targets import harmonyos_table
from benchmarks.targets.models import build_packages
from sanderling.api import export
from sanderling.core.errors import SanderlingError
from sanderling.core.machine import describe_machine
from sanderling.core.progress import Silent
from sanderling.core.statistics import relative_error
from sanderling.core.tensor import Array, Feeds
from sanderling.measure.samples import SampleReader
from sanderling.model.graph import read_graph
from sanderling.model.package import Package
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions, Optimization
from sanderling.run.mindspore_lite import library
from sanderling.workshop.targets.ms.converter import find_converter
from sanderling.workshop.targets.ms.running import opened
from sanderling.workshop.targets.ms.writing import write_float

RESULTS = Path(__file__).with_name("harmonyos.json")
_FLOAT_SAMPLES = 16
_RANDOM = "random weights"
_RANDOM_SAMPLES = 48  # of models whose classes mean nothing


def main() -> None:
    """Measure all models, or those whose title contains ``--only``, whose rows are then replaced."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where data and packages go; a temporary folder by default")
    parser.add_argument("--only", default="", help="part of a title")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        rows = [measure(title, package) for title, package in build_packages(folder, arguments.only).items()]
    kept = json.loads(RESULTS.read_text("utf-8"))["models"] if RESULTS.exists() else []
    measured = {row["name"] for row in rows}
    value = {
        "command": "python -m benchmarks.targets.harmonyos",
        "machine": describe_machine().model_dump(),
        "runtime": f"MindSpore Lite {library.VERSION}",
        "converter": find_converter().label,
        "models": [row for row in kept if row["name"] not in measured] + rows,
    }
    RESULTS.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    harmonyos_table.main()


def measure(title: str, path: Path) -> dict[str, Any]:
    """Export one package, and run what was written."""
    print(title, flush=True)
    package = Package.open(path)
    manifest = package.manifest
    evaluation = next(path.parent.glob("texts-evaluation*" if "MiniLM" in title else "crops-evaluation"))
    samples = SampleReader(manifest.inputs, manifest.preprocessing, manifest.labels, Silent()).read(evaluation)
    count = _RANDOM_SAMPLES if _RANDOM in title or "MiniLM" in title else len(samples)
    feeds = list(itertools.islice(samples.batches(1), count))
    row: dict[str, Any] = {"name": title, "samples": len(feeds), "float_samples": _FLOAT_SAMPLES}
    row["classifies"] = "MiniLM" not in title
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "out"
        row |= _exported(path, folder, None)
        if "refused" in row:  # one variant has no form, so that nothing was written: the other may have
            row |= _exported(path, folder, "fp32")
        float32 = _outputs(package, "fp32", feeds)
        files = {file.stem: file for file in folder.rglob("*.ms")}
        row["fp32"] = _error(_run(files["fp32"], package, feeds[:_FLOAT_SAMPLES]), float32)
        row["fp16"] = _half(Path(scratch) / "half.ms", package, feeds[:_FLOAT_SAMPLES], float32)
        if "int8" in files:
            start = time.perf_counter()
            got = _run(files["int8"], package, feeds)
            row["run_ms_a_sample"] = round((time.perf_counter() - start) * 1e3 / len(feeds))
            expected = _outputs(package, "int8", feeds)
            row["int8"] = compare(expected, got)
            row["onnxruntime_itself"] = compare(expected, _outputs(package, "int8", feeds, Optimization.NONE))
    print(json.dumps(row), flush=True)
    return row


def _exported(path: Path, folder: Path, variant: str | None) -> dict[str, Any]:
    """Seconds and sizes; the reason where a variant is refused."""
    try:
        record = export(path, folder, target="harmonyos", variant=variant, options={"checks": "off"}).record
    except SanderlingError as error:
        return {"refused": str(error)}
    models = record["details"]["models"]
    return {
        "export_s": record["seconds"],
        "sizes_bytes": {model["variant"]: model["sizeBytes"] for model in models},
        "quantized_share": {model["variant"]: model["quantizedShare"] for model in models},
        "resizable": {model["variant"]: model["resizable"] for model in models},
    }


def _half(file: Path, package: Package, feeds: Sequence[Feeds], float32: list[Array]) -> float:
    shapes = {name: array.shape for name, array in feeds[0].items()}
    graph = read_graph(package.file(package.variant("fp32").file))
    write_float(graph, file, shapes, find_converter(), half=True)
    return _error(_run(file, package, feeds), float32)


def _outputs(
    package: Package, variant: str, feeds: Iterable[Feeds], level: Optimization = Optimization.ALL
) -> list[Array]:
    """The first output of each call, from ONNX Runtime."""
    name = package.manifest.outputs[0].name
    file = package.file(package.variant(variant).file)
    with closing(engine().load(file, EngineOptions(optimization=level))) as executable:
        return [executable.run(one)[name] for one in feeds]


def _run(file: Path, package: Package, feeds: Iterable[Feeds]) -> list[Array]:
    name = package.manifest.outputs[0].name
    with opened(file, package.manifest.outputs) as runtime:
        return [runtime.run(one)[name] for one in feeds]


def _error(got: Sequence[Array], expected: Sequence[Array]) -> float:
    """The worst call's relative error."""
    return max(relative_error(want, made) for want, made in zip(expected, got, strict=False))


def compare(expected: list[Array], got: list[Array]) -> dict[str, float]:
    """How outputs agree: on the first class, with and without ties in eight bits, and by their direction.

    ``first_class`` compares the places of the largest values, the first of equal ones. ``first_class_or_tied`` takes
    any place at which the expected outputs are as large as at their first.
    """
    want, made = (np.concatenate([array.reshape(len(array), -1) for array in arrays]) for arrays in (expected, got))
    places = made.argmax(axis=1)
    at_place = np.take_along_axis(want, places[:, None], axis=1)[:, 0]
    cosines = (want * made).sum(axis=1) / (np.linalg.norm(want, axis=1) * np.linalg.norm(made, axis=1))
    return {
        "first_class": float(np.mean(want.argmax(axis=1) == places)),
        "first_class_or_tied": float(np.mean(at_place >= want.max(axis=1))),
        "cosine_mean": float(cosines.mean()),
        "cosine_least": float(cosines.min()),
    }


if __name__ == "__main__":
    main()
