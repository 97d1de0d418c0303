"""Classify pictures with a package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from sanderling.core.closing import Closing
from sanderling.core.errors import OptionError
from sanderling.core.tensor import Array, Feeds
from sanderling.measure.accuracy import classifier_classes
from sanderling.model.manifest import Manifest
from sanderling.run.session import Session
from sanderling.run.vision.frames import Frame
from sanderling.run.vision.placing import Placement
from sanderling.run.vision.reading import reader_of
from sanderling.tasks.vision.pictures import Picture, PictureModel, check_pictures, picture_feeds


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
    check_pictures(session.manifest)
    check_classifier(session.manifest)
    return best_labels(session.manifest, session.run(picture_feeds(session.manifest, picture)), top=top)


class Classifier(Closing):
    """Says what pictures show. Close it, or use it in a ``with`` block.

    Attributes:
        session: that runs the package.
        top: how many classes it tells.
    """

    def __init__(
        self, package: str | Path | Session, *, top: int = 5, variant: str | None = None, threads: int = 0
    ) -> None:
        """Load a package, or use a session, which stays open.

        Args:
            package: ``NAME.sdl``, a zip of one, or a session.
            top: how many classes to tell.
            variant: id; the plan's, or the chosen one, by default.
            threads: of one call; 0 leaves it to the plan or the engine.

        Raises:
            OptionError: the package takes no pictures, or is no classifier.
        """
        self._model = PictureModel(package, variant=variant, threads=threads)
        self.session = self._model.session
        self.top = top
        try:
            check_classifier(self.session.manifest)
        except OptionError:
            self.close()
            raise

    def classify(self, picture: Picture) -> tuple[Label, ...]:
        """The likeliest classes of a picture, best first.

        Args:
            picture: a file, a frame in any pixel format, or uint8 pixels (H, W, 3) in RGB order or (H, W).

        Raises:
            DataError: the picture cannot be read.
        """
        return self.read(*self._model.run(picture))

    def read(self, outputs: Feeds, placement: Placement, frame: Frame) -> tuple[Label, ...]:  # noqa: ARG002
        """What the model's outputs for a frame say; a pipeline's reader."""
        return best_labels(self.session.manifest, outputs, top=self.top)

    def close(self) -> None:
        """Close the session, if it was opened here."""
        self._model.close()


def check_classifier(manifest: Manifest) -> None:
    """Check that the model gives a score for each class.

    Raises:
        OptionError: it does not.
    """
    if classifier_classes(manifest.outputs) is None:
        cure = "use sanderling detect, or " if reader_of(manifest) is not None else ""
        raise OptionError(
            f"package '{manifest.name}' is no classifier: outputs are {'; '.join(map(str, manifest.outputs))}; "
            f"{cure}give .npz or .npy files for raw outputs"
        )


def best_labels(manifest: Manifest, outputs: Feeds, *, top: int) -> tuple[Label, ...]:
    """The likeliest classes by a classifier's outputs for one picture, best first."""
    probabilities = to_probabilities(next(iter(outputs.values()))[0])
    return tuple(
        Label(index=int(index), label=label_of(manifest, int(index)), probability=float(probabilities[index]))
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


def label_of(manifest: Manifest, index: int) -> str:
    """The name of a class."""
    return manifest.labels[index] if manifest.labels and index < len(manifest.labels) else f"class {index}"
