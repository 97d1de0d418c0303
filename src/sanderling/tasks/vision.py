"""Classify pictures with a package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from sanderling.core.errors import OptionError
from sanderling.core.tensor import Array
from sanderling.measure.accuracy import classifier_classes
from sanderling.run.pictures import read_picture
from sanderling.run.session import Session


class Label(BaseModel):
    """A class with its probability, in [0, 1]."""

    model_config = ConfigDict(frozen=True)

    index: int
    label: str
    probability: float


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
    preprocessing = session.manifest.preprocessing
    if preprocessing is None:
        raise OptionError(
            f"package '{session.manifest.name}' does not say how pictures become its input: give .npz or .npy files, "
            "or build it with --preprocess"
        )
    if classifier_classes(session.outputs) is None:
        raise OptionError(
            f"package '{session.manifest.name}' is no classifier: outputs are {'; '.join(map(str, session.outputs))}; "
            "give .npz or .npy files for raw outputs"
        )
    outputs = session.run({session.inputs[0].name: read_picture(picture, preprocessing)})
    probabilities = to_probabilities(next(iter(outputs.values()))[0])
    names = session.manifest.labels
    return tuple(
        Label(
            index=int(index),
            label=names[index] if names else f"class {index}",
            probability=float(probabilities[index]),
        )
        for index in np.argsort(-probabilities, kind="stable")[:top]
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
