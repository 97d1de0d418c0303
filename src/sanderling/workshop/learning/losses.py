"""Losses as plain nodes: their sum over what counts, and how much counts; rows apart for privacy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sanderling.core.errors import OptionError
from sanderling.core.tensor import TensorSpec
from sanderling.model.learning import LABEL, LossSpec
from sanderling.workshop.learning.draft import Draft, Shape

_SPATIAL_RANK = 4
_LEAST = 1e-12


@dataclass(frozen=True)
class Loss:
    """Values of a loss.

    Attributes:
        total: sum over what counts; scalar.
        weight: what the mean is divided by; scalar.
        mean: total / weight.
        rows: each sample's own loss (N,), a mean over its positions; None where samples are not apart.
    """

    total: str
    weight: str
    mean: str
    rows: str | None


def label_spec(loss: LossSpec, output: TensorSpec) -> TensorSpec:
    """Dtype and shape of the labels that go with the model's output.

    Raises:
        OptionError: the output does not fit the loss.
    """
    shape = output.shape
    if output.dtype != "float32":
        raise OptionError(f"loss {loss.kind} needs a float32 output: the model gives {output}")
    if loss.kind == "cross_entropy":
        if len(shape) < 2:
            raise OptionError(f"cross_entropy needs scores (N, classes) or more axes: the model gives {output}")
        axis = class_axis(shape)
        return TensorSpec(name=LABEL, dtype="int64", shape=(*shape[:axis], *shape[axis + 1 :]))
    if loss.kind == "contrastive":
        if len(shape) != 2:
            raise OptionError(f"contrastive needs vectors (N, features): the model gives {output}")
        return TensorSpec(name=LABEL, dtype="int64", shape=shape[:1])
    if loss.kind == "cosine" and len(shape) != 2:
        raise OptionError(f"cosine needs vectors (N, features): the model gives {output}")
    return TensorSpec(name=LABEL, dtype="float32", shape=shape)


def class_axis(shape: Shape) -> int:
    """Position of the classes: axis 1 of pictures (N, C, H, W), else the last."""
    return 1 if len(shape) >= _SPATIAL_RANK else len(shape) - 1


def class_count(loss: LossSpec, output: TensorSpec) -> int | None:
    """Number of classes that labels may name; None where labels are no class numbers.

    Raises:
        OptionError: the number is not known, or class weights are of another number.
    """
    if loss.kind != "cross_entropy":
        return None
    count = output.shape[class_axis(output.shape)]
    if isinstance(count, str):
        raise OptionError(f"cross_entropy needs a known number of classes: the model gives {output}")
    if loss.class_weights is not None and len(loss.class_weights) != count:
        raise OptionError(f"{len(loss.class_weights)} class weights are given: the model has {count} classes")
    return count


def write_loss(draft: Draft, loss: LossSpec, output: str, shape: Shape) -> Loss:
    """Write the loss of an output against ``label``."""
    return _WRITERS[loss.kind](draft, loss, output, shape)


def _cross_entropy(draft: Draft, loss: LossSpec, output: str, shape: Shape) -> Loss:
    """Source: as torch.nn.functional.cross_entropy, label smoothing after Szegedy et al. 2016."""
    axis, rank = class_axis(shape), len(shape)
    classes = shape[axis]
    assert isinstance(classes, int)
    label = LABEL
    if axis != rank - 1:
        output = draft.op("Transpose", output, perm=[0, *range(2, rank), 1])
    if loss.shift:
        first, last = draft.integers([0]), draft.integers([-1])
        output = draft.op("Slice", output, first, last, draft.integers([1]))
        label = draft.op("Slice", label, draft.integers([1]), draft.integers([1 << 40]), draft.integers([1]))
    scores = draft.op("LogSoftmax", output, axis=-1)  # (N, …, C)
    counts = draft.op("Not", draft.op("Equal", label, draft.constant(np.asarray(loss.ignore_index, np.int64))))
    known = draft.op("Where", counts, label, draft.constant(np.asarray(0, np.int64)))
    numbers = draft.constant(np.arange(classes, dtype=np.int64))
    hot = draft.op("Equal", draft.op("Unsqueeze", known, draft.integers([-1])), numbers)
    high = 1 - loss.label_smoothing + loss.label_smoothing / classes
    target = draft.op("Where", hot, draft.number(high), draft.number(loss.label_smoothing / classes))
    valid = draft.op("Cast", counts, to=1)  # (N, …)
    share = valid
    if loss.class_weights is not None:
        weights = draft.constant(np.asarray(loss.class_weights, np.float32))
        target = draft.op("Mul", target, weights)
        share = draft.op("Mul", valid, draft.op("Gather", weights, known))
    each = draft.op("ReduceSum", draft.op("Mul", target, scores), draft.integers([-1]), keepdims=0)
    each = draft.op("Neg", draft.op("Mul", each, valid))  # (N, …)
    total = draft.op("ReduceSum", each, keepdims=0)
    weight = draft.op("ReduceSum", share, keepdims=0)
    rows = each
    if rank > 2:
        inner = draft.integers(range(1, rank - 1))
        positions = draft.op("Max", draft.op("ReduceSum", valid, inner, keepdims=0), draft.number(1.0))
        rows = draft.op("Div", draft.op("ReduceSum", each, inner, keepdims=0), positions)
    return _with_mean(draft, total, weight, rows)


def _elementwise(draft: Draft, each: str, shape: Shape) -> Loss:
    """Mean over the elements of a sample, summed over samples."""
    rows = each
    if len(shape) > 1:
        rows = draft.op("ReduceMean", each, draft.integers(range(1, len(shape))), keepdims=0)
    return _of_rows(draft, rows)


def _mse(draft: Draft, loss: LossSpec, output: str, shape: Shape) -> Loss:  # noqa: ARG001 - one face for all losses
    off = draft.op("Sub", output, LABEL)
    return _elementwise(draft, draft.op("Mul", off, off), shape)


def _bce(draft: Draft, loss: LossSpec, output: str, shape: Shape) -> Loss:  # noqa: ARG001 - one face for all losses
    """Of logits x and targets t: softplus(x) − x · t, which cannot overflow."""
    each = draft.op("Sub", draft.op("Softplus", output), draft.op("Mul", output, LABEL))
    return _elementwise(draft, each, shape)


def _cosine(draft: Draft, loss: LossSpec, output: str, shape: Shape) -> Loss:  # noqa: ARG001 - one face for all losses
    """1 − y · t / (‖y‖ ‖t‖)."""
    alike = draft.op("Mul", _directed(draft, output), _directed(draft, LABEL))
    alike = draft.op("ReduceSum", alike, draft.integers([1]), keepdims=0)
    return _of_rows(draft, draft.op("Sub", draft.number(1.0), alike))


def _contrastive(draft: Draft, loss: LossSpec, output: str, shape: Shape) -> Loss:  # noqa: ARG001 - one face
    """Mean over a sample's fellows of −log of its share among all others.

    Source: Khosla et al. 2020, "Supervised Contrastive Learning", equation 2; samples without a fellow do not count.
    """
    one = _directed(draft, output)
    near = draft.op("MatMul", one, draft.op("Transpose", one, perm=[1, 0]))  # (N, N)
    near = draft.op("Mul", near, draft.number(1 / loss.temperature))
    itself = draft.op("Cast", draft.op("EyeLike", near), to=9)
    scores = draft.op("LogSoftmax", draft.op("Where", itself, draft.number(-1e9), near), axis=-1)
    column = draft.op("Unsqueeze", LABEL, draft.integers([1]))
    alike = draft.op("Equal", column, draft.op("Unsqueeze", LABEL, draft.integers([0])))
    fellows = draft.op("Cast", draft.op("And", alike, draft.op("Not", itself)), to=1)  # (N, N)
    count = draft.op("ReduceSum", fellows, draft.integers([1]), keepdims=0)
    sums = draft.op("ReduceSum", draft.op("Mul", fellows, scores), draft.integers([1]), keepdims=0)
    each = draft.op("Neg", draft.op("Div", sums, draft.op("Max", count, draft.number(1.0))))
    counted = draft.op("Cast", draft.op("Greater", count, draft.number(0.0)), to=1)
    total, weight = draft.op("ReduceSum", each, keepdims=0), draft.op("ReduceSum", counted, keepdims=0)
    return _with_mean(draft, total, weight, None)


def _directed(draft: Draft, value: str) -> str:
    """Rows at length 1."""
    length = draft.op("ReduceL2", value, draft.integers([1]), keepdims=1)
    return draft.op("Div", value, draft.op("Max", length, draft.number(1e-8)))


def _of_rows(draft: Draft, rows: str) -> Loss:
    total = draft.op("ReduceSum", rows, keepdims=0)
    weight = draft.op("Cast", draft.op("Size", rows), to=1)
    return _with_mean(draft, total, weight, rows)


def _with_mean(draft: Draft, total: str, weight: str, rows: str | None) -> Loss:
    mean = draft.op("Div", total, draft.op("Max", weight, draft.number(_LEAST)))
    return Loss(total, weight, mean, rows)


_WRITERS: dict[str, Callable[[Draft, LossSpec, str, Shape], Loss]] = {
    "cross_entropy": _cross_entropy,
    "mse": _mse,
    "bce": _bce,
    "cosine": _cosine,
    "contrastive": _contrastive,
}
