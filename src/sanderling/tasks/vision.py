"""Classify pictures with a package, and find objects on them."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
from pydantic import BaseModel, ConfigDict

from sanderling.core.errors import OptionError
from sanderling.core.tensor import Array, Feeds
from sanderling.measure.accuracy import classifier_classes
from sanderling.measure.detection import detector_classes, read_detections
from sanderling.model.manifest import Manifest
from sanderling.model.preprocessing import Preprocessing
from sanderling.run.pictures import read_picture
from sanderling.run.session import Session


class Label(BaseModel):
    """A class with its probability, in [0, 1]."""

    model_config = ConfigDict(frozen=True)

    index: int
    label: str
    probability: float


class Found(BaseModel):
    """An object on a picture.

    Attributes:
        box: left, top, right and bottom in pixels of the model's input.
        score: in [0, 1].
    """

    model_config = ConfigDict(frozen=True)

    index: int
    label: str
    score: float
    box: tuple[float, float, float, float]


def classify(session: Session, picture: Path, *, top: int = 5) -> tuple[Label, ...]:
    """The likeliest classes of a picture, best first.

    Args:
        session: of a package with preprocessing and one output of shape (N, classes).
        picture: the file.
        top: how many classes.

    Raises:
        OptionError: the package takes no pictures, or is no classifier.
        DataError: the picture cannot be read.
    """
    check_pictures(session.manifest)
    check_classifier(session.manifest)
    return best_labels(session.manifest, session.run(picture_feeds(session.manifest, picture)), top=top)


def check_pictures(manifest: Manifest) -> Preprocessing:
    """How pictures become the model's input.

    Raises:
        OptionError: the package does not say.
    """
    if manifest.preprocessing is None:
        raise OptionError(
            f"package '{manifest.name}' does not say how pictures become its input: give .npz or .npy files, "
            "or build it with --preprocess"
        )
    return manifest.preprocessing


def check_classifier(manifest: Manifest) -> None:
    """Check that the model gives a score for each class.

    Raises:
        OptionError: it does not.
    """
    if classifier_classes(manifest.outputs) is None:
        raise OptionError(
            f"package '{manifest.name}' is no classifier: outputs are {'; '.join(map(str, manifest.outputs))}; "
            "give .npz or .npy files for raw outputs"
        )


def check_detector(manifest: Manifest) -> None:
    """Check that the model's output is one that detections can be read from.

    Raises:
        OptionError: it is not.
    """
    if detector_classes(manifest.outputs) is None:
        raise OptionError(
            f"package '{manifest.name}' is no detector whose output can be read: outputs are "
            f"{'; '.join(map(str, manifest.outputs))}; expected (N, 4 + classes, anchors), as YOLOv8 has it"
        )


def picture_feeds(manifest: Manifest, picture: Path | BinaryIO) -> dict[str, Array]:
    """A picture as the model's input.

    Raises:
        OptionError: the package takes no pictures.
        DataError: the picture cannot be read.
    """
    return {manifest.inputs[0].name: read_picture(picture, check_pictures(manifest))}


def best_labels(manifest: Manifest, outputs: Feeds, *, top: int) -> tuple[Label, ...]:
    """The likeliest classes by a classifier's outputs for one picture, best first."""
    probabilities = to_probabilities(next(iter(outputs.values()))[0])
    return tuple(
        Label(index=int(index), label=_name(manifest, int(index)), probability=float(probabilities[index]))
        for index in np.argsort(-probabilities, kind="stable")[:top]
    )


def best_detections(manifest: Manifest, outputs: Feeds, *, least: float) -> tuple[Found, ...]:
    """What a detector found on one picture with a score of at least ``least``, best first."""
    detections = read_detections(next(iter(outputs.values()))[:1])[0]
    return tuple(
        Found(index=int(index), label=_name(manifest, int(index)), score=float(score), box=tuple(box.tolist()))
        for index, score, box in zip(detections.classes, detections.scores, detections.boxes, strict=True)
        if score >= least
    )


def to_probabilities(scores: Array) -> Array:
    """Softmax, unless the scores are probabilities already (non-negative, sum 1).

    Args:
        scores: float, shape (classes,).
    """
    values = scores.astype(np.float64)
    if (values >= 0).all() and abs(values.sum() - 1) < 1e-3:
        return values
    exponentials = np.exp(values - values.max())
    result: Array = exponentials / exponentials.sum()
    return result


def _name(manifest: Manifest, index: int) -> str:
    return manifest.labels[index] if manifest.labels else f"class {index}"
