"""The gradient step with clipping per sample, or why there is none.

Source: Abadi et al. 2016, "Deep Learning with Differential Privacy", algorithm 1, lines 6 and 7; the noise of line 8
comes from the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from sanderling.core.tensor import TensorSpec
from sanderling.model.learning import LossSpec
from sanderling.workshop.learning.backward import write_private_backward
from sanderling.workshop.learning.draft import Draft, extract
from sanderling.workshop.learning.task import Task, parameter_specs, scalar, without_row

MASK, CLIP = "sample_mask", "clip_norm"
_MARGIN = 1e-6


@dataclass(frozen=True)
class PrivateBackward:
    """Values of a private step.

    Attributes:
        draft: the task's, with the private way back.
        loss: mean over the rows that count.
        weight: how many count.
        norms: of each row's gradient, (N,).
        sums: of clipped gradients, by parameter.
    """

    draft: Draft
    loss: str
    weight: str
    norms: str
    sums: dict[str, str]


def why_not(loss: LossSpec) -> str | None:
    """Why a loss allows no privacy, in words."""
    if not loss.separable:
        return (
            f"the loss {loss.kind} compares samples of a batch with each other, so that no gradient is one sample's own"
        )
    return None


def write_private(task: Task, untrained_rows: Mapping[str, int]) -> PrivateBackward:
    """Write each sample's gradients, their norms, and the sums of what is clipped.

    Raises:
        ModelError: an operator has no gradient of each sample.
    """
    draft = task.forward.draft.copy()
    rows = task.loss.rows
    assert rows is not None
    everything = draft.op("ReduceSum", rows, keepdims=0)
    names = [parameter.name for parameter in task.parameters]
    found = write_private_backward(draft, everything, [f"param.{name}" for name in names])
    each = {name: found[f"param.{name}"] for name in names}
    for name, row in untrained_rows.items():
        if name in each:
            each[name] = without_row(draft, each[name], task.initial[name].shape, row)
    flat = {name: draft.op("Reshape", value, draft.integers([0, -1])) for name, value in each.items()}
    squares = [draft.op("ReduceSumSquare", value, _axis(draft), keepdims=0) for value in flat.values()]
    norms = draft.op("Sqrt", squares[0] if len(squares) == 1 else draft.op("Sum", *squares))
    share = draft.op("Div", CLIP, draft.op("Add", norms, draft.number(_MARGIN)))
    factor = draft.op("Mul", draft.op("Min", share, draft.number(1.0)), MASK)
    line = draft.op("Unsqueeze", factor, draft.integers([0]))  # (1, N)
    sums = {}
    for parameter in task.parameters:
        total = draft.op("MatMul", line, flat[parameter.name])
        sums[parameter.name] = draft.op("Reshape", total, draft.integers(parameter.shape))
    weight = draft.op("ReduceSum", MASK, keepdims=0)
    counted = draft.op("ReduceSum", draft.op("Mul", rows, MASK), keepdims=0)
    loss = draft.op("Div", counted, draft.op("Max", weight, draft.number(1.0)))
    return PrivateBackward(draft, loss, weight, norms, sums)


def _axis(draft: Draft) -> str:
    """The only axis behind the batch. Before opset 18 it would be an attribute."""
    return draft.integers([1])


def private_graph(task: Task, way: PrivateBackward, draft: Draft, inputs: Sequence[TensorSpec]) -> onnx.ModelProto:
    """The private step as a graph, on the model's inputs or on features."""
    draft = draft.copy()
    batch = task.label.shape[0]
    mask = TensorSpec(name=MASK, dtype="float32", shape=(batch,))
    outputs = [(way.loss, scalar("loss")), (way.weight, scalar("weight"))]
    outputs.append((way.norms, TensorSpec(name="grad_norm", dtype="float32", shape=(batch,))))
    for parameter in task.parameters:
        total = draft.op("Add", f"acc.{parameter.name}", way.sums[parameter.name])
        spec = TensorSpec(name=f"acc.out.{parameter.name}", dtype="float32", shape=parameter.shape)
        outputs.append((total, spec))
    params, before = parameter_specs(task, "param"), parameter_specs(task, "acc")
    given = (*inputs, task.label, *params, *before, mask, scalar(CLIP))
    return extract(draft, "dp_grad_step", given, outputs)


def clipped_sums(each: Mapping[str, np.ndarray], clip_norm: float) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """What a private step must give: sums of clipped gradients, and the norms before clipping.

    Args:
        each: (N, *shape) by parameter, each sample's own gradients.
        clip_norm: to clip to.
    """
    squares = sum(np.square(array.reshape(len(array), -1), dtype=np.float64).sum(1) for array in each.values())
    norms = np.sqrt(squares)
    factor = np.minimum(1.0, clip_norm / (norms + _MARGIN))
    sums = {name: np.tensordot(factor, array.astype(np.float64), 1) for name, array in each.items()}
    return {name: array.astype(np.float32) for name, array in sums.items()}, norms.astype(np.float32)
