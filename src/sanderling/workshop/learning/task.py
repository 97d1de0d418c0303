"""The graphs of a task, from a forward pass: nothing here needs PyTorch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from sanderling.core.errors import OptionError
from sanderling.core.progress import Event, Progress
from sanderling.core.tensor import Array, TensorSpec
from sanderling.model.learning import LABEL, Adapter, LossSpec, TrainableParameter
from sanderling.workshop.learning.adapters import put_adapters
from sanderling.workshop.learning.backward import write_backward
from sanderling.workshop.learning.draft import Draft, extract
from sanderling.workshop.learning.few_places import fold_batches
from sanderling.workshop.learning.forward import Forward, infer_shapes
from sanderling.workshop.learning.losses import Loss, class_count, label_spec, write_loss
from sanderling.workshop.learning.selection import chosen_parameters, head_of, parse_lora, shown

_RESERVED = (LABEL, "param.", "acc.", "output.", "loss", "weight", "sample_mask", "clip_norm")


@dataclass(frozen=True)
class Task:
    """A forward pass with its loss and the way back.

    Attributes:
        forward: parameters that are trained are the values ``param.NAME`` of its draft, and no initialisers.
        label: what the loss is held against.
        classes: labels are in [0, classes); None where they are no class numbers.
        loss: its values.
        parameters: that are trained.
        initial: their first values.
        adapters: among them.
        gradients: of the loss's total, by parameter.
        forth: how many of the draft's nodes compute outputs and loss; the others are the way back.
    """

    forward: Forward
    label: TensorSpec
    classes: int | None
    loss: Loss
    parameters: tuple[TrainableParameter, ...]
    initial: dict[str, Array]
    adapters: tuple[Adapter, ...]
    gradients: dict[str, str]
    forth: int


def write_task(
    forward: Forward,
    loss: LossSpec,
    trainable: str,
    *,
    untrained_rows: Mapping[str, int],
    seed: int,
    progress: Progress,
) -> Task:
    """Write loss and way back behind a forward pass.

    Raises:
        OptionError: nothing is found to train, or the loss does not fit the output.
        ModelError: an operator on the way back has no rule.
    """
    names, adapters = _trained(forward, trainable, seed, progress)
    initial = {name: forward.draft.initializers[f"frozen.{name}"] for name in names}
    for name in names:
        _open(forward.draft, name)
    output = forward.outputs[0]
    label = label_spec(loss, output)
    classes = class_count(loss, output)
    if any(spec.name.startswith(_RESERVED) for spec in forward.inputs):
        raise OptionError(
            f"inputs are {', '.join(spec.name for spec in forward.inputs)}: names that begin with "
            f"{', '.join(_RESERVED)} mean something else in a task; give --input another name"
        )
    written = write_loss(forward.draft, loss, output.name, output.shape)
    ends = [written.total, written.mean, *([written.rows] if written.rows else [])]
    infer_shapes(forward.draft, (*forward.inputs, label, *_values(initial)), ends)
    forth = len(forward.draft.nodes)
    gradients = write_backward(forward.draft, written.total, [f"param.{name}" for name in names])
    unmoved = [name for name in names if f"param.{name}" not in gradients]
    if unmoved:
        reason = "the loss does not depend on it: it stays as it is"
        progress.event(Event(kind="parameter-unused", subject=shown(unmoved), reason=reason))
    kept = [name for name in names if name not in unmoved]
    if not kept:
        raise OptionError(f"--trainable '{trainable}': the loss depends on none of {shown(names)}")
    for name in unmoved:
        forward.draft.initializers[f"param.{name}"] = initial.pop(name)
    for name, row in untrained_rows.items():
        if name in kept:
            value = gradients[f"param.{name}"]
            gradients[f"param.{name}"] = without_row(forward.draft, value, initial[name].shape, row)
    return Task(
        forward=forward,
        label=label,
        classes=classes,
        loss=written,
        parameters=tuple(TrainableParameter(name=name, shape=initial[name].shape) for name in kept),
        initial=initial,
        adapters=adapters,
        gradients={name: gradients[f"param.{name}"] for name in kept},
        forth=forth,
    )


def _trained(
    forward: Forward, trainable: str, seed: int, progress: Progress
) -> tuple[tuple[str, ...], tuple[Adapter, ...]]:
    lora = parse_lora(trainable)
    if lora is None:
        return chosen_parameters(forward, trainable), ()
    head = head_of(forward) if lora.head else ()
    adapted = put_adapters(forward, lora, seed, progress)
    return (*adapted.initial, *head), adapted.adapters


def _open(draft: Draft, name: str) -> None:
    """Make an input of a frozen weight."""
    frozen, own = f"frozen.{name}", f"param.{name}"
    draft.shapes[own] = draft.initializers[frozen].shape
    draft.forget({frozen})
    for node in draft.nodes:
        for place, read in enumerate(node.input):
            if read == frozen:
                node.input[place] = own


def _values(initial: Mapping[str, Array]) -> list[TensorSpec]:
    return [TensorSpec(name=f"param.{name}", dtype="float32", shape=array.shape) for name, array in initial.items()]


def without_row(draft: Draft, gradient: str, shape: tuple[int, ...], row: int) -> str:
    """The gradient of an embedding table, 0 for the row of the padding."""
    mask = np.ones((shape[0], *[1] * (len(shape) - 1)), np.float32)
    mask[row] = 0
    return draft.op("Mul", gradient, draft.constant(mask))


def parameter_specs(task: Task, prefix: str) -> list[TensorSpec]:
    """A tensor for each parameter, its name behind a prefix."""
    return [TensorSpec(name=f"{prefix}.{p.name}", dtype="float32", shape=p.shape) for p in task.parameters]


def scalar(name: str) -> TensorSpec:
    """A float32 scalar."""
    return TensorSpec(name=name, dtype="float32", shape=())


def grad_step_graph(task: Task, draft: Draft, inputs: Sequence[TensorSpec]) -> onnx.ModelProto:
    """Loss, and gradients added to those that were accumulated before; on the model's inputs or on features."""
    draft = draft.copy()
    fold_batches(draft)
    outputs = [(task.loss.mean, scalar("loss")), (task.loss.weight, scalar("weight"))]
    for parameter in task.parameters:
        total = draft.op("Add", f"acc.{parameter.name}", task.gradients[parameter.name])
        spec = TensorSpec(name=f"acc.out.{parameter.name}", dtype="float32", shape=parameter.shape)
        outputs.append((total, spec))
    params, before = parameter_specs(task, "param"), parameter_specs(task, "acc")
    return extract(draft, "grad_step", (*inputs, task.label, *params, *before), outputs)


