"""CenterNet: a heat map for each class whose peaks are objects, and maps of their sizes and offsets.

Source: Zhou et al. 2019, "Objects as Points", section 4: a peak is a cell no smaller than its eight neighbours; centre
= (cell + offset) * stride; sizes are in cells.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sanderling.core.tensor import Array, TensorSpec
from sanderling.model.detection import DetectionSpec, family_spec
from sanderling.run.vision.detections import DetectionRules, Detections, Floats, Numbers
from sanderling.run.vision.heads.base import Arrays, Head, Roles, Size, is_float, named, raw_threshold, to_probabilities

_OFFSET_NAMES = ("reg", "off")
_SIZE_NAMES = ("wh", "size")


def recognise(outputs: tuple[TensorSpec, ...], size: Size) -> DetectionSpec | None:
    """Three maps of one size, two of them with two channels; the stride is how much smaller they are."""
    found = roles(outputs, family_spec("centernet"))
    if found is None or len(outputs) != 3:
        return None
    rows, columns = found["scores"].shape[2:]
    if not isinstance(rows, int) or not isinstance(columns, int) or size[0] % columns or size[1] % rows:
        return None
    stride = size[0] // columns
    return family_spec("centernet", strides=(stride,)) if stride == size[1] // rows else None


def roles(outputs: tuple[TensorSpec, ...], spec: DetectionSpec) -> Roles | None:
    """Names come first; then sizes before offsets, as the paper's code has them; the map left over holds scores."""
    known = {role: named(outputs, spec, role) for role in ("scores", "boxes", "offsets")}
    if not any(known.values()):
        known = _by_shape(outputs)
    scores, boxes, offsets = known["scores"], known["boxes"], known["offsets"]
    if scores is None or boxes is None:
        return None
    maps = [each for each in (scores, boxes, offsets) if each is not None]
    if not all(len(each.shape) == 4 and is_float(each) and each.shape[2:] == scores.shape[2:] for each in maps):
        return None
    if not isinstance(scores.shape[1], int) or any(each.shape[1] != 2 for each in maps[1:]):
        return None
    found: Roles = {"scores": scores, "boxes": boxes}
    if offsets is not None:
        found["offsets"] = offsets
    return found


def _by_shape(outputs: tuple[TensorSpec, ...]) -> dict[str, TensorSpec | None]:
    pairs = [output for output in outputs if len(output.shape) == 4 and output.shape[1] == 2]
    others = [output for output in outputs if output not in pairs]
    if len(pairs) == 3:  # two classes: the first map is the heat map, as in the paper's code
        others, pairs = pairs[:1], pairs[1:]
    if len(others) != 1 or len(pairs) != 2:
        return {"scores": None, "boxes": None, "offsets": None}
    first, second = pairs
    turned = _is_called(first, _OFFSET_NAMES) or _is_called(second, _SIZE_NAMES)
    boxes, offsets = (second, first) if turned else (first, second)
    return {"scores": others[0], "boxes": boxes, "offsets": offsets}


def _is_called(output: TensorSpec, names: tuple[str, ...]) -> bool:
    return any(name in output.name.lower() for name in names)


def classes(found: Roles, spec: DetectionSpec) -> int | None:  # noqa: ARG001 - a head's form
    """Channels of the heat map."""
    return int(found["scores"].shape[1])


def candidates(arrays: Arrays, spec: DetectionSpec, size: Size, rules: DetectionRules) -> Iterator[Detections]:
    """Every peak of every class that is high enough."""
    least = raw_threshold(rules.least_score, spec.scores)
    offsets = arrays.get("offsets")
    for index, heat in enumerate(arrays["scores"]):  # (C, H, W)
        numbers, rows, columns = _peaks(heat, least)
        centre = np.stack([columns, rows], axis=1).astype(np.float64)
        centre += 0.5 if offsets is None else offsets[index][:, rows, columns].T
        stride = np.array([size[0] / heat.shape[2], size[1] / heat.shape[1]])
        sides: Floats = arrays["boxes"][index][:, rows, columns].T.astype(np.float64)
        half = _pixels(sides, spec, size, stride) / 2
        centre *= stride
        scores = to_probabilities(heat[numbers, rows, columns], spec.scores)
        yield Detections(np.concatenate([centre - half, centre + half], axis=1), scores, numbers)


def _pixels(sides: Floats, spec: DetectionSpec, size: Size, stride: Floats) -> Floats:
    if spec.units == "cells":
        return sides * stride
    return sides * np.array(size, np.float64) if spec.units == "shares" else sides


def _peaks(heat: Array, least: float) -> tuple[Numbers, Numbers, Numbers]:
    """Class, row and column of cells that are at least ``least`` and no smaller than their neighbours."""
    numbers, rows, columns = np.nonzero(heat >= least)
    framed = np.pad(heat, ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    around = [framed[numbers, rows + down, columns + right] for down in range(3) for right in range(3)]
    peak = heat[numbers, rows, columns] >= np.max(around, axis=0) if len(numbers) else np.zeros(0, bool)
    return numbers[peak], rows[peak], columns[peak]


HEAD = Head(
    "centernet",
    "float outputs heat map (N, classes, H, W), sizes (N, 2, H, W) and, mostly, offsets (N, 2, H, W)",
    recognise,
    roles,
    classes,
    candidates,
    suppresses=False,
)
