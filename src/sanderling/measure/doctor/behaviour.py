"""Whether a classifier does clearly better on the same data made into inputs in another way.

With labels the share of right answers decides, by an exact sign test. Without labels confidence alone is no judge: an
input 255 times too large makes a network more confident, not less. What counts is the mutual information between input
and prediction (confident on each sample, different between samples), and only a large gain in it. Without labels the
order of channels is not judged here, because it changes too little, nor the layout: read wrongly, pictures of one kind
look more different from each other than they are.

Source: mutual information as in Krause, Perona and Gomes, "Discriminative Clustering by Regularized Information
Maximization", NIPS 2010.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sanderling.core.statistics import sign_test
from sanderling.core.tensor import Array
from sanderling.measure.doctor.encoding import usual
from sanderling.measure.doctor.findings import Finding, fault, warning
from sanderling.measure.doctor.pictures import Pictures, flipped, reread

Classify = Callable[[Array], npt.NDArray[np.float64]]
LEAST_SAMPLES = 24
_LARGE_FACTOR = 20.0
_LEAST_GAIN_NATS, _SURE_GAIN_NATS = 0.5, 1.0
_ONLY_WITH_LABELS = ("input-channel-order", "input-layout")
_LEAST_GAIN_RATIO = 1.4
_UNDECIDED = 0.5
_LEAST_GAIN_TOP1 = 0.03
_CHANCE = 1e-3


@dataclass(frozen=True)
class Hypothesis:
    """Another way to make inputs.

    Attributes:
        kind: of the finding that it would be.
        told: what was done otherwise, in words.
        remedy: what the application should do.
        values: the inputs.
        enlarges: values get many times larger, which makes any network surer: considered only where answers are dull.
    """

    kind: str
    told: str
    remedy: str
    values: npt.NDArray[np.float32]
    enlarges: bool = False


def check_behaviour(pictures: Pictures, classify: Classify, labels: npt.NDArray[np.int64] | None) -> list[Finding]:
    """Run the model on every hypothesis and name the one that does clearly better, if any.

    Args:
        pictures: at least ``LEAST_SAMPLES`` inputs.
        classify: inputs to scores, shape (N, classes).
        labels: shape (N,), or None.
    """
    own = classify(pictures.values)
    judged = [
        (hypothesis, classify(hypothesis.values))
        for hypothesis in hypotheses(pictures)
        if labels is not None or hypothesis.kind not in _ONLY_WITH_LABELS
    ]
    if labels is not None:
        return _by_labels(pictures.name, own, judged, labels)
    return _by_information(pictures.name, own, judged)


def hypotheses(pictures: Pictures) -> Iterator[Hypothesis]:
    """Other ways to make the inputs: channels, layout, and the usual encodings where grey levels are known."""
    values, axis = pictures.values, pictures.axis
    if pictures.channels == 3:
        told = "with the first and third channel swapped"
        yield Hypothesis(
            "input-channel-order", told, "swap the first and third channel", flipped(values, pictures.guessed, axis)
        )
        told = "with their memory read in the other layout"
        remedy = "transpose inputs instead of giving them another shape"
        yield Hypothesis("input-layout", told, remedy, np.ascontiguousarray(reread(values, axis)))
    own = pictures.guessed
    if own is None or pictures.proved:
        return
    levels = own.undo(values, axis)
    reference = [pictures.expected] if pictures.expected is not None else []
    for encoding in (*reference, *usual(pictures.channels)):
        if encoding.equals(own):
            continue
        factor = own.step[0] / encoding.step[0]
        large = not 1 / _LARGE_FACTOR < factor < _LARGE_FACTOR
        remedy = f"make inputs as (level / 255 - mean) / std with {encoding.told()}"
        told = f"made as '{encoding.name}' ({encoding.told()} after a division by 255)"
        kind = "input-scale" if large else "input-normalization"
        yield Hypothesis(kind, told, remedy, encoding.apply(levels, axis), enlarges=factor < 1 / _LARGE_FACTOR)


def _by_labels(
    name: str,
    own: npt.NDArray[np.float64],
    judged: list[tuple[Hypothesis, npt.NDArray[np.float64]]],
    labels: npt.NDArray[np.int64],
) -> list[Finding]:
    right = own.argmax(axis=1) == labels
    best, best_right = None, right
    for hypothesis, scores in judged:
        also = scores.argmax(axis=1) == labels
        if also.sum() > best_right.sum():
            best, best_right = hypothesis, also
    if best is None:
        return []
    won, lost = int((best_right & ~right).sum()), int((right & ~best_right).sum())
    chance = sign_test(won, lost)
    gain = float(best_right.mean() - right.mean())
    if gain < _LEAST_GAIN_TOP1 or chance > _CHANCE / len(judged):
        return []
    evidence = (
        f"{best.told}, {100 * best_right.mean():.1f} % of {len(labels)} labels are right instead of "
        f"{100 * right.mean():.1f} % ({won} won, {lost} lost, by chance {chance:.0e})"
    )
    numbers = {"top1": float(right.mean()), "top1_other": float(best_right.mean()), "chance": chance}
    return [fault(best.kind, name, evidence, best.remedy, **numbers)]


def _by_information(
    name: str, own: npt.NDArray[np.float64], judged: list[tuple[Hypothesis, npt.NDArray[np.float64]]]
) -> list[Finding]:
    dull = _mean_entropy(own) > _UNDECIDED * np.log(own.shape[1])
    judged = [pair for pair in judged if dull or not pair[0].enlarges]
    if not judged:
        return []
    have = mutual_information(own)
    best, most = max(((hypothesis, mutual_information(scores)) for hypothesis, scores in judged), key=lambda p: p[1])
    if most - have < _LEAST_GAIN_NATS or most < _LEAST_GAIN_RATIO * have:
        return []
    evidence = (
        f"{best.told}, predictions tell {most:.2f} nats about the input instead of {have:.2f} "
        f"(confident on each of {len(own)} samples, different between them)"
    )
    sure = best.kind == "input-scale" or most - have >= _SURE_GAIN_NATS
    make = fault if sure else warning
    return [make(best.kind, name, evidence, best.remedy, information=have, information_other=most)]


def mutual_information(scores: npt.NDArray[np.float64]) -> float:
    """Entropy of the mean prediction minus mean entropy of the predictions, nats; scores have shape (N, classes)."""
    if not np.isfinite(scores).all():
        return 0.0
    probabilities = _probabilities(scores)
    return _entropy(probabilities.mean(axis=0)) - _mean_entropy(scores)


def _mean_entropy(scores: npt.NDArray[np.float64]) -> float:
    return float(np.mean([_entropy(row) for row in _probabilities(scores)])) if np.isfinite(scores).all() else 0.0


def _probabilities(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Softmax, unless the rows are probabilities already."""
    if scores.min() >= 0 and np.allclose(scores.sum(axis=1), 1, atol=1e-3):
        return scores
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def _entropy(probabilities: npt.NDArray[np.float64]) -> float:
    present = probabilities[probabilities > 0]
    return float(-(present * np.log(present)).sum())
