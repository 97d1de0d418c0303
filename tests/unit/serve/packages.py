"""A small package that serves quickly, and its server's parts without a network."""

from __future__ import annotations

from pathlib import Path

from sanderling.model.package import Package
from tests.models import conv_classifier, random_arrays
from tests.unit.run.guard.packages import package_of


def classifier_package(folder: Path, *, name: str = "tiny", seed: int = 0) -> Package:
    """``image`` (N, 3, 8, 8) to ``scores`` (N, 4), in FP32."""
    calls = [random_arrays({"image": (1, 3, 8, 8)}, seed=1)]
    return package_of(folder, {"fp32": conv_classifier(seed=seed)}, calls, name=name)
