"""INT8 with and without training on Fashion-MNIST: `python -m benchmarks.quantize.training [--folder DIR]`.

Takes the depthwise network by `sanderling build` and by `sanderling finetune-quantized`, both with their defaults, and
writes `benchmarks/quantize/training.json`: accuracy on all 10,000 test images, and how long each took. Needs Debian's
`dataset-fashion-mnist`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo.fashion_data import Split, load_fashion_mnist, normalize
from sanderling.api import build, finetune_quantized
from sanderling.core.machine import describe_machine
from sanderling.workshop.pipeline import BuildResult

RESULTS = Path(__file__).with_name("training.json")
SOURCE = "benchmarks.zoo.fashion:fashion_depthwise"
WEIGHTS = Path(__file__).parents[1] / "zoo" / "weights" / "fashion_depthwise.safetensors"
_TRAINING_IMAGES = 20_000


def main() -> None:
    """Measure both, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where data and packages go; a temporary folder by default")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        data = _write(folder / "train.npz", "train", _TRAINING_IMAGES)
        common: dict[str, Any] = {
            "weights": WEIGHTS,
            "inputs": ["input=1,1,28,28"],
            "dynamic": ["batch"],
            "evaluation": _write(folder / "test.npz", "t10k", None),
            "budget": "top1=0.8",
        }
        ptq = _timed(lambda: build(SOURCE, folder / "ptq.sdl", calibration=data, precision="int8", **common))
        qat = _timed(lambda: finetune_quantized(SOURCE, folder / "qat.sdl", data=data, **common))
    value = {
        "command": "python -m benchmarks.quantize.training",
        "machine": describe_machine().model_dump(),
        "training_images": _TRAINING_IMAGES,
        "ptq": ptq,
        "qat": qat,
    }
    RESULTS.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({"ptq": ptq, "qat": qat}, indent=1))


def _timed(run: Callable[[], BuildResult]) -> dict[str, Any]:
    wall, processor = time.perf_counter(), time.process_time()
    result = run()
    seconds = {
        "wall_s": round(time.perf_counter() - wall, 1),
        "processor_s": round(time.process_time() - processor, 1),
    }
    variants = {
        variant.id: variant.accuracy.model_dump(include={"metric", "value", "drop", "drop_upper", "samples"})
        for variant in result.manifest.variants
        if variant.accuracy
    }
    training = result.evidence.finetuning
    return {**seconds, "variants": variants, "finetuning": training.model_dump() if training else None}


def _write(path: Path, split: Split, count: int | None) -> Path:
    images, labels = load_fashion_mnist(split)
    order = np.random.default_rng(0).permutation(len(images))[:count]
    np.savez(path, input=normalize(images[order]), labels=labels[order])
    return path


if __name__ == "__main__":
    main()
