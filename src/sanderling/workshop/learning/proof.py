"""The proof of a task: its graphs' gradients are PyTorch's own, and what is private clips each sample."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sanderling.core.errors import EngineError, ModelError, NotMetError, first_line
from sanderling.core.progress import Event, Progress
from sanderling.core.tensor import Array, Feeds, random_feeds
from sanderling.measure.golden_gradients import GradientCheck, compare_gradients, golden_call, gradient_error
from sanderling.model.learning import LABEL, FeatureCut, LearningSpec, PrivateStep
from sanderling.model.tensors import write_safetensors
from sanderling.run.engines import DEFAULT_ENGINE, engine
from sanderling.run.engines.base import EngineOptions
from sanderling.workshop.learning.private import CLIP, MASK, clipped_sums
from sanderling.workshop.learning.task import Task
from sanderling.workshop.learning.trace import Batch, Reference, true_gradients

if TYPE_CHECKING:
    from sanderling.workshop.learning.prepare import Written
    from sanderling.workshop.learning.trace import Traced

_GOLDEN_BATCH = 4
_MOST_BATCHES = 8
_STEADY = 0.1
"""How much of the tolerance float32 may differ by from float64 on a batch that is kept at once."""


def prove(
    folder: Path, spec: LearningSpec, written: Written, traced: Traced, seed: int, progress: Progress
) -> LearningSpec:
    """Write PyTorch's own gradients into the task, and hold every step to them.

    Returns:
        The spec with what was found: the error, and no private step or cut that failed.

    Raises:
        NotMetError: the gradients differ by more than the tolerance.
    """
    values = golden_values(written.task, seed)
    reference = Reference(traced, spec.loss, written.task.adapters, written.rounded)
    found, batch, golden = _golden(folder / spec.grad_step, spec, written.task, reference, values, seed)
    if not found.passed:
        raise NotMetError(
            f"the gradients are not PyTorch's: '{found.worst}' differs by {found.error:.1e} of its size, at most "
            f"{spec.golden.tolerance:.0e} is allowed; train fewer layers, and report which operators it has"
        )
    feeds, expected = golden_call(spec, golden)
    spec = spec.model_copy(update={"golden": spec.golden.model_copy(update={"error": found.error})})
    if spec.private.file is not None:
        golden |= _private_reference(reference, batch, values)
    write_safetensors(folder / spec.golden.file, golden)
    return _proved_ways(folder, spec, golden, feeds, expected, progress)


def _golden(
    graph: Path, spec: LearningSpec, task: Task, reference: Reference, values: Mapping[str, Array], seed: int
) -> tuple[GradientCheck, Batch, dict[str, Array]]:
    """How far the graph is from PyTorch's float64, on a batch whose gradients rounding does not change.

    Where a value lies at the bend of an activation, float32 may fall on the other side of it and have another
    gradient, neither of them wrong. Such a batch proves nothing, and the next is drawn; a wrong rule fails on all.
    """
    tried: list[tuple[GradientCheck, Batch, dict[str, Array]]] = []
    for drawn in range(_MOST_BATCHES):
        batch = golden_batch(task, spec, seed + drawn)
        gradients = true_gradients(reference, batch, values)
        rounded = true_gradients(reference.in_float32(), batch, values)
        own_error, _ = gradient_error(gradients, rounded, weight=float(gradients["weight"]))
        golden = {f"input.{name}": array for name, array in batch.inputs.items()} | {LABEL: batch.label}
        golden |= {f"param.{name}": array for name, array in values.items()} | gradients
        feeds, expected = golden_call(spec, golden)
        tried.append((compare_gradients(spec, expected, _run(graph, feeds)), batch, golden))
        if max(own_error, tried[-1][0].error) <= _STEADY * spec.golden.tolerance:
            break
    return min(tried, key=lambda each: each[0].error)


def _proved_ways(
    folder: Path,
    spec: LearningSpec,
    golden: Mapping[str, Array],
    feeds: Feeds,
    expected: Mapping[str, Array],
    progress: Progress,
) -> LearningSpec:
    """Keep the private step and the cut only as far as they are right."""
    private = _proved_private(folder, spec, spec.private, golden, feeds, progress)
    cut = spec.features
    if cut is not None:
        inputs = {tensor.name: feeds[tensor.name] for tensor in spec.inputs}
        rest = {name: array for name, array in feeds.items() if name not in inputs}
        features, reason = _proved_cut(folder, spec, cut, inputs, rest, expected)
        if reason is not None:
            progress.event(Event(kind="features-not-cut", subject="features", reason=reason))
            _remove_graphs(folder, cut)
            cut = None
        else:
            own = _proved_private(folder, spec, cut.private, golden, {**rest, **features}, progress)
            cut = cut.model_copy(update={"private": own})
    return spec.model_copy(update={"private": private, "features": cut})


def _proved_cut(
    folder: Path, spec: LearningSpec, cut: FeatureCut, inputs: Feeds, rest: Feeds, expected: Mapping[str, Array]
) -> tuple[dict[str, Array], str | None]:
    """The golden batch's features, and why they cannot be kept for each sample, in words."""
    try:
        features = _run(folder / cut.features, inputs)
        found = compare_gradients(spec, expected, _run(folder / cut.grad_step, {**rest, **features}))
        alone = _last_first(folder / cut.features, inputs, is_fixed=isinstance(cut.tensors[0].shape[0], int))
    except (EngineError, ModelError) as failure:
        return {}, f"the frozen part cannot be cut off: {first_line(failure)}"
    if not found.passed:
        return features, f"on features '{found.worst}' differs by {found.error:.1e}: the frozen part is not cut off"
    for name, array in features.items():
        own = alone[name]
        if len(array) != len(rest[LABEL]) or own.shape[1:] != array.shape[1:]:
            return features, f"'{name}' has {len(array)} rows for {len(rest[LABEL])} samples: it cannot be kept"
        error = float(np.abs(own[0].astype(np.float64) - array[-1]).max(initial=0.0))
        if error > spec.golden.tolerance * max(1.0, float(np.abs(array[-1]).max(initial=0.0))):
            return features, f"'{name}' of a sample depends on the other samples of its batch: it cannot be kept"
    return features, None


