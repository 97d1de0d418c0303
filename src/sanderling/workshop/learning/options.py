"""What a user asks of a task: how it is prepared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import ValidationError

from sanderling.core.errors import OptionError, first_line
from sanderling.model.learning import Backbone, LossKind, LossSpec, OptimizerKind

_KINDS = get_args(LossKind)


@dataclass(frozen=True)
class LearningOptions:
    """How a task is prepared.

    Attributes:
        loss: with its options.
        trainable: ``head``, ``lora:r=8`` or ``lora:r=8,alpha=16,head,layers=REGEX``, ``full``, or a regular expression
            that finds parameters' names.
        optimizers: kinds to make graphs for.
        backbone: in what frozen weights are stored.
        private: make a gradient step with clipping per sample, where the task allows one.
        batch: rows of a training batch; None lets any number be given.
    """

    loss: LossSpec
    trainable: str = "head"
    optimizers: tuple[OptimizerKind, ...] = ("sgd", "adamw")
    backbone: Backbone = "fp32"
    private: bool = True
    batch: int | None = None


def parse_loss(text: str) -> LossSpec:
    """Read ``cross_entropy``, ``cross_entropy:smoothing=0.1,weights=1/2/1``, ``mse``, ``contrastive:temperature=0.1``.

    Raises:
        OptionError: the kind or an option is unknown, or a value is out of range.
    """
    kind, _, rest = text.strip().partition(":")
    if kind not in _KINDS:
        raise OptionError(f"--loss '{text}' names no loss: available are {', '.join(_KINDS)}")
    known = _OPTIONS.get(kind, {})
    values: dict[str, Any] = {"kind": kind, "separable": kind != "contrastive"}
    for part in filter(None, rest.split(",")):
        key, separator, value = part.partition("=")
        if key not in known:
            available = ", ".join(known) or "none"
            raise OptionError(f"--loss '{text}' has the unknown option '{key}': available for {kind} are {available}")
        field, read = known[key]
        try:
            values[field] = read(value) if separator else True
        except ValueError as error:
            raise OptionError(f"--loss '{text}': '{value}' is no value for {key}") from error
    try:
        return LossSpec.model_validate(values)
    except ValidationError as error:
        detail = error.errors()[0]
        raise OptionError(
            f"--loss '{text}': {'.'.join(map(str, detail['loc']))}: {first_line(ValueError(detail['msg']))}"
        ) from error


def _weights(text: str) -> tuple[float, ...]:
    weights = tuple(float(part) for part in text.split("/"))
    if not all(0 <= weight < float("inf") for weight in weights) or not any(weights):
        raise ValueError(text)
    return weights


_OPTIONS: dict[str, dict[str, tuple[str, Callable[[str], Any]]]] = {
    "cross_entropy": {
        "smoothing": ("label_smoothing", float),
        "weights": ("class_weights", _weights),
        "ignore": ("ignore_index", int),
        "shift": ("shift", lambda text: bool(int(text))),
    },
    "contrastive": {"temperature": ("temperature", float)},
}
