"""Features: what the frozen part of a model makes of each sample, computed once and kept on disk."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from sanderling.core.errors import DataError, EngineError
from sanderling.core.files import cache_folder, replacing
from sanderling.core.progress import Event, Progress
from sanderling.core.tensor import Array, Feeds
from sanderling.learn.data import TrainingData
from sanderling.learn.gates import OPEN, Gate
from sanderling.learn.sampling import Indices
from sanderling.learn.task import Task, fixed_rows
from sanderling.measure.samples import Samples
from sanderling.model.learning import LABEL, FeatureCut
from sanderling.run.engines import engine
from sanderling.run.engines.base import Executable

_ROWS = 32
_FOLDER = "features"


@dataclass(frozen=True)
class FeatureData:
    """Features of training data, read from disk as they are needed; in batches it stands for the data itself.

    Attributes:
        features: by tensor, first axis as of the samples, mapped from files.
        data: that they were made of.
    """

    features: Mapping[str, Array]
    data: TrainingData

    @property
    def labels(self) -> Array:
        """As of the data."""
        return self.data.labels

    @property
    def sha256(self) -> str:
        """As of the data."""
        return self.data.sha256

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, indices: Indices) -> dict[str, Array]:
        """Features and ``label`` of the samples at ``indices``, in that order."""
        return {**{name: array[indices] for name, array in self.features.items()}, LABEL: self.data.labels[indices]}

    def pick(self, indices: Indices) -> FeatureData:
        """Part of the data."""
        return FeatureData({name: array[indices] for name, array in self.features.items()}, self.data.pick(indices))

    def names(self, indices: Indices) -> str:
        """As of the data."""
        return self.data.names(indices)


def cached_features(task: Task, data: TrainingData, progress: Progress, gate: Gate = OPEN) -> FeatureData:
    """Features of all samples, computed unless they are in the cache folder.

    Args:
        task: with a frozen part that is cut off.
        data: whose samples go through it.
        progress: told about each batch that is computed.
        gate: that lets each of them run.

    Raises:
        DataError: the features are not finite.
        EngineError: the engine failed.
        OutputError: the cache folder cannot be written, or the disk is full.
    """
    cut = task.spec.features
    assert cut is not None
    folder = cache_folder() / _FOLDER / _key(task, cut, data)
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with replacing(folder) as made:
            made.mkdir()
            _compute(task, cut, data, made, progress, gate)
    else:
        reason = f"{len(data)} samples are in {folder} from an earlier run"
        progress.event(Event(kind="features-reused", subject=task.package.manifest.name, reason=reason))
    return FeatureData(
        {spec.name: np.load(_file(folder, i), mmap_mode="r") for i, spec in enumerate(cut.tensors)}, data
    )


def _compute(task: Task, cut: FeatureCut, data: TrainingData, folder: Path, progress: Progress, gate: Gate) -> None:
    fixed = fixed_rows(task.spec.inputs)
    rows = fixed or _ROWS
    progress.stage("compute features", -(-len(data) // rows))
    executable = task.load(cut.features, spin=True)
    with ExitStack() as stack:
        stack.callback(executable.close)
        files = [stack.enter_context(_file(folder, index).open("wb")) for index in range(len(cut.tensors))]
        for start in range(0, len(data), rows):
            indices = np.arange(start, min(start + rows, len(data)))
            made: list[dict[str, Array]] = []
            batch = _filled(data, indices, fixed or len(indices))
            gate.take(partial(_run, executable, batch, made))
            found = {name: array[: len(indices)] for name, array in made[0].items()}
            for spec, file in zip(cut.tensors, files, strict=True):
                array = np.ascontiguousarray(found[spec.name])
                if len(array) != len(indices):
                    raise EngineError(f"features '{spec.name}' have {len(array)} rows for {len(indices)} samples")
                if not np.isfinite(array).all():
                    raise DataError(
                        f"features '{spec.name}' of {data.names(indices)} are not finite: look at these samples"
                    )
                if start == 0:
                    _write_header(file, array, len(data))
                file.write(array.data)
            progress.advance()
        for file in files:  # a half-written file that survives a power cut must not look whole
            file.flush()
            os.fsync(file.fileno())


def _write_header(file: BinaryIO, array: Array, count: int) -> None:
    """Plain writes, not a mapping: a disk that is full is an error there, and the end of the process here."""
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": (count, *array.shape[1:])}
    np.lib.format.write_array_header_2_0(file, header)


def _run(executable: Executable, batch: Feeds, made: list[dict[str, Array]]) -> None:
    made.append(executable.run(batch))


def _filled(data: TrainingData, indices: Indices, rows: int) -> dict[str, Array]:
    """Inputs of some samples, the first repeated up to ``rows`` where the graph takes no other number."""
    batch = data.batch(np.concatenate([indices, np.repeat(indices[:1], rows - len(indices))]))
    del batch[LABEL]
    return batch


def _file(folder: Path, index: int) -> Path:
    return folder / f"{index}.npy"


def _key(task: Task, cut: FeatureCut, data: TrainingData) -> str:
    version = engine(task.engine).availability().version
    entry = task.package.manifest.files.get(cut.features)
    if entry is None:
        raise EngineError(f"the task has no file '{cut.features}'")
    # data are hashed as they were read: what makes the model's input of them is part of what was computed
    preprocessing = None if data.samples.preprocessing is None else data.samples.preprocessing.model_dump(mode="json")
    parts = [task.spec.fingerprint, entry.sha256, data.sha256, preprocessing, task.engine, version]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def from_features(task: Task, batch: Mapping[str, Array]) -> FeatureData:
    """Features that are in memory already, with ``label``, as data to evaluate."""
    labels = batch[LABEL]
    names = tuple(f"row {row}" for row in range(len(labels)))
    held = {spec.name: batch[spec.name] for spec in task.inputs}
    return FeatureData(held, TrainingData(Samples(held, None, names), labels, ""))