def eval_graph(task: Task, draft: Draft, inputs: Sequence[TensorSpec]) -> onnx.ModelProto:
    """Loss and outputs; on the model's inputs or on features."""
    outputs = [(task.loss.mean, scalar("loss")), (task.loss.weight, scalar("weight"))]
    outputs += [(spec.name, spec.model_copy(update={"name": f"output.{spec.name}"})) for spec in task.forward.outputs]
    return extract(draft, "eval", (*inputs, task.label, *parameter_specs(task, "param")), outputs)


def inference_graph(task: Task) -> onnx.ModelProto:
    """Outputs alone, with the parameters as inputs."""
    outputs = [(spec.name, spec) for spec in task.forward.outputs]
    return extract(task.forward.draft, "inference", (*task.forward.inputs, *parameter_specs(task, "param")), outputs)


def model_graph(forward: Forward) -> onnx.ModelProto:
    """The forward pass as it was exported; every parameter is an initialiser ``frozen.NAME``."""
    return extract(forward.draft, "model", forward.inputs, [(spec.name, spec) for spec in forward.outputs])


def fingerprint(
    loss: LossSpec, parameters: Sequence[TrainableParameter], adapters: Sequence[Adapter], weights_sha256: str
) -> str:
    """SHA-256 over what a checkpoint must agree with."""
    content = {
        "loss": loss.model_dump(mode="json"),
        "parameters": [parameter.model_dump(mode="json") for parameter in parameters],
        "adapters": [adapter.model_dump(mode="json") for adapter in adapters],
        "weights": weights_sha256,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
