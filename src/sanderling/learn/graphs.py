"""The task's graphs with their memory: a gradient step that accumulates, an update, an evaluation.

Results are written where the engine is told to, to one of two sets of arrays in turn: what a step reads stays as it is
until the step is done, so that a step that fails leaves nothing half-written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sanderling.core.errors import EngineError
from sanderling.core.tensor import Array
from sanderling.learn.task import Task
from sanderling.model.learning import OptimizerGraph, TrainableParameter
from sanderling.run.engines.base import Executable

Arrays = dict[str, Array]


def zeros(parameters: tuple[TrainableParameter, ...]) -> Arrays:
    """A float32 array of zeros for each parameter."""
    return {parameter.name: np.zeros(parameter.shape, np.float32) for parameter in parameters}


def scalar(value: float) -> Array:
    """A float32 of shape ()."""
    return np.asarray(value, np.float32)


def named(prefix: str, arrays: Mapping[str, Array]) -> Arrays:
    """The same arrays under ``prefix.NAME``."""
    return {f"{prefix}.{name}": array for name, array in arrays.items()}


@dataclass
class Gradients:
    """Sums of gradients, and what they are divided by.

    Attributes:
        sums: of the gradients of the micro-batches' summed losses.
        weight: that the sum is divided by, such as the number of samples.
        loss_sum: of the micro-batches' summed losses.
        micro_batches: that are in it.
    """

    sums: Arrays
    weight: float = 0.0
    loss_sum: float = 0.0
    micro_batches: int = 0


@dataclass(frozen=True)
class Step:
    """What one micro-batch gave: its mean loss, and the weight of that mean."""

    loss: float
    weight: float


class GradientGraph:
    """Adds the gradients of one micro-batch after another.

    Args:
        task: whose gradients.
        private: clip each sample's gradient.
    """

    def __init__(self, task: Task, *, private: bool = False) -> None:
        self._task = task
        file = task.private.file if private else task.step_file("grad_step")
        if file is None:
            raise EngineError(f"the task has no private step: {task.private.refused}")
        self.executable: Executable = task.load(file, spin=True)
        self._spare = zeros(task.spec.parameters)
        self._scalars = {"loss": scalar(0), "weight": scalar(0)}
        self._norms_of = private

    def add(self, parameters: Arrays, batch: Mapping[str, Array], gradients: Gradients, **scalars: Array) -> Step:
        """Run one micro-batch; ``gradients`` holds its sums as well then.

        Args:
            parameters: current values.
            batch: inputs and ``label``.
            gradients: changed only if everything is finite.
            scalars: further inputs, such as ``clip_norm``.

        Raises:
            EngineError: the engine failed; nothing has changed.
        """
        feeds = {**batch, **scalars, **named("param", parameters), **named("acc", gradients.sums)}
        outputs = {**self._scalars, **named("acc.out", self._spare)}
        if self._norms_of:
            outputs["grad_norm"] = np.empty(len(scalars["sample_mask"]), np.float32)
        self.executable.run(feeds, outputs)
        loss, weight = float(self._scalars["loss"]), float(self._scalars["weight"])
        if math.isfinite(loss) and math.isfinite(weight):
            gradients.sums, self._spare = self._spare, gradients.sums
            gradients.weight += weight
            gradients.loss_sum += loss * weight
            gradients.micro_batches += 1
        return Step(loss, weight)

    def close(self) -> None:
        """Give back what the graph holds."""
        self.executable.close()


@dataclass
class OptimizerState:
    """Parameters and what the optimiser keeps beside them.

    Attributes:
        parameters: current values.
        states: arrays by prefix and name, such as ``states["m"]["fc.weight"]``.
        updates: that were made.
        begun_at: updates after which the optimiser's arrays began at zero; its own count starts there.
    """

    parameters: Arrays
    states: dict[str, Arrays]
    updates: int = 0
    begun_at: int = 0


@dataclass
class UpdateGraph:
    """Makes updates of parameters.

    Attributes:
        graph: as the task says.
        executable: that computes it.
        settings: such as ``weight_decay``.
    """

    graph: OptimizerGraph
    executable: Executable
    settings: Mapping[str, float]
    _spare: OptimizerState | None = field(default=None, repr=False)

    def new_state(self, parameters: Arrays) -> OptimizerState:
        """The state before the first update."""
        return OptimizerState(parameters, {prefix: _zeros_like(parameters) for prefix in self.graph.states})

    def update(
        self, state: OptimizerState, gradients: Arrays, *, rate: float, grad_scale: float, clip_norm: float
    ) -> float:
        """Make one update; returns the gradients' norm after scaling and before clipping.

        Args:
            state: changed as a whole, or not at all.
            gradients: sums.
            rate: learning rate.
            grad_scale: multiplied into the gradients first.
            clip_norm: of all gradients together; infinite does not clip.

        Raises:
            EngineError: the engine failed; nothing has changed.
        """
        if self._spare is None:
            self._spare = self.new_state(_zeros_like(state.parameters))
        spare = self._spare
        step = float(state.updates - state.begun_at + 1)  # of the optimiser: what it corrects its means by
        scalars = {"lr": rate, "grad_scale": grad_scale, "clip_norm": clip_norm, "step": step}
        feeds = {name: scalar(value) for name, value in {**self.settings, **scalars}.items()}
        feeds |= {**named("param", state.parameters), **named("grad", gradients)}
        outputs = {"grad_norm": scalar(0), **named("param.out", spare.parameters)}
        for prefix in self.graph.states:
            feeds |= named(prefix, state.states[prefix])
            outputs |= named(f"{prefix}.out", spare.states[prefix])
        self.executable.run(feeds, outputs)
        norm = float(outputs["grad_norm"])
        if math.isfinite(norm):
            state.parameters, spare.parameters = spare.parameters, state.parameters
            state.states, spare.states = spare.states, state.states
            state.updates += 1
        return norm

    def close(self) -> None:
        """Give back what the graph holds."""
        self.executable.close()
        self._spare = None


def _zeros_like(arrays: Arrays) -> Arrays:
    return {name: np.zeros_like(array) for name, array in arrays.items()}
