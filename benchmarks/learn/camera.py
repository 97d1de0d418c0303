"""Fashion-MNIST through a worse camera: tilted, out of focus, in poor light. A device adapts to it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.learn.cases import FASHION, prepare_case
from benchmarks.learn.statistics import mean_interval
from benchmarks.zoo.fashion_data import load_fashion_mnist, normalize
from sanderling.api import learn_run
from sanderling.learn import Trainer

TRAINABLE = "full"
RECIPE: Mapping[str, Any] = {"epochs": 8, "batch": 32, "learning_rate": 1e-3, "schedule": "cosine"}
PICTURES, REPLAYED, TESTED = 400, 800, 4000
SEEDS = 3
_TILT_DEGREES = 15
_BLUR_PX = 0.8
_GAMMA, _CONTRAST, _VEIL = 0.8, 0.7, 25
_NOISE = 6


def measure(folder: Path, *, seeds: int = SEEDS) -> dict[str, Any]:
    """Adapt ``seeds`` times, each to other pictures.

    Raises:
        FileNotFoundError: the dataset is not installed.
    """
    package = folder / "camera.sdl"
    prepare_case(FASHION, TRAINABLE, package)
    images, labels = load_fashion_mnist("t10k")
    tests = {
        "source": {"input": normalize(images[:TESTED]), "label": labels[:TESTED]},
        "target": {"input": normalize(through_camera(images[:TESTED], seed=1_000)), "label": labels[:TESTED]},
    }
    before = {name: accuracy(package, batch) for name, batch in tests.items()}
    runs: list[dict[str, Any]] = []
    for seed in range(seeds):
        data, checkpoint = write_pictures(folder / f"camera-{seed}.npz", seed), folder / f"camera-{seed}.safetensors"
        start = time.perf_counter()
        learn_run(package, data, checkpoint=checkpoint, seed=seed, threads=1, **RECIPE)
        after = {name: accuracy(package, batch, checkpoint) for name, batch in tests.items()}
        runs.append(
            {
                "seed": seed,
                "after": after,
                "gap_closed": (after["target"] - before["target"]) / (before["source"] - before["target"]),
                "forgotten_points": 100 * (before["source"] - after["source"]),
                "seconds": round(time.perf_counter() - start, 1),
            }
        )
        print("camera", runs[-1], flush=True)
    return {
        "trainable": TRAINABLE,
        "recipe": dict(RECIPE),
        "pictures": PICTURES,
        "replayed": REPLAYED,
        "tested": TESTED,
        "before": before,
        "runs": runs,
        "target_after": mean_interval([run["after"]["target"] for run in runs]),
        "gap_closed": mean_interval([run["gap_closed"] for run in runs]),
        "forgotten_points": mean_interval([run["forgotten_points"] for run in runs]),
    }


def through_camera(images: NDArray[np.uint8], *, seed: int) -> NDArray[np.uint8]:
    """Tilt pictures by about 15 degrees, blur them, take away contrast, and add noise.

    Args:
        images: uint8, shape (n, 28, 28).
        seed: of tilts and noise.

    Returns:
        As ``images``.
    """
    from PIL import Image, ImageFilter

    generator = np.random.default_rng(seed)
    seen = np.empty_like(images)
    for index, image in enumerate(images):
        tilt = _TILT_DEGREES + generator.uniform(-5, 5)
        tilted = Image.fromarray(image).rotate(tilt, Image.Resampling.BILINEAR)
        light = np.asarray(tilted.filter(ImageFilter.GaussianBlur(_BLUR_PX)), np.float32) / 255
        dim = 255 * _CONTRAST * light**_GAMMA + _VEIL + generator.normal(0, _NOISE, light.shape)
        seen[index] = np.clip(np.round(dim), 0, 255)
    return seen


def write_pictures(path: Path, seed: int) -> Path:
    """Pictures of the new camera and some of the first training; other ones for each seed."""
    images, labels = load_fashion_mnist("train")
    chosen = np.random.default_rng(seed).choice(len(images), PICTURES + REPLAYED, replace=False)
    new, old = chosen[:PICTURES], chosen[PICTURES:]
    seen = np.concatenate([through_camera(images[new], seed=seed), images[old]])
    np.savez(path, input=normalize(seen), label=labels[chosen])
    return path


def accuracy(package: Path, batch: Mapping[str, Any], checkpoint: Path | None = None) -> float:
    """Share of pictures that are named rightly, with the first parameters or those of a checkpoint."""
    with Trainer(package, threads=1) as trainer:
        if checkpoint is not None:
            trainer.load(checkpoint)
        found = trainer.evaluate(batch).accuracy
    assert found is not None
    return found
