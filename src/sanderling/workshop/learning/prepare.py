"""From a PyTorch module to a task: a package that infers, and holds graphs that train it."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import numpy_helper

from sanderling.core.errors import ModelError, OptionError, UnavailableError
from sanderling.core.files import replacing
from sanderling.core.precision import Precision
from sanderling.core.progress import Event, Progress, Silent
from sanderling.core.tensor import Array, TensorSpec
from sanderling.model.learning import (
    LEARNING_FOLDER,
    FeatureCut,
    GoldenGradients,
    LearningSpec,
    OptimizerGraph,
    PrivateStep,
)
from sanderling.model.package import file_entries, write_manifest, write_zip
from sanderling.model.tensors import write_safetensors
from sanderling.workshop.export.source import Exported
from sanderling.workshop.learning.backbone import compress, fold_in
from sanderling.workshop.learning.cut import Cut, features_graph, find_cut, on_features
from sanderling.workshop.learning.draft import Draft
from sanderling.workshop.learning.forward import Forward, read_forward
from sanderling.workshop.learning.optimizers import SETTINGS, STATES, optimizer_graph
from sanderling.workshop.learning.options import LearningOptions
from sanderling.workshop.learning.private import PrivateBackward, private_graph, why_not, write_private
from sanderling.workshop.learning.selection import trained_parameters
from sanderling.workshop.learning.storage import write_graphs
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
    from sanderling.workshop.learning.trace import Traced

_GOLDEN, _INITIAL = "golden.safetensors", "parameters.safetensors"


@dataclass(frozen=True)
class _Origin:
    """What the export leaves for the task."""

    traced: Traced
    forward: Forward


@dataclass(frozen=True)
class Written:
    """A task whose graphs are there.

    Attributes:
        task: its values.
        graphs: by file name.
        private: the private way back; None where there is none.
        refused: why there is none.
        cut: None where the frozen part is not cut off.
        rounded: frozen weights that are stored in fewer bytes, as they are computed with.
        weights_sha256: over all weights of the model.
    """

    task: Task
    graphs: dict[str, onnx.ModelProto]
    private: PrivateBackward | None
    refused: str | None
    cut: Cut | None
    rounded: dict[str, Array]
    weights_sha256: str


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
        spec = write_learning(folder, found[0].traced, found[0].forward, learning, options.seed, progress)
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
    return replace(options, inputs=inputs, dynamic_batch=learning.batch is None, precisions=(Precision.FP32,))


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
    return Exported(model, traced.source, check), _Origin(traced, forward)


def write_learning(
    folder: Path, traced: Traced, forward: Forward, learning: LearningOptions, seed: int, progress: Progress
) -> LearningSpec:
    """Write the folder ``learning`` of a package, and prove it.

    Args:
        folder: of the package.
        traced: the module.
        forward: its forward pass; the way back is written behind it.
        learning: what is trained, and how.
        seed: of the adapters' first values and of the golden batch.
        progress: told about stages and events.

    Raises:
        InputError: nothing to train, a loss that does not fit, or an operator without a rule.
        NotMetError: the gradients are not PyTorch's.
    """
    from sanderling.workshop.learning.proof import prove

    progress.stage("write the way back")
    written = write_graphs_of(forward, learning, traced.untrained_rows, seed=seed, progress=progress)
    inner = folder / LEARNING_FOLDER
    inner.mkdir()
    write_graphs(inner, written.graphs)
    write_safetensors(inner / _INITIAL, written.task.initial)
    spec = _spec(written, learning, traced.notes)
    progress.stage("compare gradients with PyTorch")
    return prove(folder, spec, written, traced, seed, progress)


def write_graphs_of(
    forward: Forward,
    learning: LearningOptions,
    untrained_rows: dict[str, int],
    *,
    seed: int,
    progress: Progress,
) -> Written:
    """Write every graph of a task.

    Raises:
        OptionError: nothing is found to train, or the loss does not fit the output.
        ModelError: an operator on the way back has no rule.
    """
    rounded = compress(forward.draft, learning.backbone, trained_parameters(forward, learning.trainable))
    if learning.backbone != "fp32" and not rounded:
        reason = "no frozen weight of a layer is large enough"
        progress.event(Event(kind="backbone-kept", subject=learning.backbone, reason=reason))
    graphs = {"model.onnx": model_graph(forward)}
    weights_sha256 = _hash_of_weights(graphs["model.onnx"])
    task = write_task(
        forward, learning.loss, learning.trainable, untrained_rows=untrained_rows, seed=seed, progress=progress
    )
    private, refused = _private(task, learning, untrained_rows, progress)
    graphs["inference.onnx"] = inference_graph(task)
    graphs |= _steps(task, private, None, task.forward.inputs, "")
    cut = find_cut(task)
    if isinstance(cut, str):
        progress.event(Event(kind="features-not-cut", subject="features", reason=cut))
    else:
        graphs["features.onnx"] = features_graph(task, cut)
        graphs |= _steps(task, private, cut, cut.tensors, "features_")
    graphs = {name: fold_in(model, rounded, learning.backbone) for name, model in graphs.items()}
    graphs |= {f"optimizer_{kind}.onnx": optimizer_graph(kind) for kind in learning.optimizers}
    return Written(task, graphs, private, refused, cut if isinstance(cut, Cut) else None, rounded, weights_sha256)


def _hash_of_weights(model: onnx.ModelProto) -> str:
    """SHA-256 over all weights, small ones too, which are not in the file that the graphs share."""
    digest = hashlib.sha256()
    for tensor in sorted(model.graph.initializer, key=lambda tensor: tensor.name):
        if tensor.name.startswith("frozen."):
            array = numpy_helper.to_array(tensor)
            digest.update(f"{tensor.name} {array.dtype} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _private(
    task: Task, learning: LearningOptions, untrained_rows: dict[str, int], progress: Progress
) -> tuple[PrivateBackward | None, str | None]:
    if not learning.private:
        return None, "the task was prepared without a private step"
    refused = why_not(learning.loss)
    if refused is None:
        try:
            return write_private(task, untrained_rows), None
        except ModelError as error:
            refused = str(error)
    progress.event(Event(kind="privacy-refused", subject="training", reason=refused))
    return None, refused


def _steps(
    task: Task, private: PrivateBackward | None, cut: Cut | None, inputs: Sequence[TensorSpec], prefix: str
) -> dict[str, onnx.ModelProto]:
    """The graphs that there are on the model's inputs and on features alike."""

    def seen(draft: Draft) -> Draft:
        return draft if cut is None else on_features(draft, task, cut)

    draft = seen(task.forward.draft)
    graphs = {
        f"{prefix}grad_step.onnx": grad_step_graph(task, draft, inputs),
        f"{prefix}eval.onnx": eval_graph(task, draft, inputs),
    }
    if private is not None:
        graphs[f"{prefix}dp_grad_step.onnx"] = private_graph(task, private, seen(private.draft), inputs)
    return graphs


