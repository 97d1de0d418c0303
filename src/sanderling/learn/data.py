"""Training data in memory: inputs, labels that fit the loss, and a hash that tells whether they changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from sanderling.core.arrays import read_npz
from sanderling.core.errors import DataError, TensorError
from sanderling.core.progress import Event, Progress, Silent
from sanderling.core.tensor import Array, TensorSpec, check_feeds
from sanderling.learn.sampling import Indices
from sanderling.measure.samples import SampleReader, Samples
from sanderling.model.learning import LABEL, LearningSpec
from sanderling.model.manifest import Manifest

_LABEL_NAMES = (LABEL, "labels")
_SHOWN = 5


class Dataset(Protocol):
    """Labelled samples, or what was made of them, that batches are taken from."""

    @property
    def labels(self) -> Array:
        """First axis as of the samples."""

    @property
    def sha256(self) -> str:
        """Over the data, in its order."""

    def __len__(self) -> int: ...

    def batch(self, indices: Indices) -> dict[str, Array]:
        """What a training step takes of the samples at ``indices``, and ``label``, in that order."""

    def pick(self, indices: Indices) -> Dataset:
        """Part of the data."""

    def names(self, indices: Indices) -> str:
        """The first samples of a batch, for a message."""


@dataclass(frozen=True)
class TrainingData:
    """Samples with their labels: a ``Dataset`` in memory.

    Attributes:
        samples: inputs; pictures stay uint8 until they are used.
        labels: first axis as of the samples.
        sha256: over inputs and labels, in their order.
    """

    samples: Samples
    labels: Array
    sha256: str

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, indices: Indices) -> dict[str, Array]:
        """Inputs and ``label`` of the samples at ``indices``, in that order."""
        feeds = next(self.samples.pick(indices).batches(max(len(indices), 1)))
        return {**feeds, LABEL: self.labels[indices]}

    def pick(self, indices: Indices) -> TrainingData:
        """Part of the data, with a hash of its own."""
        samples = self.samples.pick(indices)
        return _hashed(samples, self.labels[indices])

    def names(self, indices: Indices) -> str:
        """The first samples of a batch, for a message."""
        shown = [self.samples.names[index] for index in indices[:_SHOWN]]
        return ", ".join(shown) + (f" and {len(indices) - _SHOWN} more" if len(indices) > _SHOWN else "")


def read_data(
    spec: LearningSpec, manifest: Manifest, source: str | Path, progress: Progress | None = None
) -> TrainingData:
    """Read a folder with a folder for each class, a CSV, or an ``.npz`` with the model's inputs and ``label``.

    Args:
        spec: what is trained.
        manifest: of the task, for preprocessing and names of classes.
        source: the data.
        progress: told about skipped files and classes without a sample.

    Raises:
        DataError: it cannot be read, has no labels, or labels do not fit the loss.
    """
    progress = progress or Silent()
    path = Path(source)
    inputs = tuple(_any_batch(entry) for entry in spec.inputs)
    reader = SampleReader(inputs, manifest.preprocessing, manifest.labels, progress, manifest.sound)
    if path.suffix == ".npz" and path.is_file() and manifest.preprocessing is None:
        return from_arrays(spec, read_npz(path), progress, name=str(path), labels=manifest.labels)
    if path.suffix != ".npz" and path.exists() and manifest.preprocessing is None and manifest.sound is None:
        raise DataError(
            f"{path} holds files, but the task does not say how they become its input: give an .npz, or prepare the "
            "task with --preprocess"
        )
    samples = reader.read(path)
    if samples.labels is None:
        known = ", ".join((manifest.labels or ("0", "1", "2"))[:_SHOWN])
        raise DataError(
            f"{path} has no labels: give a folder for each class with a name that the task knows ({known}, …; prepare "
            "it with --labels for others), a CSV with path,label, or an .npz"
        )
    return _checked(spec, samples, samples.labels, progress, str(path), manifest.labels)


def from_arrays(
    spec: LearningSpec,
    arrays: Mapping[str, Array],
    progress: Progress | None = None,
    *,
    name: str = "the data",
    labels: tuple[str, ...] | None = None,
) -> TrainingData:
    """Take arrays, one for each input and ``label``, all with samples along the first axis.

    Args:
        spec: what is trained.
        arrays: by the names of the model's inputs, and ``label`` (or ``labels``).
        progress: told about classes without a sample.
        name: of the data, for messages.
        labels: names of the classes, for messages.

    Raises:
        DataError: an array is missing, does not fit or is not finite, or labels do not fit the loss.
    """
    arrays = dict(arrays)
    known = {entry.name for entry in spec.inputs}
    key = next((key for key in _LABEL_NAMES if key in arrays and key not in known), None)
    if key is None:
        raise DataError(f"{name} has no array 'label': it holds {', '.join(arrays) or 'nothing'}")
    label = arrays.pop(key)
    counts = {array.shape[0] if array.ndim else 0 for array in (*arrays.values(), label)}
    if len(counts) != 1 or 0 in counts:
        shapes = ", ".join(f"{part} {list(array.shape)}" for part, array in {**arrays, key: label}.items())
        raise DataError(f"{name} holds {shapes}: every array needs the same number of rows, at least 1")
    inputs = tuple(_any_batch(entry) for entry in spec.inputs)
    try:
        check_feeds(arrays, inputs)
    except TensorError as error:
        raise DataError(f"{name}: {error}") from error
    for part, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            row = int(np.argwhere(~np.isfinite(array))[0][0])
            raise DataError(f"{name}: '{part}' has NaN or infinite values, first in row {row}; remove them")
    samples = Samples(arrays, None, tuple(f"row {row}" for row in range(counts.pop())))
    return _checked(spec, samples, label, progress or Silent(), name, labels)


def check_labels(spec: LearningSpec, labels: Array, name: str = "the batch") -> Array:
    """Labels in the dtype that the graph takes.

    Raises:
        DataError: they have another form than the loss takes, are no classes, or are not finite.
    """
    kind = np.dtype(spec.label.dtype)
    whole = labels.dtype.kind in "iub"
    if kind.kind in "iu" and not whole:
        raise DataError(f"{name}: labels are {labels.dtype}: the loss {spec.loss.kind} takes class numbers")
    if labels.ndim != len(spec.label.shape) or any(
        isinstance(want, int) and want != got for want, got in zip(spec.label.shape[1:], labels.shape[1:], strict=True)
    ):
        raise DataError(f"{name}: labels have shape {list(labels.shape)}: expected {spec.label}")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise DataError(f"{name}: labels have NaN or infinite values; remove them")
    if spec.classes is not None and labels.size:
        counted = labels[labels != spec.loss.ignore_index]
        wrong = (counted < 0) | (counted >= spec.classes)
        if wrong.any():
            raise DataError(
                f"{name}: label {int(counted[wrong][0])} is out of range: the task has {spec.classes} classes "
                f"(0…{spec.classes - 1}); correct it, or prepare the task for more"
            )
    return labels.astype(kind)


def _checked(
    spec: LearningSpec,
    samples: Samples,
    labels: Array,
    progress: Progress,
    name: str,
    names: tuple[str, ...] | None,
) -> TrainingData:
    labels = check_labels(spec, labels, name)
    if spec.classes is not None:
        present = set(np.unique(labels).tolist())
        missing = [each for each in range(spec.classes) if each not in present]
        if missing:
            told = ", ".join(names[each] if names else str(each) for each in missing[:_SHOWN])
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            reason = f"{name} has no sample of {len(missing)} of {spec.classes} classes: they will be forgotten"
            progress.event(Event(kind="class-without-samples", subject=f"{told}{more}", reason=reason))
    return _hashed(samples, labels)


def _hashed(samples: Samples, labels: Array) -> TrainingData:
    digest = hashlib.sha256()
    for name, array in (*sorted(samples.inputs.items()), (LABEL, labels)):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return TrainingData(samples, labels, digest.hexdigest())


def _any_batch(spec: TensorSpec) -> TensorSpec:
    return spec.model_copy(update={"shape": ("batch", *spec.shape[1:])})
