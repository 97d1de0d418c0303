"""Read the data for an examination; an array with its axes in another order is a finding, not bad input."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sanderling.core.arrays import read_npz
from sanderling.core.errors import DataError
from sanderling.core.progress import Progress
from sanderling.core.tensor import Array, TensorSpec
from sanderling.measure.accuracy import classifier_classes
from sanderling.measure.doctor.findings import Finding, fault
from sanderling.measure.doctor.patient import Patient
from sanderling.measure.samples import SampleReader, Samples, check_labels

_TO_NCHW, _TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)


def read_data(source: str | Path, patient: Patient, progress: Progress) -> tuple[Samples, list[Finding]]:
    """Read a folder of pictures, a CSV or an ``.npz``.

    Returns:
        Samples that fit the model, and what had to be put right for that.

    Raises:
        DataError: the data cannot be read, or does not fit the model in any order of its axes.
    """
    labels = patient.manifest.labels if patient.manifest else None
    turned = _turned(Path(source), patient)
    if turned is None:
        reader = SampleReader(patient.inputs, patient.preprocessing, labels, progress, patient.sound)
        samples, found = reader.read(source), []
    else:
        array, truth, finding = turned
        names = tuple(f"row {row}" for row in range(len(array)))
        samples, found = Samples({patient.inputs[0].name: array}, truth, names), [finding]
    classes = classifier_classes(patient.outputs)
    if samples.labels is not None and classes is None:
        raise DataError(f"{source} has labels, but the model is no classifier: outputs are {_listed(patient.outputs)}")
    check_labels(samples, classes or 0)
    return samples, found


def _listed(specs: Sequence[TensorSpec]) -> str:
    return "; ".join(map(str, specs))


def _turned(path: Path, patient: Patient) -> tuple[Array, Array | None, Finding] | None:
    """The array of an ``.npz`` whose axes fit only after a turn, turned."""
    spec = patient.picture
    if spec is None or path.suffix != ".npz" or not path.is_file():
        return None
    arrays = read_npz(path)
    array = arrays.get(spec.name)
    if array is None or array.ndim != 4 or array.dtype.name != spec.dtype or _fits(array.shape, spec):
        return None
    axes = _TO_NCHW if patient.channel_axis == 1 else _TO_NHWC
    right = array.transpose(axes)
    if not _fits(right.shape, spec):
        return None
    have, want = ("NHWC", "NCHW") if axes == _TO_NCHW else ("NCHW", "NHWC")
    labels = arrays.get("labels")
    truth = labels.astype(np.int64) if labels is not None and labels.shape == array.shape[:1] else None
    shape = ", ".join(map(str, array.shape[1:]))
    return (
        np.ascontiguousarray(right),
        truth,
        fault(
            "input-layout",
            spec.name,
            f"the data is {have}, (N, {shape}); the model takes {want}, {spec}",
            f"transpose each input with .transpose({', '.join(map(str, axes))}) before it is run",
            samples=len(array),
        ),
    )


def _fits(shape: tuple[int, ...], spec: TensorSpec) -> bool:
    return all(isinstance(want, str) or want == got for got, want in zip(shape[1:], spec.shape[1:], strict=True))
