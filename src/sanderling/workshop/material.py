"""The data a build works with: labels, preprocessing, calibration and evaluation samples."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from sanderling.core.errors import DataError, OptionError
from sanderling.core.progress import Event, Progress
from sanderling.core.tensor import TensorSpec, random_feeds
from sanderling.measure.accuracy import classifier_classes, metric_for
from sanderling.measure.detection import check_objects
from sanderling.measure.samples import SampleReader, Samples, check_labels, inputs_without_batch
from sanderling.model.manifest import Metric
from sanderling.model.preprocessing import Preprocessing, parse_preprocessing
from sanderling.model.sound import SoundSpec, is_sound, parse_sound
from sanderling.run.vision.reading import DetectionReader
from sanderling.workshop.detection import chosen_reader
from sanderling.workshop.options import BuildOptions

FEW_CALIBRATION_SAMPLES = 100
_HELD_OUT_SHARE = 0.25
_LEAST_HELD_OUT = 2
_RANDOM_SAMPLES = 32


@dataclass(frozen=True)
class Material:
    """Data that fits the model.

    Attributes:
        calibration: for ranges and the choice among quantisations; None without data.
        evaluation: for the accuracy that is reported; never overlaps the calibration unless it is said so.
        evaluation_origin: where the evaluation samples come from, in words.
        metric: that the variants are judged by.
        reader: of a detector's outputs; None for any other model.
        sound: how recordings become the input, in the place of ``preprocessing``.
    """

    preprocessing: Preprocessing | None
    labels: tuple[str, ...] | None
    calibration: Samples | None
    evaluation: Samples
    evaluation_origin: str
    metric: Metric
    reader: DetectionReader | None = None
    sound: SoundSpec | None = None


def gather(
    options: BuildOptions,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    progress: Progress,
) -> Material:
    """Read labels, preprocessing and samples, and check that they fit the model.

    Raises:
        OptionError: the preprocessing does not fit.
        DataError: labels or samples cannot be used.
    """
    classes = classifier_classes(outputs)
    reader = chosen_reader(options.detection, inputs, outputs)
    labels = read_labels(options.labels, classes, reader) if options.labels else None
    preprocessing = sound = None
    if options.preprocess is not None:
        if len(inputs) != 1:
            raise OptionError(f"--preprocess is for models with one input: this one has {len(inputs)}")
        if is_sound(options.preprocess):
            sound = parse_sound(options.preprocess, inputs[0])
        else:
            preprocessing = parse_preprocessing(options.preprocess, inputs[0])
    files = SampleReader(inputs, preprocessing, labels, progress, sound)
    calibration = _read(files, options.calibration, "read calibration data", progress)
    evaluation = _read(files, options.evaluation, "read evaluation data", progress)
    if evaluation is not None and evaluation.labels is not None:
        if classes is None:
            raise DataError(
                f"{options.evaluation} has labels, but the model is no classifier: outputs are "
                f"{'; '.join(map(str, outputs))}, and top-1 needs one float output of shape (N, classes)"
            )
        check_labels(evaluation, classes)
    calibration, evaluation, origin = _divide(calibration, evaluation, inputs, options, progress)
    check_objects(evaluation.objects, outputs, reader)
    metric = metric_for(options.budget, outputs, labelled=evaluation.labelled, reader=reader)
    return Material(preprocessing, labels, calibration, evaluation, origin, metric, reader, sound)


def read_labels(name: str, classes: int | None, reader: DetectionReader | None = None) -> tuple[str, ...]:
    """Read class names, one a line; ``imagenet`` stands for the 1,000 of ILSVRC 2012.

    Args:
        name: of the file.
        classes: of a classifier; None for any other model.
        reader: of a detector's outputs, which do not always tell how many classes there are.

    Raises:
        DataError: the file is missing, or its number of lines is not the number of classes.
    """
    if name == "imagenet":
        text = (resources.files("sanderling") / "tasks" / "data" / "imagenet_labels.txt").read_text("utf-8")
    elif Path(name).is_file():
        text = Path(name).read_text(encoding="utf-8", errors="replace")
    else:
        raise DataError(f"labels '{name}' do not exist: expected a text file with one class a line, or 'imagenet'")
    labels = tuple(line.strip() for line in text.splitlines() if line.strip())
    if classes is None and reader is None:
        raise DataError(
            f"labels '{name}' are given, but the model is no classifier with one output (N, classes), and no detector "
            "that is recognised; name its family with --detection"
        )
    if classes is None and reader is not None:
        classes = reader.classes
    if classes is not None and len(labels) != classes:
        raise DataError(f"labels '{name}' have {len(labels)} lines: the model's output has {classes} classes")
    return labels


def _read(reader: SampleReader, source: Path | None, stage: str, progress: Progress) -> Samples | None:
    if source is None:
        return None
    progress.stage(stage)
    return reader.read(source)


def _divide(
    calibration: Samples | None,
    evaluation: Samples | None,
    inputs: tuple[TensorSpec, ...],
    options: BuildOptions,
    progress: Progress,
) -> tuple[Samples | None, Samples, str]:
    generator = np.random.default_rng(options.seed)
    if calibration is None:
        if evaluation is not None:
            return None, evaluation, f"{len(evaluation)} samples of {_name(options.evaluation)}"
        reason = "no --calibration and no --eval: agreement on random inputs says little about real ones"
        progress.event(Event(kind="no-data", subject="accuracy", reason=reason))
        return None, random_samples(inputs, options.seed), f"{_RANDOM_SAMPLES} random inputs"
    order = generator.permutation(len(calibration))
    if evaluation is not None:
        origin = f"{len(evaluation)} samples of {_name(options.evaluation)}"
    else:
        held_out = round(len(calibration) * _HELD_OUT_SHARE)
        if held_out < _LEAST_HELD_OUT:
            reason = f"only {len(calibration)} samples and no --eval: accuracy is measured on the calibration data"
            progress.event(Event(kind="not-held-out", subject="accuracy", reason=reason))
            evaluation, origin = calibration, f"the {len(calibration)} calibration samples themselves"
        else:
            evaluation, order = calibration.pick(np.sort(order[:held_out])), order[held_out:]
            origin = f"{held_out} samples held out of {_name(options.calibration)}"
    chosen = calibration.pick(np.sort(order[: options.calibration_limit]))
    if len(chosen) < FEW_CALIBRATION_SAMPLES:
        reason = f"{len(chosen)} samples; at least {FEW_CALIBRATION_SAMPLES} are advised, 500 are better"
        progress.event(Event(kind="few-calibration-samples", subject="int8", reason=reason))
    return chosen, evaluation, origin


def _name(path: Path | None) -> str:
    """A folder's or file's name without its place on the user's disk."""
    return path.resolve().name if path else ""


def random_samples(inputs: tuple[TensorSpec, ...], seed: int) -> Samples:
    """Samples of random values, for models that come without data."""
    rows = [random_feeds(inputs, seed=seed + index) for index in range(_RANDOM_SAMPLES)]
    whole = inputs_without_batch(inputs)
    joined = {
        spec.name: (np.stack if spec.name in whole else np.concatenate)([row[spec.name] for row in rows])
        for spec in inputs
    }
    names = tuple(f"random {index}" for index in range(_RANDOM_SAMPLES))
    return Samples(joined, None, names, whole=whole)
