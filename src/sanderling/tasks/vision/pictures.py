"""Pictures in any form as the input of a package's model."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import BinaryIO

import numpy as np

from sanderling.core.errors import DataError, OptionError
from sanderling.core.tensor import Array
from sanderling.model.manifest import Manifest
from sanderling.model.preprocessing import Preprocessing
from sanderling.run.pictures import read_frame, read_picture
from sanderling.run.session import Session, load
from sanderling.run.vision.frames import Frame, frame_of
from sanderling.run.vision.placing import Placement
from sanderling.run.vision.sources import open_source
from sanderling.run.vision.transforms import Transform, transform

Picture = str | Path | Frame | Array
"""A file, a frame, or uint8 pixels: (H, W, 3) in RGB order or (H, W) grey."""


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


def picture_feeds(manifest: Manifest, picture: Path | BinaryIO) -> dict[str, Array]:
    """A picture as the model's input.

    Raises:
        OptionError: the package takes no pictures.
        DataError: the picture cannot be read.
    """
    return {manifest.inputs[0].name: read_picture(picture, check_pictures(manifest))}


def to_frame(picture: Picture) -> Frame:
    """A picture of any form as a frame; of a file with several its first.

    Raises:
        DataError: it cannot be read, or has another dtype or shape.
    """
    if isinstance(picture, Frame):
        return picture
    if isinstance(picture, str | Path):
        with open_source(picture) as source:
            return next(iter(source))
    if not isinstance(picture, np.ndarray):
        raise DataError(f"picture is a {type(picture).__name__}: expected a path, a Frame, or an array of uint8")
    return frame_of(picture, "gray" if picture.ndim == 2 else "rgb")


def placed_feeds(manifest: Manifest, picture: Path | BinaryIO) -> tuple[dict[str, Array], Placement]:
    """A picture as the model's input, and where its pixels lie in it.

    Raises:
        OptionError: the package takes no pictures.
        DataError: the picture cannot be read.
    """
    tensor, placement = transform(read_frame(picture), check_pictures(manifest))
    return {manifest.inputs[0].name: tensor}, placement


class PictureModel:
    """A package that takes pictures, loaded. Close it, or use it in a ``with`` block.

    Attributes:
        session: that runs it.
        preprocessing: how pictures become its input.
    """

    def __init__(self, package: str | Path | Session, *, variant: str | None = None, threads: int = 0) -> None:
        """Load a package, or take a session that somebody else closes."""
        self._own = not isinstance(package, Session)
        self.session = package if isinstance(package, Session) else load(package, variant=variant, threads=threads)
        try:
            self.preprocessing = check_pictures(self.session.manifest)
        except OptionError:
            self.close()
            raise
        self._transform = Transform(self.preprocessing)
        self._transforming = threading.Lock()

    def run(self, picture: Picture) -> tuple[dict[str, Array], Placement, Frame]:
        """The model's outputs for one picture, where it lay in the input, and the picture."""
        frame = to_frame(picture)
        with self._transforming:
            tensor, placement = self._transform(frame)
        return dict(self.session.run({self.session.inputs[0].name: tensor})), placement, frame

    def close(self) -> None:
        """Close the session, if it was opened here."""
        if self._own:
            self.session.close()
