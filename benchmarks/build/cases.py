"""The models of the build benchmark and how each is built."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.build.data import fashion_arrays, opencv_photos, photo_crops
from benchmarks.zoo.mobilenet_v2 import mobilenet_v2_weights
from sanderling.demo.story import ARGUMENTS, MODEL, PREPROCESSING, find_weights

WEIGHTS = Path(__file__).parents[1] / "zoo" / "weights"


@dataclass(frozen=True)
class Case:
    """A model, the options of its build, and further data to measure agreement on.

    Attributes:
        name: in the results.
        source: as ``sanderling build`` takes it.
        options: keyword arguments of ``sanderling.build``.
        more_data: by name, folders or arrays that ``verify`` measures on.
    """

    name: str
    source: str
    options: dict[str, Any]
    more_data: Mapping[str, Path] = field(default_factory=dict)


def make_cases(folder: Path) -> list[Case]:
    """Write the data below ``folder`` and return every case."""
    calibration, evaluation = photo_crops(folder)
    manual_and_examples = opencv_photos(folder)
    more = {"opencv-doc examples": manual_and_examples[1]} if manual_and_examples else {}
    photos: dict[str, Any] = {"calibration": calibration, "evaluation": evaluation, "dynamic": ["batch"]}
    pictures = {**photos, "inputs": ["input=1,3,224,224"]}
    lite0 = {
        **pictures,
        "weights": find_weights(),
        "factory_arguments": ARGUMENTS,
        "preprocess": json.dumps(PREPROCESSING),
    }
    cases = [Case("EfficientNet-Lite0", MODEL, lite0, more)]
    if manual_and_examples:
        manual = {**lite0, "calibration": manual_and_examples[0]}
        cases.append(Case("EfficientNet-Lite0, 321 pictures to calibrate", MODEL, manual, more))
    mobilenet = {**pictures, "weights": mobilenet_v2_weights(), "preprocess": "imagenet"}
    cases.append(Case("MobileNetV2", "benchmarks.zoo.mobilenet_v2:mobilenet_v2", mobilenet, more))
    random = {**pictures, "preprocess": "imagenet"}
    cases.append(Case("ResNet-18, random weights", "benchmarks.zoo.resnet18:resnet18", random))
    return [*cases, *_fashion_cases(folder)]


def _fashion_cases(folder: Path) -> list[Case]:
    calibration, test = fashion_arrays(folder)
    return [
        Case(
            title,
            f"benchmarks.zoo.fashion:{factory}",
            {
                "weights": WEIGHTS / f"{factory}.safetensors",
                "inputs": ["input=1,1,28,28"],
                "dynamic": ["batch"],
                "calibration": calibration,
                "evaluation": test,
                "budget": "top1=0.8",
            },
        )
        for title, factory in (("Fashion CNN", "fashion_cnn"), ("Fashion depthwise", "fashion_depthwise"))
    ]
