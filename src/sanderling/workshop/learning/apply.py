"""From a task and what a device learned to an adapted package; needs no torch."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from sanderling.core.errors import PackageError
from sanderling.core.progress import Progress
from sanderling.core.tensor import Array
from sanderling.learn.checkpoint import read_checkpoint
from sanderling.model.graph import read_graph
from sanderling.model.learning import LearningSpec
from sanderling.model.manifest import Manifest
from sanderling.model.package import Package
from sanderling.model.sound import PREFIX
from sanderling.workshop.export.source import Exported
from sanderling.workshop.learning.adapters import fold
from sanderling.workshop.learning.backbone import to_float
from sanderling.workshop.options import BuildOptions
from sanderling.workshop.pipeline import BuildResult, build


@dataclass(frozen=True)
class Applied:
    """What was put in.

    Attributes:
        result: of the build.
        step: updates that the checkpoint has.
        folded: layers whose adapters are in their weights now.
    """

    result: BuildResult
    step: int
    folded: tuple[str, ...]


def apply(options: BuildOptions, checkpoint: Path, progress: Progress | None = None) -> Applied:
    """Put trained parameters into the task's model, fold its adapters, and build a package of it.

    Args:
        options: of the build; ``source`` is the task, ``output`` the new package, with calibration and evaluation data
            as for any build. Preprocessing and labels are the task's own.
        checkpoint: safetensors that a trainer saved: tensors ``param.NAME``, and the task's fingerprint.
        progress: told about stages, steps and events.

    Raises:
        PackageError: the task is broken, or is no task.
        WeightsError: the checkpoint is unreadable, or of another task.
    """
    package = Package.open(options.source)
    manifest = package.manifest
    spec = manifest.learning
    if spec is None:
        raise PackageError(f"package {options.source} is no task: prepare one with sanderling learn prepare")
    trained = read_checkpoint(checkpoint, spec)
    model = adapted_model(read_graph(package.file(spec.model)), spec, trained.parameters)

    def make_graph(options: BuildOptions, progress: Progress) -> Exported:
        del options
        progress.stage("put in what was trained")
        return Exported(model, manifest.source, None)

    with tempfile.TemporaryDirectory() as scratch:
        result = build(_as_the_task(options, manifest, Path(scratch)), progress, make_graph)
    return Applied(result, trained.progress.updates, tuple(adapter.layer for adapter in spec.adapters))


def adapted_model(model: onnx.ModelProto, spec: LearningSpec, parameters: Mapping[str, Array]) -> onnx.ModelProto:
    """The model with trained parameters in the place of its own, and adapters folded; changed in place.

    Args:
        model: the task's ``model`` graph, weights inside.
        spec: of the task.
        parameters: by name, adapters' among them.

    Raises:
        PackageError: the graph has not the weights that the task says.
    """
    to_float(model)
    own = {tensor.name.removeprefix("frozen."): tensor for tensor in model.graph.initializer}
    adapted = {adapter.weight for adapter in spec.adapters}
    factors = {name for adapter in spec.adapters for name in (adapter.a, adapter.b)}
    plain = {name: array for name, array in parameters.items() if name not in factors}
    missing = sorted((adapted | plain.keys()) - own.keys())
    if missing:
        raise PackageError(f"the task's graph '{spec.model}' has no weight '{missing[0]}': prepare the task again")
    weights = {name: numpy_helper.to_array(own[name]) for name in adapted} | plain
    fold(weights, spec.adapters, parameters)
    for name, array in weights.items():
        own[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array, np.float32), own[name].name))
    return model


def _as_the_task(options: BuildOptions, manifest: Manifest, scratch: Path) -> BuildOptions:
    """The options with what the task knows of its data."""
    preprocess, labels = options.preprocess, options.labels
    if manifest.preprocessing is not None:
        preprocess = manifest.preprocessing.model_dump_json()
    if manifest.sound is not None:
        preprocess = f"{PREFIX}{manifest.sound.sample_rate_hz}"
    if manifest.labels is not None:
        file = scratch / "labels.txt"
        file.write_text("\n".join(manifest.labels) + "\n", encoding="utf-8")
        labels = str(file)
    return replace(options, preprocess=preprocess, labels=labels)
