"""The models of the benchmark of accuracy, their data, and the budgets that they are built for."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.build.data import opencv_photos
from benchmarks.zoo.fashion_data import Split, load_fashion_mnist, normalize
from benchmarks.zoo.fashion_scenes import SIZE_PX, write_scenes
from benchmarks.zoo.mobilenet_v2 import mobilenet_v2_weights
from sanderling.core.progress import Silent
from sanderling.demo.photos import CALIBRATION, EVALUATION, find_photos, write_crops
from sanderling.demo.story import ARGUMENTS, MODEL, PREPROCESSING, find_weights

WEIGHTS = Path(__file__).parents[1] / "zoo" / "weights"
PEER_CASE = "MobileNetV2"
_PHOTO_BUDGETS = ("agreement=6", "agreement=8")
_CALIBRATION_SEED, _EVALUATION_SEED, _FRESH_SEED = 1, 2, 3


@dataclass(frozen=True)
class Counts:
    """How many samples of each kind."""

    calibration: int = 256
    photos: int = 320
    test_images: int = 10_000
    fashion_calibration: int = 512
    scenes: int = 1_000


@dataclass(frozen=True)
class Case:
    """A model with calibration data.

    Attributes:
        name: of the model.
        data: what it is calibrated on, in words.
        source: as ``sanderling build`` takes it.
        options: keyword arguments of ``sanderling.build`` but the budget.
        budgets: to build for, the tightest first.
        fresh: further crops of the evaluation photos, which no build has seen; None for other data.
    """

    name: str
    data: str
    source: str
    options: dict[str, Any]
    budgets: tuple[str, ...]
    fresh: Path | None = None


def make_cases(folder: Path, counts: Counts) -> list[Case]:
    """Write the data below ``folder``, and return every case."""
    return [*_photo_cases(folder, counts), _fashion_case(folder, counts), _detector_case(folder, counts)]


def _photo_cases(folder: Path, counts: Counts) -> list[Case]:
    evaluation = _crops(folder / "crops-evaluation", EVALUATION, counts.photos, _EVALUATION_SEED)
    fresh = _crops(folder / "crops-fresh", EVALUATION, counts.photos, _FRESH_SEED)
    crops = _crops(folder / "crops-calibration", CALIBRATION, counts.calibration, _CALIBRATION_SEED)
    calibrations = {f"{counts.calibration} crops of {len(CALIBRATION)} photos": crops}
    manual = opencv_photos(folder)
    if manual:
        pictures = _some(manual[0], folder / "pictures-calibration", counts.calibration)
        calibrations[f"{len(list(pictures.iterdir()))} pictures of a manual"] = pictures
    models = {
        PEER_CASE: (
            "benchmarks.zoo.mobilenet_v2:mobilenet_v2",
            {"weights": mobilenet_v2_weights(), "preprocess": "imagenet"},
        ),
        "EfficientNet-Lite0": (
            MODEL,
            {"weights": find_weights(), "factory_arguments": ARGUMENTS, "preprocess": json.dumps(PREPROCESSING)},
        ),
    }
    common = {"inputs": ["input=1,3,224,224"], "dynamic": ["batch"], "evaluation": evaluation}
    return [
        Case(name, data, source, {**common, **options, "calibration": calibration}, _PHOTO_BUDGETS, fresh)
        for name, (source, options) in models.items()
        for data, calibration in calibrations.items()
    ]


def _fashion_case(folder: Path, counts: Counts) -> Case:
    options = {
        "weights": WEIGHTS / "fashion_depthwise.safetensors",
        "inputs": ["input=1,1,28,28"],
        "dynamic": ["batch"],
        "calibration": _fashion(folder / "fashion-calibration.npz", "train", counts.fashion_calibration),
        "evaluation": _fashion(folder / "fashion-test.npz", "t10k", counts.test_images),
    }
    data = f"{counts.fashion_calibration} training images"
    return Case("Fashion depthwise", data, "benchmarks.zoo.fashion:fashion_depthwise", options, ("top1=0.3",))


def _detector_case(folder: Path, counts: Counts) -> Case:
    calibration, evaluation = folder / "scenes-calibration.npz", folder / "scenes-evaluation.npz"
    options = {
        "weights": WEIGHTS / "scene_detector.safetensors",
        "inputs": [f"images=1,3,{SIZE_PX},{SIZE_PX}"],
        "dynamic": ["batch"],
        "preprocess": '{"resize": "none"}',
        "calibration": write_scenes(calibration, "train", counts.calibration, seed=7, labelled=False),
        "evaluation": write_scenes(evaluation, "t10k", counts.scenes, seed=8),
    }
    data = f"{counts.calibration} scenes"
    return Case("Scene detector", data, "benchmarks.zoo.scene_detector:build", options, ("map=1",))


def _crops(folder: Path, photos: tuple[str, ...], count: int, seed: int) -> Path:
    write_crops(find_photos(photos), folder, count=count, seed=seed, progress=Silent())
    return folder


def _some(source: Path, target: Path, count: int) -> Path:
    """Copy as many files, drawn at random."""
    files = sorted(source.iterdir())
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for index in np.random.default_rng(_CALIBRATION_SEED).permutation(len(files))[:count]:
        shutil.copy(files[index], target)
    return target


def _fashion(path: Path, split: Split, count: int) -> Path:
    images, labels = load_fashion_mnist(split)
    np.savez(path, input=normalize(images[:count]), labels=labels[:count])
    return path
