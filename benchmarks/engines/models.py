"""The five models of the choice's benchmark, built to packages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.build.data import photo_crops
from benchmarks.build.texts import token_arrays
from benchmarks.zoo.minilm import TOKENS, minilm_file
from sanderling.api import build
from sanderling.demo.story import ARGUMENTS, MODEL, PREPROCESSING, find_weights

_TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_DETECTOR_PX = 320  # a quarter of the usual 640 x 640's work, which keeps the run short
_DETECTOR_PREPROCESSING = {
    "width": _DETECTOR_PX,
    "height": _DETECTOR_PX,
    "resize": "shorter",
    "mean": [0.0, 0.0, 0.0],
    "std": [1.0, 1.0, 1.0],
}


def list_models(folder: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    """Write the data below ``folder``; by title, each model's source and the options of its build.

    The budgets let every variant in: what is measured is speed, and the weights of some are random.
    """
    photos = dict(zip(("calibration", "evaluation"), photo_crops(folder), strict=True))
    texts = dict(zip(("calibration", "evaluation"), token_arrays(folder), strict=True))
    pictures = {**photos, "inputs": ["input=1,3,224,224"], "preprocess": "imagenet", "budget": "agreement=100"}
    lite0 = {"weights": find_weights(), "factory_arguments": ARGUMENTS, "preprocess": json.dumps(PREPROCESSING)}
    detector = {
        **photos,
        "inputs": [f"input=1,3,{_DETECTOR_PX},{_DETECTOR_PX}"],
        "factory_arguments": {"size_px": _DETECTOR_PX},
        "preprocess": json.dumps(_DETECTOR_PREPROCESSING),
        "budget": "cosine=2",
    }
    sentences = {
        **texts,
        "weights": minilm_file(),
        "inputs": [f"{name}=1,{TOKENS}:int64" for name in _TEXT_INPUTS],
        "budget": "cosine=2",
    }
    return {
        "EfficientNet-Lite0": (MODEL, {**pictures, **lite0}),
        "MobileNetV3-Large, random weights": ("benchmarks.zoo.mobilenet_v3:mobilenet_v3_large", pictures),
        "ResNet-18, random weights": ("benchmarks.zoo.resnet18:resnet18", pictures),
        f"YOLOv5s shape {_DETECTOR_PX}, random weights": ("benchmarks.zoo.yolov5s:yolov5s", detector),
        f"MiniLM-L6, {TOKENS} tokens": ("benchmarks.zoo.minilm:minilm", sentences),
    }


def build_models(folder: Path, models: Mapping[str, tuple[str, dict[str, Any]]]) -> dict[str, Path]:
    """Build each model that has no package in ``folder`` yet; by title, the packages."""
    packages = {}
    for name, (source, options) in models.items():
        package = folder / f"{source.rpartition(':')[2].rpartition('.')[2]}.sdl"
        if not package.exists():
            print(f"{name}: build", flush=True)
            build(source, package, repeats=10, **options)
        packages[name] = package
    return packages
