"""Loss and accuracy of the current parameters, by the task's evaluation graph."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import BaseModel, ConfigDict

from sanderling.core.errors import DataError
from sanderling.core.progress import Event, Progress
from sanderling.core.tensor import Array, Feeds
from sanderling.learn.data import Dataset
from sanderling.learn.gates import OPEN, Gate
from sanderling.learn.graphs import named
from sanderling.learn.sampling import epoch_order, micro_batches
from sanderling.learn.task import Task
from sanderling.model.learning import LABEL, LossSpec
from sanderling.run.engines.base import Executable

_ROWS = 64
_SEED = 0  # always the same order, so that evaluations can be compared
_PLANE_RANK = 3  # of labels (N, H, W)


class Evaluation(BaseModel):
    """How well the current parameters do.

    Attributes:
        loss: mean over the samples, as the loss weighs them.
        accuracy: share of right answers in [0, 1], of a classifier (of positions, for a sequence); None for others.
        samples: that were looked at.
    """

    model_config = ConfigDict(frozen=True)

    loss: float
    accuracy: float | None
    samples: int


def evaluate(
    task: Task,
    executable: Executable,
    parameters: Mapping[str, Array],
    data: Dataset,
    progress: Progress,
    gate: Gate = OPEN,
) -> Evaluation:
    """Run all samples through the evaluation graph.

    Raises:
        DataError: there are fewer samples than the graph takes at once.
        EngineError: the engine failed.
    """
    fixed = task.batch_rows
    order = np.arange(len(data))
    if not task.spec.loss.separable or fixed is not None:
        # files lie in folders of their classes: samples that are compared, or left out, must not be of one class alone
        order = epoch_order(len(data), seed=_SEED, epoch=0)
    pieces = micro_batches(order, fixed or _ROWS, is_fixed=fixed is not None)
    seen = sum(map(len, pieces))
    if not seen:
        raise DataError(f"{len(data)} samples are too few to evaluate: the task takes {fixed} at once")
    if seen < len(data):
        reason = f"the task takes {fixed} samples at once, and {len(data)} are no multiple of that"
        progress.event(Event(kind="samples-left-out", subject=f"{len(data) - seen} of the evaluation", reason=reason))
    loss_sum, weight_sum, right, counted = 0.0, 0.0, 0, 0
    fixed_feeds = named("param", parameters)
    names = [spec.name for spec in executable.outputs if spec.name.startswith("output.")]
    for indices in pieces:
        batch = data.batch(indices)
        found = _run(executable, {**batch, **fixed_feeds}, gate)
        weight = float(found["weight"])
        if weight:
            loss_sum += float(found["loss"]) * weight
            weight_sum += weight
        answers = count_right(task.spec.loss, found[names[0]], batch[LABEL]) if names else None
        if answers is not None:
            right, counted = right + answers[0], counted + answers[1]
    return Evaluation(
        loss=loss_sum / weight_sum if weight_sum else 0.0,
        accuracy=right / counted if counted else None,
        samples=seen,
    )


def _run(executable: Executable, feeds: Feeds, gate: Gate) -> dict[str, Array]:
    found: list[dict[str, Array]] = []
    gate.take(lambda: found.append(executable.run(feeds)))
    return found[0]


def count_right(loss: LossSpec, scores: Array, labels: Array) -> tuple[int, int] | None:
    """Right answers, and how many were looked at; None where there is no right and wrong.

    Args:
        loss: that tells what scores mean.
        scores: float, shape (N, …, classes) or (N, classes, …) for cross-entropy, as the labels for BCE.
        labels: integers of shape (N, …), or targets in [0, 1].
    """
    if loss.kind == "bce":
        return int(((scores.reshape(labels.shape) > 0) == (labels > 0.5)).sum()), labels.size
    if loss.kind != "cross_entropy" or scores.ndim != labels.ndim + 1:
        return None
    if labels.ndim >= _PLANE_RANK:  # pictures have their classes on axis 1, whatever their sizes
        scores = np.moveaxis(scores, 1, -1)
    if loss.shift:
        scores, labels = scores[:, :-1], labels[:, 1:]
    counts = labels != loss.ignore_index
    return int((scores.argmax(-1) == labels)[counts].sum()), int(counts.sum())
