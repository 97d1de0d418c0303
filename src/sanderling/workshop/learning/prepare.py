"""From a PyTorch module to a task: a package that infers, and holds graphs that train it."""

from __future__ import annotations

import importlib.util
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from sanderling.core.errors import NotMetError, OptionError, UnavailableError
from sanderling.core.files import replacing, sha256_of
from sanderling.core.precision import Precision
from sanderling.core.progress import Event, Progress, Silent
from sanderling.core.tensor import Array, random_feeds
from sanderling.measure.golden_gradients import compare_gradients, golden_call
from sanderling.model.learning import (
    GOLDEN_TOLERANCE,
    LABEL,
    LEARNING_FOLDER,
    GoldenGradients,
    LearningSpec,
    OptimizerGraph,
    PrivateStep,
)
from sanderling.model.package import file_entries, write_manifest, write_zip
from sanderling.model.tensors import write_safetensors
from sanderling.run.engines import DEFAULT_ENGINE, engine
from sanderling.run.engines.base import EngineOptions
from sanderling.workshop.export.source import Exported
from sanderling.workshop.learning.forward import Forward, read_forward
from sanderling.workshop.learning.optimizers import SETTINGS, STATES, optimizer_graph
from sanderling.workshop.learning.options import LearningOptions
from sanderling.workshop.learning.storage import WEIGHTS, write_graphs
from sanderling.workshop.learning.task import (
    Task,
    eval_graph,
    fingerprint,
    grad_step_graph,
    inference_graph,
    model_graph,
    write_task,
)
from sanderling.workshop.options import BuildOptions
from sanderling.workshop.pipeline import BuildResult, build, check_output

if TYPE_CHECKING:
    from sanderling.workshop.learning.trace import Batch, Traced

_GOLDEN_BATCH = 4


@dataclass
class _Origin:
    """What the export leaves for the task."""

    traced: Traced
    forward: Forward
    model: onnx.ModelProto


def prepare(options: BuildOptions, learning: LearningOptions, progress: Progress | None = None) -> BuildResult:
    """Export the forward pass, write loss and way back behind it, and write a package whose manifest tells of them.

    Args:
        options: of the build of the variant ``fp32``; ``source`` is ``package.module:factory`` or a pickled module.
        learning: what is trained, and how.
        progress: told about stages, steps and events (what was frozen or switched off).

    Raises:
        InputError: source, options or data cannot be used; an operator has no backward here (the message names it).
        NotMetError: the graphs' gradients are not PyTorch's; nothing is written.
        UnavailableError: an extra is missing.
    """
    progress = progress or Silent()
    check_output(options.output)
    _check_tools()
    options = _with_batch(options, learning)
    found: list[_Origin] = []

    def make_graph(options: BuildOptions, progress: Progress) -> Exported:
        exported, origin = _export(options, progress)
        found.append(origin)
        return exported

    with replacing(options.output) as target:
        zipped = options.output.suffix == ".zip"
        folder = target.with_name(target.name.removesuffix(".zip"))
        result = build(replace(options, output=folder), progress, make_graph)
        spec = _write(folder, found[0], options, learning, progress)
        manifest = result.manifest.model_copy(update={"learning": spec, "files": file_entries(folder)})
        write_manifest(folder, manifest)
        if zipped:
            write_zip(folder, target)
    return replace(result, path=options.output, manifest=manifest)


def _check_tools() -> None:
    missing = [name for name in ("torch", "onnxscript", "safetensors") if importlib.util.find_spec(name) is None]
    if missing:
        raise UnavailableError(f"preparing a task needs {' and '.join(missing)}: pip install 'sanderling[build,torch]'")


def _with_batch(options: BuildOptions, learning: LearningOptions) -> BuildOptions:
    """The build's options with the batch that training has, in FP32 alone."""
    if not options.inputs:
        raise OptionError("a task needs --input NAME=1,3,224,224 for each argument of forward()")
    inputs = options.inputs
    if learning.batch is not None:
        if learning.batch < 1:
            raise OptionError(f"--batch {learning.batch} is out of range: expected at least 1")
        inputs = tuple(spec.model_copy(update={"shape": (learning.batch, *spec.shape[1:])}) for spec in inputs)
    dynamic = learning.batch is None
    return replace(options, inputs=inputs, dynamic_batch=dynamic, precisions=(Precision.FP32,))


def _export(options: BuildOptions, progress: Progress) -> tuple[Exported, _Origin]:
    from sanderling.workshop.export import torch_export
    from sanderling.workshop.learning.trace import trace

    progress.stage("export to ONNX")
    traced = trace(options)
    for note in traced.notes:
        progress.event(Event(kind="frozen", subject="training", reason=note))
    forward = read_forward(traced.model, traced.parameters)
    model = model_graph(forward)
    progress.stage("compare ONNX with PyTorch")
    check = torch_export.compare(traced.module, model, options)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)  # what the build simplifies
    return Exported(copy, traced.source, check), _Origin(traced, forward, model)


