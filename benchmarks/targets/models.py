"""The five models of the targets' benchmark, built to packages with FP32 and INT8."""

from __future__ import annotations

from pathlib import Path

from benchmarks.engines.models import build_models, list_models
from benchmarks.zoo.mobilenet_v2 import mobilenet_v2_weights

_DETECTORS = "YOLO"
_PRECISION = {"precision": "fp32,int8"}


def build_packages(folder: Path, only: str = "") -> dict[str, Path]:
    """Build each model whose title contains ``only`` and that has no package in ``folder`` yet; by title, all."""
    models = {title: found for title, found in list_models(folder).items() if not title.startswith(_DETECTORS)}
    pictures = next(options for title, (_, options) in models.items() if title.startswith("ResNet"))
    models["MobileNetV2"] = (
        "benchmarks.zoo.mobilenet_v2:mobilenet_v2",
        {**pictures, "weights": mobilenet_v2_weights()},
    )
    wanted = {title: found for title, found in models.items() if only.lower() in title.lower()}
    return build_models(
        folder, {title: (source, {**options, **_PRECISION}) for title, (source, options) in wanted.items()}
    )
