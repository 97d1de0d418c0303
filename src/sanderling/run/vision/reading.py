"""From a detector's outputs to detections: which family it is of, and what its numbers mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sanderling.core.errors import OptionError
from sanderling.core.tensor import Array, Feeds, TensorSpec
from sanderling.model.detection import HEAD_NAMES, DetectionSpec, Role
from sanderling.model.manifest import Manifest
from sanderling.run.vision.detections import DetectionRules, Detections, Numbers
from sanderling.run.vision.heads import HEADS
from sanderling.run.vision.heads.base import Roles, Size
from sanderling.run.vision.suppression import suppress


@dataclass(frozen=True)
class DetectionReader:
    """Reads the outputs of one model.

    Attributes:
        spec: how.
        roles: which output is what.
        size: width and height of the model's input, pixels.
    """

    spec: DetectionSpec
    roles: Roles
    size: Size

    @property
    def classes(self) -> int | None:
        """How many there are; None where the outputs do not tell."""
        return HEADS[self.spec.head].classes(self.roles, self.spec)

    def arrays(self, outputs: Feeds) -> dict[Role, Array]:
        """The outputs by their roles."""
        return {role: outputs[spec.name] for role, spec in self.roles.items()}

    def read(self, outputs: Feeds, rules: DetectionRules) -> list[Detections]:
        """What is on each picture of a call, best first, in pixels of the model's input."""
        head = HEADS[self.spec.head]
        found = head.candidates(self.arrays(outputs), self.spec, self.size, rules)
        return [_best(each, rules, suppresses=head.suppresses) for each in found]


def reader_of(manifest: Manifest) -> DetectionReader | None:
    """What reads a package's outputs: as it says, or as their shapes show; None where it is no detector."""
    return find_reader(manifest.inputs, manifest.outputs, manifest.detection)


def find_reader(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], spec: DetectionSpec | None = None
) -> DetectionReader | None:
    """What reads a model's outputs.

    Args:
        inputs: of the model; its only one takes pictures.
        outputs: of the model.
        spec: how they are read; without it they are recognised by their shapes.

    Returns:
        None without a spec where no family has such outputs, or the input is no picture of a fixed size.

    Raises:
        OptionError: the outputs are not those that the spec says.
    """
    size = picture_size(inputs)
    if spec is None:
        spec = recognise(outputs, size) if size is not None else None
        if spec is None:
            return None
    if size is None:
        raise OptionError(
            f"a detector has one input that takes pictures of a fixed size: this model's are {_told(inputs)}; "
            "give the size with --input NAME=1,3,H,W"
        )
    head = HEADS[spec.head]
    unknown = sorted(set(spec.outputs.values()) - {output.name for output in outputs})
    roles = head.roles(outputs, spec)
    if unknown or roles is None:
        wrong = f"there is no output {', '.join(unknown)}" if unknown else f"'{spec.head}' has {head.needs}"
        raise OptionError(f"detection: {wrong}: the outputs are {_told(outputs)}")
    return DetectionReader(spec, roles, size)


def recognise(outputs: tuple[TensorSpec, ...], size: Size) -> DetectionSpec | None:
    """The first family whose outputs have these shapes at that size of the input, or None."""
    return next((spec for head in HEADS.values() if (spec := head.recognise(outputs, size)) is not None), None)


def picture_size(inputs: tuple[TensorSpec, ...]) -> Size | None:
    """Width and height of a model's only input, if it takes pictures of a fixed size: NCHW or NHWC, 1 or 3 channels."""
    if len(inputs) != 1 or len(inputs[0].shape) != 4:
        return None
    _, first, second, last = inputs[0].shape
    height, width = (second, last) if first in (1, 3) else (first, second)
    fits = first in (1, 3) or last in (1, 3)
    return (width, height) if fits and isinstance(width, int) and isinstance(height, int) else None


def no_detector(outputs: tuple[TensorSpec, ...]) -> str:
    """What to say where detections cannot be read."""
    return (
        f"outputs are {_told(outputs)}, which no family of detectors that is recognised has; available are "
        f"{', '.join(HEAD_NAMES)}, to be named with `sanderling build --detection`"
    )


def _told(specs: tuple[TensorSpec, ...]) -> str:
    return "; ".join(map(str, specs))


def _best(found: Detections, rules: DetectionRules, *, suppresses: bool) -> Detections:
    found = found.pick(np.isfinite(found.scores))  # the guard is what tells of outputs that are not
    ranked = found.pick(_ranked(found.scores, rules.candidates))
    if suppresses:
        classes = None if rules.agnostic else ranked.classes
        return ranked.pick(suppress(ranked.boxes, classes, most_overlap=rules.most_overlap, most=rules.most))
    if rules.agnostic:
        return ranked.pick(suppress(ranked.boxes, None, most_overlap=rules.most_overlap, most=rules.most))
    return ranked.pick(slice(rules.most))


def _ranked(scores: np.ndarray, most: int) -> Numbers:
    """Positions of the highest scores, best first, equal ones in their order; only these are sorted."""
    if len(scores) <= most:
        return np.argsort(-scores, kind="stable")
    least = np.partition(scores, len(scores) - most)[len(scores) - most]
    likely = np.flatnonzero(scores >= least)
    return likely[np.argsort(-scores[likely], kind="stable")[:most]]
