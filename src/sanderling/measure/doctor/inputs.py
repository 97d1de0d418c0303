"""The data against the preprocessing: what its values show, and what the model says to them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sanderling.core.progress import Progress
from sanderling.core.tensor import Array
from sanderling.measure.accuracy import classifier_classes, evaluation_batch
from sanderling.measure.doctor.behaviour import LEAST_SAMPLES, check_behaviour
from sanderling.measure.doctor.findings import Finding
from sanderling.measure.doctor.patient import Patient
from sanderling.measure.doctor.pictures import Pictures, check_declared, check_values, unlike_golden
from sanderling.measure.samples import Samples
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions, Executable

_STATISTICS_SAMPLES, _LABELLED_SAMPLES, _PLAIN_SAMPLES = 64, 256, 96


def check_inputs(
    patient: Patient, samples: Samples | None, turned: list[Finding], progress: Progress
) -> tuple[list[Finding], str]:
    """Declared preprocessing, statistics of the values, and the model's answers, each only if the one before is clean.

    Args:
        patient: the model.
        samples: data, or None.
        turned: what reading the data has found.
        progress: told about each step.

    Returns:
        Findings, and what was looked at, in words.

    Raises:
        ModelError, EngineError: the model cannot be asked.
    """
    spec = patient.picture
    if spec is None:
        return _other_inputs(patient, samples)
    found = check_declared(
        patient.preprocessing, patient.manifest.preprocessing if patient.manifest else None, spec.name
    )
    if samples is None:
        return found, "the preprocessing only; give --data for its values"
    progress.stage("look at the inputs")
    found += turned or check_values(_pictures(patient, samples, _STATISTICS_SAMPLES))
    detail = f"values of {min(len(samples), _STATISTICS_SAMPLES)} samples"
    if found:
        return found, detail
    if classifier_classes(patient.outputs) is None or len(samples) < LEAST_SAMPLES:
        return found, f"{detail}; the model's answers tell something from {LEAST_SAMPLES} samples of a classifier on"
    progress.stage("try other inputs")
    limit = _PLAIN_SAMPLES if samples.labels is None else _LABELLED_SAMPLES
    pictures = _pictures(patient, samples, limit)
    labels = samples.pick(_spread(samples, limit)).labels
    executable = engine().load(patient.file, EngineOptions())
    try:
        found = check_behaviour(pictures, _classify(executable), labels)
    finally:
        executable.close()
    told = "not labelled: they do not judge the order of channels" if labels is None else "labelled"
    return found, f"{detail}, and the model's answers to {len(pictures.values)}, {told}"


def _other_inputs(patient: Patient, samples: Samples | None) -> tuple[list[Finding], str]:
    """Mean and spread of float inputs that are no pictures, against the golden inputs'."""
    golden = patient.real_golden
    names = [spec.name for spec in patient.inputs if spec.dtype.startswith("float")]
    if samples is None or golden is None or not names:
        return [], "no pictures; other float inputs are compared with golden ones, which needs a package and --data"
    picked = samples.pick(_spread(samples, _STATISTICS_SAMPLES))
    calls = [picked.one(index) for index in range(len(picked))]
    found = [
        finding
        for name in names
        for finding in unlike_golden(name, np.stack([call[name] for call in calls]), golden.inputs[name])
    ]
    return found, f"mean and spread of {len(calls)} samples against {len(golden)} golden inputs"


def _pictures(patient: Patient, samples: Samples, limit: int) -> Pictures:
    name = patient.inputs[0].name
    picked = samples.pick(_spread(samples, limit))
    golden = patient.real_golden
    return Pictures(
        name,
        np.concatenate([picked.one(index)[name] for index in range(len(picked))]),
        patient.channel_axis,
        patient.preprocessing if samples.preprocessing is not None else None,
        patient.reference,
        None if golden is None else np.concatenate(list(golden.inputs[name])),
    )


def _spread(samples: Samples, limit: int) -> npt.NDArray[np.int64]:
    """Indices of at most ``limit`` samples, evenly over all."""
    return np.unique(np.linspace(0, len(samples) - 1, min(limit, len(samples))).astype(np.int64))


def _classify(executable: Executable) -> Callable[[Array], npt.NDArray[np.float64]]:
    size = evaluation_batch(executable.inputs)

    def classify(values: Array) -> npt.NDArray[np.float64]:
        name = executable.inputs[0].name
        calls = [values[start : start + size] for start in range(0, len(values), size)]
        rows = [next(iter(executable.run({name: call}).values())) for call in calls]
        return np.concatenate(rows).astype(np.float64)

    return classify
