"""Frames to a model's input."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sanderling.core.errors import TensorError
from sanderling.core.tensor import Array
from sanderling.model.preprocessing import Preprocessing
from sanderling.run.vision.frames import Frame
from sanderling.run.vision.placing import Placement, fit, place

__all__ = ["Placement", "Transform", "place", "transform"]


class Transform:
    """Makes tensors of frames, and keeps what frames of one size have in common; for one thread.

    Attributes:
        preprocessing: what the model expects.
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing

    def __call__(self, frame: Frame, *, out: Array | None = None) -> tuple[npt.NDArray[np.float32], Placement]:
        """Resize, convert, scale and normalise in one pass.

        Args:
            frame: the picture.
            out: float32, shape ``preprocessing.shape``: an engine's bound input, which is written in place.

        Returns:
            ``out`` or a new array, and where the frame's pixels lie in it.

        Raises:
            DataError: ``resize`` is ``none`` and the frame has another size.
            TensorError: ``out`` has another dtype or shape.
        """
        raise NotImplementedError


def transform(
    frame: Frame, preprocessing: Preprocessing, *, out: Array | None = None
) -> tuple[npt.NDArray[np.float32], Placement]:
    """One frame as the model's input; see ``Transform``."""
    return Transform(preprocessing)(frame, out=out)
