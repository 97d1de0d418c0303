"""Differential privacy at epsilon 8 beside the same training without it: the last layer, on a worse camera."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learn.camera import TESTED, accuracy, through_camera
from benchmarks.learn.cases import FASHION, prepare_case
from benchmarks.zoo.fashion_data import load_fashion_mnist, normalize
from sanderling.api import learn_run

PICTURES = 4_000
TARGET = "epsilon=8,delta=1e-5,clip=1"
_EPOCHS, _BATCH = 8, 256


def measure(folder: Path) -> dict[str, Any]:
    """Train the last layer both ways on the same pictures.

    Raises:
        FileNotFoundError: the dataset is not installed.
    """
    package = folder / "private.sdl"
    spec = prepare_case(FASHION, "head", package)
    if spec.private.file is None:
        return {"refused": spec.private.refused}
    images, labels = load_fashion_mnist("train")
    data = folder / "private.npz"
    np.savez(data, input=normalize(through_camera(images[:PICTURES], seed=0)), label=labels[:PICTURES])
    images, labels = load_fashion_mnist("t10k")
    test = {"input": normalize(through_camera(images[:TESTED], seed=1_000)), "label": labels[:TESTED]}
    runs = {}
    for name, target in (("plain", None), ("private", TARGET)):
        checkpoint = folder / f"{name}.safetensors"
        start = time.perf_counter()
        found = learn_run(
            package, data, epochs=_EPOCHS, batch=_BATCH, learning_rate=5e-3, checkpoint=checkpoint, privacy=target
        )
        runs[name] = {
            "accuracy": accuracy(package, test, checkpoint),
            "privacy": found.privacy.model_dump() if found.privacy else None,
            "seconds": round(time.perf_counter() - start, 1),
        }
        print(name, runs[name], flush=True)
    return {
        "target": TARGET,
        "pictures": PICTURES,
        "epochs": _EPOCHS,
        "batch": _BATCH,
        "before": accuracy(package, test),
        **runs,
    }
