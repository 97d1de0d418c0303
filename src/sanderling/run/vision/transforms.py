"""Frames to a model's input, written where the engine reads it.

A frame is converted to the model's colours first and resized then, as files are and as the module on a phone does.
What depends on the frame's size alone (weights, scratch memory) is kept from frame to frame.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sanderling.core.errors import TensorError
from sanderling.core.tensor import Array
from sanderling.model.preprocessing import Preprocessing
from sanderling.run.vision.bands import resample, to_levels
from sanderling.run.vision.color import converted, split
from sanderling.run.vision.frames import Frame
from sanderling.run.vision.placing import Placement, place
from sanderling.run.vision.resizing import Resizing, plan_resizing, scaling
from sanderling.run.vision.strips import write_strips

__all__ = ["Placement", "Transform", "place", "transform"]

Floats = npt.NDArray[np.float32]


class Transform:
    """Makes tensors of frames, and keeps what frames of one size have in common; for one thread at a time.

    Attributes:
        preprocessing: what the model expects.
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing
        self._factors, self._biases = scaling(preprocessing)
        self._key: tuple[object, ...] = ()
        self._plan: Resizing | None = None
        self._planar: Floats | None = None

    def __call__(self, frame: Frame, *, out: Array | None = None) -> tuple[Floats, Placement]:
        """Convert, resize, scale and normalise.

        Args:
            frame: the picture.
            out: float32, shape ``preprocessing.shape``: an engine's bound input, which is written in place.

        Returns:
            ``out`` or a new array, and where the frame's pixels lie in it.

        Raises:
            DataError: ``resize`` is ``none`` and the frame has another size.
            TensorError: ``out`` has another dtype or shape.
            UnavailableError: OpenCV is not installed.
        """
        made = np.empty(self.preprocessing.shape, np.float32) if out is None else self._checked(out)
        plan = self._plan_for(frame)
        planes = made[0] if self.preprocessing.layout == "NCHW" else self._planar_scratch()
        self._fill(frame, plan, planes)
        if self.preprocessing.layout == "NHWC":
            np.copyto(made[0], planes.transpose(1, 2, 0))
        return made, plan.placement

    def _fill(self, frame: Frame, plan: Resizing, planes: Floats) -> None:
        """Write all of the tensor, its planes first."""
        pad = np.float32(self.preprocessing.pad)
        inner = plan.fit
        bottom, right = inner.top + inner.height, inner.left + inner.width
        for channel, plane in enumerate(planes):
            value = pad * self._factors[channel] + self._biases[channel]
            plane[: inner.top] = value
            plane[bottom:] = value
            plane[inner.top : bottom, : inner.left] = value
            plane[inner.top : bottom, right:] = value
        target = planes[:, inner.top : bottom, inner.left : right]
        if plan.strips:
            write_strips(plan.strips, frame, self.preprocessing.color, self._biases, target)
            return
        pixels = converted(frame, plan.region, self.preprocessing.color, out=plan.colored)
        if plan.is_exact_on_levels:
            self._write(split(plan.resized(pixels), plan.planes), target)
        else:
            values = resample(
                split(pixels, plan.planes),
                plan.rows,
                plan.columns,
                columns_first=plan.columns_first,
                rounded=plan.rounded,
            )
            self._write(to_levels(values) if plan.rounded else np.clip(values, 0, 255, out=values), target)
        for plane, bias in zip(target, self._biases, strict=True):
            if bias != 0:
                plane += bias

    def _write(self, planes: Array, target: Floats) -> None:
        """Planes that have their final size; a grey one serves for all."""
        for channel, plane in enumerate(target):
            np.multiply(planes[channel % len(planes)], self._factors[channel], out=plane)

    def _plan_for(self, frame: Frame) -> Resizing:
        key = (frame.format, frame.width, frame.height)
        if self._plan is None or self._key != key:
            self._plan, self._key = plan_resizing(self.preprocessing, frame), key
        return self._plan

    def _planar_scratch(self) -> Floats:
        if self._planar is None:
            _, height, width, channels = self.preprocessing.shape
            self._planar = np.empty((channels, height, width), np.float32)
        return self._planar

    def _checked(self, out: Array) -> Floats:
        if out.dtype != np.float32 or out.shape != self.preprocessing.shape or not out.flags.writeable:
            raise TensorError(
                f"out is {out.dtype}{list(out.shape)}: expected float32{list(self.preprocessing.shape)} to write to"
            )
        return out


def transform(frame: Frame, preprocessing: Preprocessing, *, out: Array | None = None) -> tuple[Floats, Placement]:
    """One frame as the model's input; see ``Transform``."""
    return Transform(preprocessing)(frame, out=out)


def fitted(pixels: Array, preprocessing: Preprocessing) -> npt.NDArray[np.uint8]:
    """Resize pixels that have the model's colours, in whole levels; see ``Transform``.

    Args:
        pixels: uint8, shape (H, W, C) or (H, W).
        preprocessing: what the model expects; scale, mean, std and layout are not looked at.

    Returns:
        uint8, shape (height, width, C).
    """
    frame = Frame(pixels, "gray" if pixels.ndim == 2 else "rgb", pixels.shape[1], pixels.shape[0])
    color = "gray" if pixels.ndim == 2 else "rgb"
    plain = {"color": color, "scale": 1.0, "mean": (0.0,) * 3, "std": (1.0,) * 3, "layout": "NHWC"}
    if color == "gray":
        plain |= {"mean": (0.0,), "std": (1.0,)}
    values, _ = transform(frame, preprocessing.model_copy(update=plain))
    return to_levels(values[0]).astype(np.uint8)
