"""How grey levels became a picture's input: ``level * step + offset`` per channel, declared or read off the values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sanderling.core.tensor import Array
from sanderling.model.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing

_LEVELS = 256
_LEAST_LEVELS = 32
_WHOLE = 0.1  # of a level
_REACHES = (16.0, 64.0, 256.0)
_MOST = 0.999
_STEP_TOLERANCE = 0.01
_OFFSET_TOLERANCE = 0.5  # of a level


@dataclass(frozen=True)
class Encoding:
    """``level * step + offset`` per channel, levels 0 … 255.

    Attributes:
        step: shape (C,).
        offset: shape (C,).
        exact: False when levels 0 and 255 were not both seen, so that ``offset`` may be off by whole levels.
    """

    name: str
    step: tuple[float, ...]
    offset: tuple[float, ...]
    exact: bool = True

    @property
    def span(self) -> tuple[float, float]:
        """Lowest and highest value that it can give."""
        ends = [
            offset + level * step for step, offset in zip(self.step, self.offset, strict=True) for level in (0, 255)
        ]
        return min(ends), max(ends)

    @property
    def mean(self) -> tuple[float, ...]:
        """Of a normalisation after a division by 255."""
        return tuple(-offset / (255 * step) for step, offset in zip(self.step, self.offset, strict=True))

    @property
    def std(self) -> tuple[float, ...]:
        """Of a normalisation after a division by 255."""
        return tuple(1 / (255 * step) for step in self.step)

    @property
    def reversed(self) -> Encoding:
        """The same with the channels in opposite order."""
        return Encoding(f"{self.name}, channels reversed", self.step[::-1], self.offset[::-1], self.exact)

    def scaled(self, factor: float) -> Encoding:
        """The same with levels multiplied first."""
        return Encoding(f"{self.name} × {factor:.3g}", tuple(factor * step for step in self.step), self.offset)

    def equals(self, other: Encoding) -> bool:
        """Whether both give the same values, to half a grey level."""
        if len(self.step) != len(other.step):
            return False
        step, own = np.asarray(other.step), np.asarray(self.step)
        shift = (np.asarray(self.offset) - np.asarray(other.offset)) / step
        if not (self.exact and other.exact):
            shift = shift - np.round(shift)
        return bool((np.abs(own / step - 1) < _STEP_TOLERANCE).all() and (np.abs(shift) < _OFFSET_TOLERANCE).all())

    def apply(self, levels: Array, axis: int) -> npt.NDArray[np.float32]:
        """Values of ``levels``, float of any shape with channels along ``axis``."""
        shape = [1] * levels.ndim
        shape[axis] = -1
        step, offset = np.reshape(self.step, shape), np.reshape(self.offset, shape)
        return np.asarray(levels * step + offset, np.float32)

    def undo(self, values: Array, axis: int) -> npt.NDArray[np.float64]:
        """Grey levels of ``values``."""
        shape = [1] * values.ndim
        shape[axis] = -1
        return np.asarray((values.astype(np.float64) - np.reshape(self.offset, shape)) / np.reshape(self.step, shape))

    def holds(self, values: Array, axis: int) -> bool:
        """Whether the values are whole grey levels under this encoding: posterised pictures show a coarser step."""
        levels = self.undo(values, axis)
        whole = np.round(levels)
        inside = (np.abs(levels - whole) < _WHOLE) & (whole >= 0) & (whole < _LEVELS)
        return bool(inside.mean() > _MOST and len(np.unique(whole)) >= _LEAST_LEVELS // 2)

    def told(self) -> str:
        """In words: mean and standard deviation after a division by 255."""
        return f"mean {_listed(self.mean)}, std {_listed(self.std)}"


def declared(preprocessing: Preprocessing, name: str) -> Encoding:
    """The encoding that a preprocessing says."""
    pairs = list(zip(preprocessing.mean, preprocessing.std, strict=True))
    return Encoding(
        name,
        tuple(preprocessing.scale / std for _, std in pairs),
        tuple(-mean / std for mean, std in pairs),
    )


def usual(channels: int) -> tuple[Encoding, ...]:
    """Encodings that many models were trained with."""
    raw = Encoding("raw 0…255", (1.0,) * channels, (0.0,) * channels)
    unit = Encoding("unit 0…1", (1 / 255,) * channels, (0.0,) * channels)
    signed = Encoding("signed -1…1", (2 / 255,) * channels, (-1.0,) * channels)
    if channels != 3:
        return raw, unit, signed
    step = tuple(1 / (255 * std) for std in IMAGENET_STD)
    offset = tuple(-mean / std for mean, std in zip(IMAGENET_MEAN, IMAGENET_STD, strict=True))
    return raw, unit, signed, Encoding("imagenet", step, offset)


def read_off(values: Array, axis: int, name: str) -> Encoding | None:
    """The encoding that values of whole grey levels show by themselves; None for resampled pictures and noise.

    Args:
        values: float, channels along ``axis``.
        axis: of the channels.
        name: of the result.
    """
    fitted = [_fit(channel) for channel in np.moveaxis(values, axis, 0)]
    found = [entry for entry in fitted if entry is not None]
    if len(found) != len(fitted):
        return None
    steps, offsets, exact = zip(*found, strict=True)
    return Encoding(name, steps, offsets, all(exact))


def by_range(values: Array, channels: int) -> Encoding | None:
    """The usual encoding whose range the values fill; None when none does."""
    low, high = (float(value) for value in np.percentile(values, (0.1, 99.9)))
    for encoding in usual(channels):
        start, end = encoding.span
        width = end - start
        if low >= start - 0.05 * width and high <= end + 0.05 * width and high - low >= 0.6 * width:
            return encoding
    return None


def _fit(channel: Array) -> tuple[float, float, bool] | None:
    """Step and offset of one channel, and whether the levels go from 0 to 255."""
    seen = np.unique(channel.astype(np.float64))
    low, high = seen[0], seen[-1]
    resolution = 1e-6 * max(abs(low), abs(high), 1e-30)
    seen = seen[np.concatenate([[True], np.diff(seen) > resolution])]
    if not _LEAST_LEVELS <= len(seen) <= _LEVELS:
        return None
    gaps = np.diff(seen)
    step = float(gaps[gaps < 1.5 * gaps.min()].mean())
    for reach in _REACHES:  # a few gaps are coarse: each round counts further than the one before could have
        near = seen[seen - low < reach * step] - low
        levels = np.round(near / step)
        step = float(near @ levels / max(levels @ levels, 1.0)) or step
    levels = np.round((seen - low) / step)
    if levels[-1] > _LEVELS - 1 or np.abs((seen - low) / step - levels).max() > _WHOLE:
        return None
    return step, float(low), bool(levels[-1] == _LEVELS - 1)


def _listed(values: Sequence[float]) -> str:
    return "(" + ", ".join(f"{value:.3g}" for value in values) + ")"
