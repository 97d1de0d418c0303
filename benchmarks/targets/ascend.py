"""What folders for Ascend hold, as far as a machine without the chip can say: `python -m benchmarks.targets.ascend`.

Builds the five models, exports the INT8 variant of each, and computes the deploy graph by the documented definitions of
Ascend's operators, over samples that no calibration saw, against the QDQ graph in ONNX Runtime. AIPP's arithmetic is
held against the package's own preprocessing on the same photos. Writes `ascend.json` and `docs/benchmarks-ascend.md`.
Needs `requirements-models.txt`. Packages that are in ``--folder`` already are used again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.targets import ascend_table
from benchmarks.targets.models import build_packages
from sanderling.api import export
from sanderling.core.machine import describe_machine
from sanderling.core.progress import Silent
from sanderling.core.tensor import Array, Feeds
from sanderling.measure.samples import SampleReader
from sanderling.model.colors import VIDEO_STANDARDS, VideoStandard
from sanderling.model.package import Package
from sanderling.model.preprocessing import Preprocessing
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions, Optimization
from sanderling.run.pictures import read_pixels
from sanderling.workshop.targets.ascend.aipp import (
    STANDARDS,
    configure,
    convert,
    on_the_host,
    worst_difference,
)
from sanderling.workshop.targets.ascend.reference import difference, in_standard_onnx

RESULTS = Path(__file__).with_name("ascend.json")
_STEP_SAMPLES = 8
_FEW_SAMPLES = 48  # of texts, and where classes mean nothing
_PHOTOS = 24
_HEAVY = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def main() -> None:
    """Measure all models, or those whose title contains ``--only``, whose rows are then replaced."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where data and packages go; a temporary folder by default")
    parser.add_argument("--only", default="", help="part of a title")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        packages = build_packages(folder, arguments.only)
        rows = [measure(title, path) for title, path in packages.items()]
        title = next(name for name, path in packages.items() if Package.open(path).manifest.preprocessing)
        aipp = measure_aipp(title, packages[title])
    kept = json.loads(RESULTS.read_text("utf-8"))["models"] if RESULTS.exists() else []
    measured = {row["name"] for row in rows}
    value = {
        "command": "python -m benchmarks.targets.ascend",
        "machine": describe_machine().model_dump(),
        "models": [row for row in kept if row["name"] not in measured] + rows,
        "aipp": aipp,
    }
    RESULTS.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    ascend_table.main()


def measure(title: str, path: Path) -> dict[str, Any]:
    """Export one package's INT8 variant, and compute what was written."""
    print(title, flush=True)
    package = Package.open(path)
    feeds = _samples(package, path.parent, few="random weights" in title)
    with tempfile.TemporaryDirectory() as scratch:
        record = export(path, Path(scratch) / "out", target="ascend", variant="int8").record
        deploy = onnx.load(Path(scratch) / "out" / "model.onnx")
    qdq = onnx.load(package.file(package.variant("int8").file))
    plain = _outputs(qdq, feeds, Optimization.NONE)
    chip = _outputs(in_standard_onnx(deploy), feeds, Optimization.ALL)
    rewritten = _outputs(qdq, feeds, Optimization.ALL)
    apart = difference(qdq, deploy, feeds[:_STEP_SAMPLES])
    row = {
        "name": title,
        "export_s": record["seconds"],
        "size_bytes": record["files"]["model.onnx"]["size_bytes"],
        "nodes_in_int8": len(record["details"]["nodes_in_int8"]),
        "heavy_nodes": sum(node.op_type in _HEAVY for node in qdq.graph.node),
        "steps_largest": apart.steps,
        "values_that_differ": apart.share,
        "step_samples": min(_STEP_SAMPLES, len(feeds)),
        "samples": len(feeds),
        "first_class": _agreement(plain, chip),
        "first_class_of_onnxruntime": _agreement(plain, rewritten),
        "cosine": _cosine(plain, chip),
        "cosine_of_onnxruntime": _cosine(plain, rewritten),
    }
    print(json.dumps(row), flush=True)
    return row


def measure_aipp(title: str, path: Path) -> dict[str, Any]:
    """Largest difference from the host, in levels of 255, over all colours and on photos."""
    preprocessing = Package.open(path).manifest.preprocessing
    assert preprocessing is not None
    photos = [
        read_pixels(photo, preprocessing) for photo in sorted((path.parent / "crops-evaluation").iterdir())[:_PHOTOS]
    ]
    cases = [("rgb", "bt601-wide"), *itertools.product(("nv12", "nv21"), STANDARDS)]
    rows = [_aipp_row(source, standard, preprocessing, photos) for source, standard in cases]
    return {"package": title, "photos": len(photos), "rows": rows}


def _aipp_row(source: str, standard: str, preprocessing: Preprocessing, photos: list[Array]) -> dict[str, Any]:
    aipp = configure(preprocessing, source, standard)
    std = np.asarray(preprocessing.std)[:, None, None]
    worst = 0.0
    for photo in photos:
        pixels = photo if source == "rgb" else _encoded(VIDEO_STANDARDS[standard], photo, swapped=source == "nv21")
        apart = convert(aipp, pixels).astype(np.float64) - on_the_host(preprocessing, source, standard, pixels)
        worst = max(worst, float((np.abs(apart) * std).max()) / preprocessing.scale)
    every = worst_difference(aipp, preprocessing)
    return {"source": source, "matrix": aipp.standard, "levels_of_all_colours": every, "levels_on_photos": worst}


def _encoded(standard: VideoStandard, rgb: Array, *, swapped: bool) -> Array:
    """Y, U and V (swapped: Y, V, U) of a photo, each pixel with its own, uint8 (H, W, 3)."""
    red, green, blue = np.moveaxis(rgb.astype(np.float64), -1, 0)
    y = standard.red * red + (1 - standard.red - standard.blue) * green + standard.blue * blue
    u, v = (blue - y) / (2 * (1 - standard.blue)), (red - y) / (2 * (1 - standard.red))
    luma, chroma, black = (219 / 255, 224 / 255, 16) if standard.narrow else (1.0, 1.0, 0)
    first, second = (v, u) if swapped else (u, v)
    planes = [y * luma + black, first * chroma + 128, second * chroma + 128]
    return np.stack(planes, axis=-1).round().clip(0, 255).astype(np.uint8)


def _samples(package: Package, folder: Path, *, few: bool) -> list[Feeds]:
    manifest = package.manifest
    evaluation = folder / ("crops-evaluation" if manifest.preprocessing else "texts-evaluation.npz")
    samples = SampleReader(manifest.inputs, manifest.preprocessing, manifest.labels, Silent()).read(evaluation)
    count = _FEW_SAMPLES if few or not manifest.preprocessing else len(samples)
    return list(itertools.islice(samples.batches(1), count))


def _outputs(model: onnx.ModelProto, feeds: list[Feeds], optimization: Optimization) -> Array:
    """First output of all calls, (samples, values)."""
    name = model.graph.output[0].name
    with closing(engine().load(model.SerializeToString(), EngineOptions(optimization=optimization))) as executable:
        return np.concatenate([executable.run(one)[name].reshape(1, -1) for one in feeds])


def _agreement(expected: Array, got: Array) -> float:
    """Share of samples with the same first class."""
    return float(np.mean(expected.argmax(axis=1) == got.argmax(axis=1)))


def _cosine(expected: Array, got: Array) -> float:
    """Mean cosine of the samples' outputs."""
    norms = np.linalg.norm(expected, axis=1) * np.linalg.norm(got, axis=1)
    return float(np.mean((expected * got).sum(axis=1) / norms))


if __name__ == "__main__":
    main()
