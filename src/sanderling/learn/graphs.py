"""The task's graphs with their memory: a gradient step that accumulates, an update, an evaluation.

Results are written where the engine is told to, to one of two sets of arrays in turn: what a step reads stays as it is
until the step is done, so that a step that fails leaves nothing half-written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sanderling.core.errors import EngineError
from sanderling.core.tensor import Array
from sanderling.learn.task import Task
from sanderling.model.learning import OptimizerGraph, TrainableParameter
from sanderling.run.engines.base import Executable

Arrays = dict[str, Array]


_PIECE = 1 << 17  # elements of an update's call: what it computes with stays in the processor's cache
_CLIP_MARGIN = 1e-6


class Vector(dict[str, Array]):
    """An array for each parameter, all in one vector, so that an update takes it in pieces whatever their sizes are.

    Args:
        parameters: in their order.
        arrays: float32, copied; zeros without.

    Attributes:
        flat: float32 (length,), which the arrays are views of.
    """

    def __init__(self, parameters: Sequence[TrainableParameter], arrays: Mapping[str, Array] | None = None) -> None:
        super().__init__()
        self.flat = np.zeros(sum(math.prod(each.shape) for each in parameters), np.float32)
        start = 0
        for each in parameters:
            end = start + math.prod(each.shape)
            self[each.name] = self.flat[start:end].reshape(each.shape)
            start = end
            if arrays is not None:
                self[each.name][...] = arrays[each.name]


def _norm(vector: Array) -> float:
    """Euclidean norm of a float32 vector, by pieces."""
    return math.sqrt(sum(float(np.einsum("i,i", vector[piece], vector[piece])) for piece in _pieces(vector)))


def _pieces(vector: Array) -> Iterator[slice]:
    for start in range(0, len(vector), _PIECE):
        yield slice(start, start + _PIECE)


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

    sums: Vector
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
        self._spare = Vector(task.spec.parameters)
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

    parameters: Vector
    states: dict[str, Vector]
    updates: int = 0
    begun_at: int = 0


@dataclass
class UpdateGraph:
    """Makes updates of parameters.

    Attributes:
        graph: as the task says.
        executable: that computes it.
        settings: such as ``weight_decay``.
        parameters: that it updates.
    """

    graph: OptimizerGraph
    executable: Executable
    settings: Mapping[str, float]
    parameters: Sequence[TrainableParameter]
    _spare: OptimizerState | None = field(default=None, repr=False)

    def new_state(self, parameters: Vector) -> OptimizerState:
        """The state before the first update."""
        return OptimizerState(parameters, {prefix: Vector(self.parameters) for prefix in self.graph.states})

    def update(
        self, state: OptimizerState, gradients: Vector, *, rate: float, grad_scale: float, clip_norm: float
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
        norm = _norm(gradients.flat) * grad_scale
        if not math.isfinite(norm):
            return norm
        if self._spare is None:
            self._spare = self.new_state(Vector(self.parameters))
        spare = self._spare
        step = float(state.updates - state.begun_at + 1)  # of the optimiser: what it corrects its means by
        share = min(clip_norm / (norm + _CLIP_MARGIN), 1.0)
        scalars = {"lr": rate, "grad_scale": grad_scale * share, "step": step}
        given = {name: scalar(value) for name, value in {**self.settings, **scalars}.items()}
        read = {"param": state.parameters.flat, "grad": gradients.flat}
        read |= {prefix: state.states[prefix].flat for prefix in self.graph.states}
        written = {"param.out": spare.parameters.flat}
        written |= {f"{prefix}.out": spare.states[prefix].flat for prefix in self.graph.states}
        for piece in _pieces(gradients.flat):
            feeds = {name: vector[piece] for name, vector in read.items()}
            self.executable.run({**given, **feeds}, {name: vector[piece] for name, vector in written.items()})
        state.parameters, spare.parameters = spare.parameters, state.parameters
        state.states, spare.states = spare.states, state.states
        state.updates += 1
        return norm

    def close(self) -> None:
        """Give back what the graph holds."""
        self.executable.close()
        self._spare = None
