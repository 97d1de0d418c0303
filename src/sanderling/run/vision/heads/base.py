"""What every family of detectors has in common: roles of outputs, forms of scores, units of boxes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sanderling.core.tensor import Array, TensorSpec
from sanderling.model.detection import DetectionSpec, HeadName, Role, ScoreForm
from sanderling.run.vision.detections import DetectionRules, Detections, Floats, Numbers

Size = tuple[int, int]
"""Width and height of the model's input, pixels."""
Roles = dict[Role, TensorSpec]
Arrays = Mapping[Role, Array]


@dataclass(frozen=True)
class Head:
    """A family of detectors.

    Attributes:
        name: that a package says.
        needs: what its outputs look like, for messages.
        recognise: the family's form that outputs and input size show, or None.
        roles: which output is what, or None where they do not fit; names that the package gives come first.
        classes: how many there are; None where the outputs do not tell.
        candidates: what each picture's outputs hold above ``least_score``, in any order; boxes as edges in pixels.
        suppresses: whether boxes that lie on each other are left to be dropped.
    """

    name: HeadName
    needs: str
    recognise: Callable[[tuple[TensorSpec, ...], Size], DetectionSpec | None]
    roles: Callable[[tuple[TensorSpec, ...], DetectionSpec], Roles | None]
    classes: Callable[[Roles, DetectionSpec], int | None]
    candidates: Callable[[Arrays, DetectionSpec, Size, DetectionRules], Iterable[Detections]]
    suppresses: bool = True


def is_float(spec: TensorSpec) -> bool:
    """Whether an output holds floating-point numbers."""
    return spec.dtype.startswith("float")


def only_output(outputs: tuple[TensorSpec, ...], spec: DetectionSpec, *, rank: int) -> TensorSpec | None:
    """The output that the package names, or the only one, if it is of floats and has that rank."""
    name = spec.outputs.get("boxes")
    chosen = [output for output in outputs if name in (None, output.name)]
    return chosen[0] if len(chosen) == 1 and is_float(chosen[0]) and len(chosen[0].shape) == rank else None


def fixed(size: int | str) -> int | None:
    """An axis' size, or None where it is dynamic."""
    return size if isinstance(size, int) else None


def named(outputs: tuple[TensorSpec, ...], spec: DetectionSpec, role: Role) -> TensorSpec | None:
    """The output that the package names for a role."""
    return next((output for output in outputs if output.name == spec.outputs.get(role)), None)


def cells(size: Size, strides: Sequence[int]) -> int:
    """Cells of grids of these strides over the model's input."""
    return sum(-(-size[0] // stride) * -(-size[1] // stride) for stride in strides)


def raw_threshold(least: float, form: ScoreForm) -> float:
    """The raw score of a probability: what is below it need not be turned into a probability."""
    if form == "probability" or not 0 < least < 1:
        return least if form == "probability" else (-math.inf if least <= 0 else math.inf)
    return math.log(least / (1 - least))


def to_probabilities(raw: Array, form: ScoreForm) -> Floats:
    """Raw scores of each class along the last axis as probabilities, float64."""
    values = raw.astype(np.float64)
    if form == "probability":
        return values
    if form == "sigmoid":
        with np.errstate(over="ignore"):
            return np.asarray(1 / (1 + np.exp(-values)))
    with np.errstate(invalid="ignore"):
        exponentials = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


def edges(boxes: Array, spec: DetectionSpec, size: Size) -> Floats:
    """Boxes in the package's order and unit (``pixels`` or ``shares``) as left, top, right, bottom in pixels.

    Args:
        boxes: float, shape (k, 4).
        spec: says order and unit.
        size: of the model's input.
    """
    sides = boxes.astype(np.float64)
    if spec.boxes == "cxcywh":
        centre, half = sides[:, :2], sides[:, 2:] / 2
        sides = np.concatenate([centre - half, centre + half], axis=1)
    elif spec.boxes == "yxyx":
        sides = sides[:, [1, 0, 3, 2]]
    return sides * np.array([*size, *size], np.float64) if spec.units == "shares" else sides


def above(scores: Array, least: float, most: int) -> tuple[Numbers, Numbers]:
    """Rows and columns of scores (k, C) that are at least ``least``; none that is no number.

    Of more than ``most`` only those that are no lower than the ``most``-th best, so that no box is made in vain.
    """
    rows, columns = np.nonzero(scores >= least)
    if len(rows) > most:
        found = scores[rows, columns]
        high = found >= np.partition(found, len(found) - most)[len(found) - most]
        rows, columns = rows[high], columns[high]
    return rows, columns


def without_background(scores: Array, background: int | None) -> Array:
    """Scores (…, C) without the class that stands for nothing: later classes move up by one."""
    return scores if background is None else np.delete(scores, background, axis=-1)
