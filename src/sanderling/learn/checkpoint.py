"""Checkpoints: safetensors with the parameters and all that training needs to go on bit by bit."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from sanderling.core.errors import NotMetError, WeightsError, first_line
from sanderling.core.files import replacing
from sanderling.core.tensor import Array
from sanderling.learn.task import read_tensors, safetensors_package
from sanderling.model.learning import LearningSpec

FORMAT = "sanderling-checkpoint-1"
_SYSTEM_ERROR = re.compile(r"os error (\d+)")


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Best(_Record):
    """The best evaluation so far."""

    loss: float
    accuracy: float | None
    update: int
    epoch: int


class SpentSteps(_Record):
    """Steps that looked at the data under differential privacy; see ``privacy.Spent``."""

    probability: float
    noise_multiplier: float
    steps: int


class Privacy(_Record):
    """What differential privacy has cost.

    Attributes:
        delta: at which ``epsilon`` holds.
        epsilon: spent so far, an upper bound.
        clip_norm: of each sample's gradient.
        spent: by which it was counted.
        samples: in the data.
    """

    delta: float
    epsilon: float
    clip_norm: float
    spent: tuple[SpentSteps, ...]
    samples: int


class Progressed(_Record):
    """Where training stands; everything that is not an array.

    Attributes:
        fingerprint: of the task.
        optimizer: kind.
        settings: of the optimiser, with the learning rate, the schedule, clipping and accumulation.
        seed: of the order of samples.
        updates: that were made.
        optimizer_begun_at: updates after which the optimiser's arrays began at zero.
        epoch: that is under way, from 0.
        batch: micro-batches of it that are done.
        batch_size: rows of a micro-batch.
        weight: of the gradients that are accumulated and not yet used.
        loss_sum: of the same.
        micro_batches: of the same.
        data_sha256: of the data; None where privacy forbids to keep it.
        samples: in the data.
        best: evaluation so far.
        evaluation_sha256: of the data that ``best`` was found on; None without any.
        worse: evaluations in a row that were no better.
        finished: whether all epochs were done, or stopping early ended them.
        privacy: None where there is none.
    """

    fingerprint: str
    optimizer: Literal["sgd", "adamw"]
    settings: dict[str, Any]
    seed: int
    updates: int = 0
    optimizer_begun_at: int = 0
    epoch: int = 0
    batch: int = 0
    batch_size: int = 0
    weight: float = 0.0
    loss_sum: float = 0.0
    micro_batches: int = 0
    data_sha256: str | None = None
    samples: int | None = None
    best: Best | None = None
    evaluation_sha256: str | None = None
    worse: int = 0
    finished: bool = False
    privacy: Privacy | None = None


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds.

    Attributes:
        parameters: by name, float32.
        states: of the optimiser, by prefix and name; empty in one that only keeps the best parameters.
        sums: gradients that are accumulated and not yet used; empty without any.
        progress: where training stood.
    """

    parameters: dict[str, Array]
    states: Mapping[str, dict[str, Array]]
    sums: dict[str, Array]
    progress: Progressed


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint that is whole on the disk, or leave the one that was there.

    The file is written to a temporary name, flushed to the disk, renamed, and its folder is flushed.

    Raises:
        NotMetError: a parameter is not finite: what was there before is better.
        OutputError: it cannot be written, or the disk is full; the older one stays.
    """
    for name, array in checkpoint.parameters.items():
        if not np.isfinite(array).all():
            raise NotMetError(f"parameter '{name}' is not finite: checkpoint {path} stays as it was")
    safetensors = safetensors_package()
    tensors = {f"param.{name}": array for name, array in checkpoint.parameters.items()}
    tensors |= {f"{kind}.{name}": array for kind, own in checkpoint.states.items() for name, array in own.items()}
    tensors |= {f"acc.{name}": array for name, array in checkpoint.sums.items()}
    progress = checkpoint.progress
    metadata = {
        "format": FORMAT,
        "fingerprint": progress.fingerprint,
        "step": str(progress.updates),
        "epoch": str(progress.epoch),
        "progress": progress.model_dump_json(),
    }
    with replacing(path) as target:
        try:
            safetensors.numpy.save_file(
                {name: np.ascontiguousarray(each) for name, each in tensors.items()}, target, metadata
            )
        except safetensors.SafetensorError as error:
            raise _system_error(error, target) from error
        _flush(target)
    _flush(path.parent)


def read_checkpoint(path: Path, spec: LearningSpec) -> Checkpoint:
    """Read a checkpoint of a task.

    Raises:
        WeightsError: it is missing, cut off, no checkpoint, of another task, or lacks a parameter.
    """
    tensors, metadata = read_tensors(path)
    if metadata.get("format") != FORMAT:
        raise WeightsError(f"{path} is no checkpoint of a trainer: expected a safetensors file that learn run wrote")
    if metadata.get("fingerprint") != spec.fingerprint:
        got = (metadata.get("fingerprint") or "none")[:12]
        raise WeightsError(
            f"{path} is a checkpoint of another task ({got}…, this one is {spec.fingerprint[:12]}…): "
            "give the task that it was trained with"
        )
    try:
        progress = Progressed.model_validate_json(metadata.get("progress", ""))
    except ValidationError as error:
        raise WeightsError(f"{path} does not say where training stood: {first_line(error)}") from error
    shapes = {parameter.name: parameter.shape for parameter in spec.parameters}
    groups: dict[str, dict[str, Array]] = {}
    for name, array in tensors.items():
        prefix, _, parameter = name.partition(".")
        groups.setdefault(prefix, {})[parameter] = array
    for prefix, group in groups.items():
        _check_group(path, prefix, group, shapes)
    if "param" not in groups:
        raise WeightsError(f"{path} holds no parameters: it is of no use")
    parameters, sums = groups.pop("param"), groups.pop("acc", {})
    return Checkpoint(parameters, groups, sums, progress)


def remove_leftovers(path: Path) -> int:
    """Remove what writers of this checkpoint left that were killed; returns how many."""
    left = [folder for folder in path.parent.glob(f".{path.name}.*") if folder.is_dir()]
    for folder in left:
        shutil.rmtree(folder, ignore_errors=True)
    return len(left)


def best_path(path: Path) -> Path:
    """Where the best parameters are kept beside a checkpoint: ``ck.best.safetensors``."""
    return path.with_name(f"{path.stem}.best{path.suffix}")


def _check_group(path: Path, prefix: str, group: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> None:
    if group.keys() != shapes.keys():
        wrong = sorted(group.keys() ^ shapes.keys())[0]
        raise WeightsError(f"{path} and the task do not agree on '{prefix}.{wrong}': one has it, the other has not")
    for name, array in group.items():
        if array.shape != shapes[name] or array.dtype != np.float32:
            raise WeightsError(
                f"{path}: '{prefix}.{name}' is {array.dtype}{list(array.shape)}: expected float32{list(shapes[name])}"
            )


def _system_error(error: Exception, target: Path) -> OSError:
    """The library's error as the system's own, which says whether the disk is full."""
    found = _SYSTEM_ERROR.search(str(error))
    number = int(found[1]) if found else errno.EIO
    return OSError(number, os.strerror(number) if found else first_line(error), str(target))


def _flush(path: Path) -> None:
    """Bring a file, or a folder's entries, to the disk."""
    if path.is_dir() and os.name == "nt":  # a folder cannot be opened there
        return
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
