"""How far a variant's outputs are from FP32's, and what that costs in accuracy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sanderling.core.errors import OptionError
from sanderling.core.progress import Progress
from sanderling.core.statistics import CONFIDENCE, binomial_upper, mean_upper, paired_drop_upper, sqnr_db
from sanderling.core.tensor import Array, Feeds, TensorSpec
from sanderling.measure.average_precision import Matches, map_drop_upper, match, mean_average_precision
from sanderling.measure.confusion import Confusion, counted, of_labels, of_objects
from sanderling.measure.detection import Objects
from sanderling.measure.samples import Samples
from sanderling.model.manifest import Accuracy, Budget, Metric
from sanderling.run.vision.detections import EVALUATION_RULES
from sanderling.run.vision.reading import DetectionReader, no_detector

Run = Callable[[Feeds], dict[str, Array]]
_ELEMENT_BYTES = 4
_BATCH_BYTES = 1 << 20
_LARGEST_BATCH = 64
_NEGLIGIBLE = 0.01
_TOP = 5


def classifier_classes(outputs: tuple[TensorSpec, ...]) -> int | None:
    """Number of classes when the model looks like a classifier: one float output of shape (N, C), C ≥ 2."""
    if len(outputs) != 1 or len(outputs[0].shape) != 2 or not outputs[0].dtype.startswith("float"):
        return None
    classes = outputs[0].shape[1]
    return classes if isinstance(classes, int) and classes >= 2 else None


def evaluation_batch(inputs: Sequence[TensorSpec]) -> int:
    """Rows of one evaluation call: 1 without a dynamic batch, else as many as make about a megabyte of input.

    Small models need many rows a call to be quick; for large ones activations, not calls, are what costs.
    """
    if not all(0 in spec.dynamic_axes for spec in inputs):
        return 1
    row_bytes = sum(math.prod(spec.concrete_shape()) * _ELEMENT_BYTES for spec in inputs)
    return max(1, min(_LARGEST_BATCH, _BATCH_BYTES // row_bytes))


@dataclass
class OutputRecord:
    """What one variant gave for every sample, compared row by row with FP32."""

    ranked: list[npt.NDArray[np.int64]] = field(default_factory=list)
    matches: list[Matches] = field(default_factory=list)
    confused: Counter[tuple[int, int]] = field(default_factory=Counter)
    cosines: dict[str, list[npt.NDArray[np.float64]]] = field(default_factory=dict)
    signals: dict[str, list[npt.NDArray[np.float64]]] = field(default_factory=dict)
    noises: dict[str, list[npt.NDArray[np.float64]]] = field(default_factory=dict)

    def add(
        self,
        reference: Mapping[str, Array],
        outputs: Mapping[str, Array],
        *,
        samples: int,
        classify: bool,
        objects: Objects | None = None,
        reader: DetectionReader | None = None,
    ) -> None:
        """Add one call's outputs, which hold ``samples`` samples along their first axis.

        With ``objects``, which are theirs, ``reader`` is what finds the detections that are matched with them.
        """
        for name, expected in reference.items():
            x = expected.astype(np.float64).reshape(samples, -1)
            y = outputs[name].astype(np.float64).reshape(samples, -1)
            signal, noise = np.square(x).sum(axis=1), np.square(x - y).sum(axis=1)
            self.signals.setdefault(name, []).append(signal)
            self.noises.setdefault(name, []).append(noise)
            self.cosines.setdefault(name, []).append(_row_cosines(x, y))
        if classify:
            self.ranked.append(_best_classes(next(iter(outputs.values()))))
        if objects is not None and reader is not None:
            found = reader.read(outputs, EVALUATION_RULES)
            self.matches.append(match(found, objects))
            self.confused += of_objects(found, objects)

    def predicted(self) -> npt.NDArray[np.int64]:
        """First class of every sample, shape (n,); −1 where an output was not finite."""
        return self.best_classes()[:, 0]

    def best_classes(self) -> npt.NDArray[np.int64]:
        """The likeliest classes of every sample, best first, shape (n, 1 or 5); −1 where an output was not finite."""
        return np.concatenate(self.ranked)

    def confusion(self, labels: npt.NDArray[np.int64] | None) -> Confusion | None:
        """What was taken for what; None without labels or objects."""
        if self.matches:
            return counted(self.confused)
        return of_labels(labels, self.predicted()) if labels is not None and self.ranked else None

    def other_metrics(self, labels: npt.NDArray[np.int64] | None) -> dict[str, float]:
        """In percent: ``map50`` with objects, ``top5`` with labels of more than five classes."""
        if self.matches:
            return {"map50": mean_average_precision(Matches.joined(self.matches), thresholds=slice(0, 1))}
        if labels is None or not self.ranked or self.best_classes().shape[1] < _TOP:
            return {}
        return {f"top{_TOP}": 100.0 * float((self.best_classes() == labels[:, None]).any(axis=1).mean())}

    def sample_cosines(self, name: str) -> npt.NDArray[np.float64]:
        """Cosine of one output for each sample, shape (n,).

        An output next to nothing has no direction (a detector's map without an object): a sample whose output and
        whose difference are both below 1 % of the largest output counts as equal.
        """
        signal, noise = np.concatenate(self.signals[name]), np.concatenate(self.noises[name])
        negligible = np.maximum(signal, noise) < np.square(_NEGLIGIBLE) * signal.max()
        return np.where(negligible, 1.0, np.concatenate(self.cosines[name]))

    def mean_cosine(self) -> dict[str, float]:
        """Mean over the samples, per output."""
        return {name: float(self.sample_cosines(name).mean()) for name in self.cosines}

    def worst_cosines(self) -> npt.NDArray[np.float64]:
        """Per sample, the lowest cosine over the outputs, shape (n,)."""
        lowest: npt.NDArray[np.float64] = np.min([self.sample_cosines(name) for name in self.cosines], axis=0)
        return lowest

    def sqnr_db(self) -> dict[str, float | None]:
        """Per output; None where nothing differs."""
        energies = {
            name: (float(np.concatenate(self.signals[name]).sum()), float(np.concatenate(self.noises[name]).sum()))
            for name in self.signals
        }
        return {name: None if noise == 0.0 else sqnr_db(signal, noise) for name, (signal, noise) in energies.items()}


def compare_outputs(
    reference: Run,
    variants: Mapping[str, Run],
    samples: Samples,
    *,
    batch: int,
    classify: bool,
    progress: Progress,
    reader: DetectionReader | None = None,
) -> dict[str, OutputRecord]:
    """Run FP32 and every variant over the samples, batch by batch, and compare; keyed as ``variants``.

    Where the samples have objects, ``reader`` finds the detections that are matched with them.
    """
    records = {name: OutputRecord() for name in variants}
    done = 0
    for feeds in samples.batches(batch):
        count = 1 if samples.whole else len(next(iter(feeds.values())))
        objects = None if samples.objects is None else samples.objects.pick(slice(done, done + count))
        expected = reference(feeds)
        for name, run in variants.items():
            outputs = expected if run is reference else run(feeds)
            records[name].add(expected, outputs, samples=count, classify=classify, objects=objects, reader=reader)
        done += count
        progress.advance(count)
    return records


def metric_for(
    budget: Budget | None,
    outputs: tuple[TensorSpec, ...],
    *,
    labelled: bool,
    reader: DetectionReader | None = None,
) -> Metric:
    """The metric that a model is judged by: the budget's, or what the data allows.

    Without labels a ``top1`` budget is held by agreement: top-1 cannot fall further than predictions change. Nothing
    holds a ``map`` budget without boxes.

    Args:
        budget: that was asked for.
        outputs: of the model.
        labelled: the evaluation data has labels (a classifier's) or objects (a detector's).
        reader: of a detector's outputs; None for any other model.

    Raises:
        OptionError: the budget is in a metric that is for another kind of model, or that the data does not allow.
    """
    if budget is not None and budget.metric == "map":
        _check_map_budget(budget, outputs, labelled=labelled, reader=reader)
        return "map"
    if reader is not None and (budget is None or budget.metric == "cosine"):
        return "map" if budget is None and labelled else "cosine"
    if classifier_classes(outputs) is None:
        if budget is not None and budget.metric != "cosine":
            raise OptionError(
                f"budget {budget.metric}={budget.limit:g} is for classifiers with one float output (N, classes): the "
                f"outputs are {'; '.join(map(str, outputs))}; give cosine=0.01"
            )
        return "cosine"
    if budget is not None and budget.metric != "top1":
        return budget.metric
    return "top1" if labelled else "agreement"


def _check_map_budget(
    budget: Budget, outputs: tuple[TensorSpec, ...], *, labelled: bool, reader: DetectionReader | None
) -> None:
    if reader is None:
        raise OptionError(f"budget map={budget.limit:g} is for detectors: {no_detector(outputs)}")
    if not labelled:
        raise OptionError(
            f"budget map={budget.limit:g} needs to know what is on the pictures: give --eval FILE.npz with the arrays "
            "boxes (N, m, 4) and classes (N, m), or cosine=0.01"
        )


def judge(
    record: OutputRecord,
    reference: OutputRecord,
    labels: npt.NDArray[np.int64] | None,
    *,
    metric: Metric,
    seed: int,
    confidence: float = CONFIDENCE,
) -> Accuracy:
    """Turn a record into an accuracy with its drop and the drop's upper bound.

    Args:
        record: of the variant.
        reference: of FP32 on the same samples.
        labels: int64, shape (n,); needed for ``top1``.
        metric: ``top1`` and ``agreement`` for classifiers, ``map`` for detectors whose records hold matches,
            ``cosine`` (of the worst output) for any model.
        seed: of the bootstrap.
        confidence: with which the bound holds.
    """
    value, drop, upper = _JUDGES[metric](record, reference, labels, seed, confidence)
    return Accuracy(
        metric=metric,
        value=value,
        drop=drop,
        drop_upper=0.0 if record is reference else upper,
        samples=len(record.worst_cosines()),
        sqnr_db=record.sqnr_db(),
        cosine=record.mean_cosine(),
        confidence=confidence,
        also=record.other_metrics(labels),
    )


_Labels = npt.NDArray[np.int64] | None


def _judge_top1(
    record: OutputRecord, reference: OutputRecord, labels: _Labels, seed: int, confidence: float
) -> tuple[float, float, float]:
    assert labels is not None
    before, now = reference.predicted() == labels, record.predicted() == labels
    lost, won = int((before & ~now).sum()), int((~before & now).sum())
    upper = paired_drop_upper(lost, won, len(labels), seed=seed, confidence=confidence)
    return 100.0 * float(now.mean()), 100.0 * (lost - won) / len(labels), 100.0 * upper


def _judge_map(
    record: OutputRecord, reference: OutputRecord, _: _Labels, seed: int, confidence: float
) -> tuple[float, float, float]:
    before, now = Matches.joined(reference.matches), Matches.joined(record.matches)
    value = mean_average_precision(now)
    upper = map_drop_upper(before, now, seed=seed, confidence=confidence)
    return value, mean_average_precision(before) - value, upper


def _judge_agreement(
    record: OutputRecord, reference: OutputRecord, _: _Labels, __: int, confidence: float
) -> tuple[float, float, float]:
    theirs, ours = reference.predicted(), record.predicted()
    changed, count = int(((theirs != ours) | (ours < 0)).sum()), len(ours)
    share = 100.0 * changed / count
    return 100.0 - share, share, 100.0 * binomial_upper(changed, count, confidence=confidence)


def _judge_cosine(
    record: OutputRecord, _: OutputRecord, __: _Labels, seed: int, confidence: float
) -> tuple[float, float, float]:
    cosines = record.worst_cosines()
    upper = mean_upper(1 - cosines, seed=seed, confidence=confidence)
    return float(cosines.mean()), float(1 - cosines.mean()), upper


_JUDGES: dict[Metric, Callable[[OutputRecord, OutputRecord, _Labels, int, float], tuple[float, float, float]]] = {
    "top1": _judge_top1,
    "agreement": _judge_agreement,
    "map": _judge_map,
    "cosine": _judge_cosine,
}


def within_budget(accuracy: Accuracy, budget: Budget) -> bool:
    """Whether the drop's upper bound is inside the budget.

    A ``top1`` budget may be held by agreement: top-1 cannot fall further than predictions change.
    """
    comparable = accuracy.metric == budget.metric or (accuracy.metric, budget.metric) == ("agreement", "top1")
    return comparable and accuracy.drop_upper <= budget.limit


def _row_cosines(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    dots = np.einsum("ij,ij->i", x, y)
    equal = (x == y).all(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        cosines = np.where(equal, 1.0, np.where(norms > 0, dots / norms, 0.0))
    clipped: npt.NDArray[np.float64] = np.clip(np.nan_to_num(cosines, nan=-1.0), -1.0, 1.0)
    return clipped


def _best_classes(scores: Array) -> npt.NDArray[np.int64]:
    """First classes of each row; −1 where a score is not finite, which agrees with nothing and is never right."""
    first = scores.argmax(axis=1)[:, None].astype(np.int64)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :_TOP].astype(np.int64) if scores.shape[1] > _TOP else first
    return np.where(np.isfinite(scores).all(axis=1, keepdims=True), best, -1)
