"""Whether an engine computes true gradients: asked once for each engine, version and task, before anything is trained.

A right loss says nothing about gradients: engines have been seen whose loss is right and whose gradients are not.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import numpy as np

from sanderling.core.errors import NotMetError
from sanderling.core.files import cache_folder, replacing
from sanderling.core.machine import fingerprint
from sanderling.core.progress import Event, Progress
from sanderling.core.tensor import Array
from sanderling.learn.graphs import Arrays, GradientGraph, Gradients, Vector, scalar
from sanderling.learn.sampling import padded
from sanderling.learn.task import Task
from sanderling.measure.golden_gradients import GradientCheck, gradient_error
from sanderling.model.learning import LABEL
from sanderling.model.tensors import read_safetensors
from sanderling.run.engines import engine

_FOLDER = "gradients"
_NO_CLIP = 1e30
_CLIP_SLACK = 1e-4  # relative, for rounding


def require_true_gradients(
    task: Task, graph: GradientGraph, progress: Progress, *, private: bool = False, cached: bool = True
) -> None:
    """Compare with PyTorch's own gradients, unless this engine passed with this very task before.

    Args:
        task: whose golden batch is used.
        graph: that was loaded.
        progress: told about a comparison that was made.
        private: the graph clips each sample's gradient.
        cached: believe an earlier comparison.

    Raises:
        NotMetError: the engine's gradients are wrong; it must not train.
        PackageError: the golden batch cannot be read.
    """
    place = _place(task, private=private)
    if cached and place.is_file():
        return
    found = check_private(task, graph) if private else check(task, graph)
    version = engine(task.engine).availability().version
    if not found.passed:
        raise NotMetError(
            f"engine '{task.engine}' {version} computes wrong gradients of {task.package.manifest.name}: "
            f"'{found.worst}' is off by {found.error:.2g}, {task.spec.golden.tolerance:g} is allowed; "
            "train with another engine, such as onnxruntime"
        )
    reason = f"{task.engine} {version}: largest relative error {found.error:.1e} in '{found.worst}'"
    progress.event(Event(kind="gradients-checked", subject=task.package.manifest.name, reason=reason))
    _keep(place, found)


def check(task: Task, graph: GradientGraph) -> GradientCheck:
    """Run the golden batch through a gradient step, on features where the task's steps take them."""
    golden = _Golden(task)
    gradients = Gradients(Vector(task.spec.parameters))
    step = graph.add(golden.parameters, golden.batch, gradients)
    return _compared(task, golden, step.loss, step.weight, gradients.sums)


def check_private(task: Task, graph: GradientGraph) -> GradientCheck:
    """The same for a step that clips: without clipping it must give the golden sum, and no sample more than its norm.

    Losses that weigh samples differently have another sum; of them only the norms are compared.
    """
    golden = _Golden(task)
    parameters = golden.parameters
    rows = len(golden.batch[LABEL])
    size = task.private.batch or rows
    total = Gradients(Vector(task.spec.parameters))
    norms = []
    for indices, mask in padded(np.arange(rows), size):
        batch = {name: array[indices] for name, array in golden.batch.items()}
        graph.add(parameters, batch, total, sample_mask=mask, clip_norm=scalar(_NO_CLIP))
        clipped = Gradients(Vector(task.spec.parameters))
        one = np.zeros_like(mask)
        one[0] = 1.0
        graph.add(parameters, batch, clipped, sample_mask=one, clip_norm=scalar(_CLIP))
        norms.append(math.sqrt(sum(float(np.sum(np.square(each, dtype=np.float64))) for each in clipped.sums.values())))
    if max(norms) > _CLIP * (1 + _CLIP_SLACK):
        return GradientCheck(error=max(norms) / _CLIP - 1, worst="clipped norm", passed=False)
    spec = task.spec.loss
    if spec.class_weights is not None or spec.shift or float(golden.weight) != rows:
        return GradientCheck(error=0.0, worst="clipped norm", passed=True)
    return _compared(task, golden, None, None, total.sums)


_CLIP = 1e-3


class _Golden:
    """The golden batch, and what PyTorch says of it."""

    def __init__(self, task: Task) -> None:
        tensors = read_safetensors(task.package.file(task.spec.golden.file))
        inputs = {name.removeprefix("input."): array for name, array in tensors.items() if name.startswith("input.")}
        if task.on_features:
            inputs = _features(task, inputs)
        self.batch: Arrays = {**inputs, LABEL: tensors[LABEL]}
        self.loss, self.weight = tensors["loss"], tensors["weight"]
        first = task.initial_parameters()
        self.parameters = {name: tensors.get(f"param.{name}", array) for name, array in first.items()}
        self.gradients = {
            name.removeprefix("grad."): array for name, array in tensors.items() if name.startswith("grad.")
        }


def _features(task: Task, inputs: Arrays) -> Arrays:
    assert task.spec.features is not None
    executable = task.load(task.spec.features.features)
    try:
        return executable.run(inputs)
    finally:
        executable.close()


def _compared(
    task: Task, golden: _Golden, loss: float | None, weight: float | None, sums: dict[str, Array]
) -> GradientCheck:
    reference = {f"grad.{name}": array for name, array in golden.gradients.items()}
    got = {f"grad.{name}": sums[name] for name in golden.gradients}
    if loss is not None and weight is not None:
        reference |= {"loss": golden.loss, "weight": golden.weight}
        got |= {"loss": scalar(loss).reshape(golden.loss.shape), "weight": scalar(weight).reshape(golden.weight.shape)}
    error, worst = gradient_error(reference, got, weight=float(golden.weight))
    return GradientCheck(error=error, worst=worst, passed=error <= task.spec.golden.tolerance)


def _place(task: Task, *, private: bool) -> Path:
    """Of what an earlier comparison left: of this package, engine, version, kind of machine and number of threads."""
    version = engine(task.engine).availability().version
    parts = [task.digest, task.engine, version, fingerprint(), task.threads, task.on_features, private]
    return cache_folder() / _FOLDER / f"{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]}.json"


def _keep(place: Path, found: GradientCheck) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError:  # where nothing can be kept, it is compared each time
        return
    with replacing(place) as target:
        target.write_text(json.dumps({"error": found.error, "worst": found.worst}))