def _last_first(graph: Path, inputs: Feeds, *, is_fixed: bool) -> dict[str, Array]:
    """Features of the batch's last sample among no others; where the batch is fixed, it fills all of it."""
    return _run(graph, {name: array[[-1] * (len(array) if is_fixed else 1)] for name, array in inputs.items()})


def _remove_graphs(folder: Path, cut: FeatureCut) -> None:
    """Remove the graphs of a cut that is not kept."""
    for name in (cut.features, cut.grad_step, cut.eval, cut.private.file):
        if name is not None:
            (folder / name).unlink()


def _proved_private(
    folder: Path,
    spec: LearningSpec,
    step: PrivateStep,
    golden: Mapping[str, Array],
    feeds: Feeds,
    progress: Progress,
) -> PrivateStep:
    if step.file is None:
        return step
    rows = len(golden[LABEL])
    names = [parameter.name for parameter in spec.parameters]
    expected = {f"acc.out.{name}": golden[f"private.grad.{name}"] for name in names}
    try:
        got = _run(folder / step.file, {**feeds, MASK: np.ones(rows, np.float32), CLIP: golden["private.clip_norm"]})
    except (EngineError, ModelError) as failure:  # rows that are no samples any more: shapes do not meet
        reason = f"each sample's own gradient cannot be computed: {first_line(failure)}"
    else:
        error, worst = gradient_error(expected | {"grad_norm": golden["private.grad_norm"]}, got, weight=rows)
        if error <= spec.golden.tolerance:
            return step
        reason = f"clipped gradients are not those of PyTorch, sample by sample: '{worst}' differs by {error:.1e}"
    progress.event(Event(kind="privacy-refused", subject="training", reason=reason))
    (folder / step.file).unlink()
    return PrivateStep(refused=reason)


def _private_reference(reference: Reference, batch: Batch, values: Mapping[str, Array]) -> dict[str, Array]:
    """Each sample's gradients by PyTorch, clipped to the median of their norms, so that some are and some are not."""
    each: dict[str, list[Array]] = {name: [] for name in values}
    for row in range(len(batch.label)):
        one = reference.alone(batch, row)
        found = true_gradients(reference, one, values)
        count = reference.positions(one)
        for name, arrays in each.items():
            arrays.append(found[f"grad.{name}"] / count)
    stacked = {name: np.stack(arrays) for name, arrays in each.items()}
    clip = np.float32(np.median(clipped_sums(stacked, np.inf)[1]) or 1.0)
    sums, norms = clipped_sums(stacked, float(clip))
    result = {f"private.grad.{name}": array for name, array in sums.items()}
    return result | {"private.clip_norm": np.asarray(clip), "private.grad_norm": norms}


def _run(graph: Path, feeds: Feeds) -> dict[str, Array]:
    with closing(engine(DEFAULT_ENGINE).load(graph, EngineOptions())) as executable:
        return executable.run(feeds)


def golden_batch(task: Task, spec: LearningSpec, seed: int) -> Batch:
    """Random inputs, and labels that fit the loss."""
    feeds = random_feeds(task.forward.inputs, batch=_GOLDEN_BATCH, seed=seed)
    generator = np.random.default_rng(seed)
    shape = task.label.concrete_shape(_GOLDEN_BATCH)
    if task.classes is not None:
        return Batch(feeds, generator.integers(0, task.classes, shape))
    if spec.loss.kind == "contrastive":
        return Batch(feeds, np.arange(shape[0]) // 2)
    if spec.loss.kind == "bce":
        return Batch(feeds, generator.random(shape, np.float32))
    return Batch(feeds, generator.standard_normal(shape, np.float32))


def golden_values(task: Task, seed: int) -> dict[str, Array]:
    """The first values, an adapter's zeros replaced: they would hide the other factor's gradient."""
    generator = np.random.default_rng(seed)
    values = {parameter.name: task.initial[parameter.name] for parameter in task.parameters}
    for adapter in task.adapters:
        values[adapter.b] = generator.normal(0, 0.02, values[adapter.b].shape).astype(np.float32)
    return values