def _spec(written: Written, learning: LearningOptions, notes: tuple[str, ...]) -> LearningSpec:
    task = written.task
    optimizers = tuple(
        OptimizerGraph(kind=kind, file=_inside(f"optimizer_{kind}.onnx"), states=STATES[kind], settings=SETTINGS[kind])
        for kind in learning.optimizers
    )
    return LearningSpec(
        fingerprint=fingerprint(learning.loss, task.parameters, task.adapters, written.weights_sha256),
        inputs=task.forward.inputs,
        label=task.label,
        classes=task.classes,
        loss=learning.loss,
        trainable=learning.trainable,
        parameters=task.parameters,
        initial=_inside(_INITIAL),
        grad_step=_inside("grad_step.onnx"),
        eval=_inside("eval.onnx"),
        inference=_inside("inference.onnx"),
        model=_inside("model.onnx"),
        optimizers=optimizers,
        private=_private_step(written, ""),
        features=_feature_cut(written),
        adapters=task.adapters,
        backbone=learning.backbone,
        golden=GoldenGradients(file=_inside(_GOLDEN), error=0.0),
        notes=notes,
    )


def _inside(name: str) -> str:
    return f"{LEARNING_FOLDER}/{name}"


def _private_step(written: Written, prefix: str) -> PrivateStep:
    if written.private is None:
        return PrivateStep(refused=written.refused)
    batch = written.task.label.shape[0]
    rows = batch if isinstance(batch, int) else None
    return PrivateStep(file=_inside(f"{prefix}dp_grad_step.onnx"), route="expanded", batch=rows)


def _feature_cut(written: Written) -> FeatureCut | None:
    cut = written.cut
    if cut is None:
        return None
    return FeatureCut(
        tensors=cut.tensors,
        features=_inside("features.onnx"),
        grad_step=_inside("features_grad_step.onnx"),
        eval=_inside("features_eval.onnx"),
        private=_private_step(written, "features_"),
        macs_share=cut.macs_share,
        bytes_per_sample=cut.bytes_per_sample,
    )
