"""What a user asks of a task: how it is prepared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sanderling.model.learning import Backbone, LossSpec, OptimizerKind
from sanderling.workshop.options import BuildOptions


@dataclass(frozen=True)
class LearningOptions:
    """How a task is prepared.

    Attributes:
        loss: with its options.
        trainable: ``head``, ``lora:r=8`` or ``lora:r=8,alpha=16,layers=REGEX``, ``full``, or a regular expression that
            finds parameters' names.
        optimizers: kinds to make graphs for.
        backbone: in what frozen weights are stored.
        private: make a gradient step with clipping per sample, where the task allows one.
        private_batch: rows of that step where it needs a fixed number.
        batch: rows of a training batch; None lets any number be given.
        labels: shape of one sample's label, without the batch; None where the loss tells it.
    """

    loss: LossSpec
    trainable: str = "head"
    optimizers: tuple[OptimizerKind, ...] = ("sgd", "adamw")
    backbone: Backbone = "fp32"
    private: bool = True
    private_batch: int = 16
    batch: int | None = None
    labels: tuple[int, ...] | None = None


def parse_loss(text: str) -> LossSpec:
    """Read ``cross_entropy``, ``cross_entropy:smoothing=0.1,weights=1/2/1``, ``mse``, ``contrastive:temperature=0.1``.

    Raises:
        OptionError: the kind or an option is unknown, or a value is out of range.
    """
    raise NotImplementedError


__all__ = ["BuildOptions", "LearningOptions", "Path", "parse_loss"]