def _write(
    folder: Path, origin: _Origin, options: BuildOptions, learning: LearningOptions, progress: Progress
) -> LearningSpec:
    progress.stage("write the way back")
    task = write_task(
        origin.forward,
        learning.loss,
        learning.trainable,
        untrained_rows=origin.traced.untrained_rows,
        seed=options.seed,
        progress=progress,
    )
    inner = folder / LEARNING_FOLDER
    inner.mkdir()
    graphs = {
        "grad_step.onnx": grad_step_graph(task, task.forward.inputs),
        "eval.onnx": eval_graph(task, task.forward.inputs),
        "inference.onnx": inference_graph(task),
        "model.onnx": origin.model,
    }
    graphs |= {f"optimizer_{kind}.onnx": optimizer_graph(kind, task.parameters) for kind in learning.optimizers}
    write_graphs(inner, graphs)
    write_safetensors(inner / "parameters.safetensors", task.initial)
    spec = _spec(task, origin, learning, sha256_of(inner / WEIGHTS))
    return _proved(folder, spec, task, origin, learning, options.seed, progress)


def _spec(task: Task, origin: _Origin, learning: LearningOptions, weights_sha256: str) -> LearningSpec:
    def inside(name: str) -> str:
        return f"{LEARNING_FOLDER}/{name}"

    optimizers = tuple(
        OptimizerGraph(kind=kind, file=inside(f"optimizer_{kind}.onnx"), states=STATES[kind], settings=SETTINGS[kind])
        for kind in learning.optimizers
    )
    return LearningSpec(
        fingerprint=fingerprint(learning.loss, task.parameters, task.adapters, weights_sha256),
        inputs=task.forward.inputs,
        label=task.label,
        classes=task.classes,
        loss=learning.loss,
        trainable=learning.trainable,
        parameters=task.parameters,
        initial=inside("parameters.safetensors"),
        grad_step=inside("grad_step.onnx"),
        eval=inside("eval.onnx"),
        inference=inside("inference.onnx"),
        model=inside("model.onnx"),
        optimizers=optimizers,
        private=PrivateStep(refused="not written yet"),
        adapters=task.adapters,
        golden=GoldenGradients(file=inside("golden.safetensors"), tolerance=GOLDEN_TOLERANCE, error=0.0),
        notes=origin.traced.notes,
    )


def _proved(
    folder: Path,
    spec: LearningSpec,
    task: Task,
    origin: _Origin,
    learning: LearningOptions,
    seed: int,
    progress: Progress,
) -> LearningSpec:
    """Write PyTorch's own gradients, and hold the graph's to them.

    Raises:
        NotMetError: they differ by more than the tolerance.
    """
    from sanderling.workshop.learning.trace import true_gradients

    progress.stage("compare gradients with PyTorch")
    batch, values = _golden_batch(task, learning, seed), _golden_values(task, seed)
    reference = true_gradients(origin.traced, learning.loss, batch, values, task.adapters)
    golden = {f"input.{name}": array for name, array in batch.inputs.items()} | {LABEL: batch.label} | reference
    golden |= {f"param.{name}": array for name, array in values.items()}
    write_safetensors(folder / spec.golden.file, golden)
    feeds, expected = golden_call(spec, golden)
    with closing(engine(DEFAULT_ENGINE).load(folder / spec.grad_step, EngineOptions())) as executable:
        found = compare_gradients(spec, expected, executable.run(feeds))
    if not found.passed:
        raise NotMetError(
            f"the gradients are not PyTorch's: '{found.worst}' differs by {found.error:.1e} of its size, at most "
            f"{spec.golden.tolerance:.0e} is allowed; train fewer layers, and report which operators it has"
        )
    golden_spec = spec.golden.model_copy(update={"error": found.error})
    return spec.model_copy(update={"golden": golden_spec})


def _golden_batch(task: Task, learning: LearningOptions, seed: int) -> Batch:
    from sanderling.workshop.learning.trace import Batch

    feeds = random_feeds(task.forward.inputs, batch=_GOLDEN_BATCH, seed=seed)
    generator = np.random.default_rng(seed)
    shape = task.label.concrete_shape(_GOLDEN_BATCH)
    if task.classes is not None:
        return Batch(feeds, generator.integers(0, task.classes, shape))
    if learning.loss.kind == "contrastive":
        return Batch(feeds, np.arange(shape[0]) // 2)
    if learning.loss.kind == "bce":
        return Batch(feeds, generator.random(shape, np.float32))
    return Batch(feeds, generator.standard_normal(shape, np.float32))


def _golden_values(task: Task, seed: int) -> dict[str, Array]:
    """The first values, an adapter's zeros replaced: they would hide the other factor's gradient."""
    generator = np.random.default_rng(seed)
    values = dict(task.initial)
    for adapter in task.adapters:
        values[adapter.b] = generator.normal(0, 0.05, values[adapter.b].shape).astype(np.float32)
    return values
