"""The trainer: steps of a task's graphs, and the state that they change."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sanderling.core.closing import Closing
from sanderling.core.errors import EngineError, NotMetError, OptionError, PackageError, WeightsError
from sanderling.core.progress import Event, Progress, Silent
from sanderling.core.tensor import Array, check_feeds
from sanderling.learn.checkpoint import Checkpoint, Privacy, Progressed, read_checkpoint, write_checkpoint
from sanderling.learn.data import Dataset, check_labels, from_arrays, read_data
from sanderling.learn.evaluation import Evaluation, evaluate
from sanderling.learn.gates import OPEN, Gate
from sanderling.learn.golden import require_true_gradients
from sanderling.learn.graphs import GradientGraph, Gradients, OptimizerState, Step, UpdateGraph, Vector
from sanderling.learn.schedules import Schedule, parse_schedule
from sanderling.learn.task import open_task
from sanderling.model.learning import LABEL, OptimizerKind
from sanderling.run.engines.base import Executable

if TYPE_CHECKING:
    from sanderling.learn.fitting import FitOptions, FitResult

RATES = {"adamw": 1e-3, "sgd": 1e-2}
_BELOW = {"momentum": 1.0, "beta1": 1.0, "beta2": 1.0, "dampening": 1.0}  # from there on nothing new counts, or grows


@dataclass(frozen=True)
class TrainerOptions:
    """How a trainer makes updates.

    Attributes:
        optimizer: ``adamw`` or ``sgd``.
        learning_rate: the highest; 1e-3 for AdamW and 1e-2 for SGD by default.
        schedule: such as ``cosine:warmup=10``.
        accumulate: micro-batches of an update, above 0.
        clip_norm: of all gradients of an update together; None does not clip.
        seed: of the order of samples.
        settings: of the optimiser that differ from the task's own, such as ``{"weight_decay": 0.01}``.
    """

    optimizer: str = "adamw"
    learning_rate: float = 0.0
    schedule: Schedule = field(default_factory=Schedule)
    accumulate: int = 1
    clip_norm: float | None = None
    seed: int = 0
    settings: Mapping[str, float] | None = None


class Trainer(Closing):
    """Trains a task. Close it, or use it in a ``with`` block.

    The first time that an engine meets a task, its gradients are compared with PyTorch's own: one that computes them
    wrong is refused.

    Args:
        path: of the task, a folder or a zip.
        optimizer: ``adamw`` or ``sgd``.
        learning_rate: the highest; 1e-3 for AdamW and 1e-2 for SGD by default.
        schedule: ``constant``, ``cosine``, ``step``, with options as ``cosine:warmup=10,steps=100``.
        accumulate: micro-batches of an update.
        clip_norm: of all gradients of an update together; None does not clip.
        seed: of the order of samples.
        engine: that computes.
        threads: of one call; 0 leaves it to the engine.
        settings: of the optimiser, such as ``{"weight_decay": 0.01}``.
        on_features: take the outputs of the frozen part as inputs, where the task cuts it off.
        private: clip each sample's gradient; ``fit`` is then the only way to train.
        progress: told about events.

    Attributes:
        task: that is trained.
        options: of the updates.
        state: parameters and the optimiser's own arrays.
        last_norm: of the gradients of the last update, before clipping.
        account: what its parameters have cost of their data's privacy; None where there is none.

    Raises:
        PackageError: the package is broken, or cannot be trained.
        OptionError: an option has no such value.
        NotMetError: the engine computes wrong gradients.
        UnavailableError: the engine or safetensors is not installed.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        optimizer: str = "adamw",
        learning_rate: float | None = None,
        schedule: str | Schedule = "constant",
        accumulate: int = 1,
        clip_norm: float | None = None,
        seed: int = 0,
        engine: str = "onnxruntime",
        threads: int = 0,
        settings: Mapping[str, float] | None = None,
        on_features: bool = False,
        private: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self.progress = progress or Silent()
        self.task = open_task(path, engine_name=engine, threads=threads, on_features=on_features)
        self.spec = self.task.spec
        rate = RATES.get(optimizer, 0.0) if learning_rate is None else learning_rate
        parsed = schedule if isinstance(schedule, Schedule) else parse_schedule(schedule)
        self.options = TrainerOptions(optimizer, rate, parsed, accumulate, clip_norm, seed, settings)
        _check(self.options)
        self.is_private = private
        self.account: Privacy | None = None
        self.last_norm = 0.0
        self._gradients = Gradients(Vector(self.spec.parameters))
        self._evaluation: Executable | None = None
        self._closed = False
        if private and self.task.private.file is None:
            raise OptionError(
                f"no privacy can be promised for {self.task.package.manifest.name}: {self.task.private.refused}"
            )
        self._update = self._load_update()
        self.state: OptimizerState = self._update.new_state(
            Vector(self.spec.parameters, self.task.initial_parameters())
        )
        self._graph = GradientGraph(self.task, private=private)
        try:
            require_true_gradients(self.task, self._graph, self.progress, private=private)
        except BaseException:
            self.close()
            raise
        for note in self.spec.notes:
            self.progress.event(Event(kind="frozen", subject=self.task.package.manifest.name, reason=note))
        if not self.spec.loss.separable and accumulate > 1:
            reason = f"the loss {self.spec.loss.kind} compares samples, and only those of one micro-batch meet"
            self.progress.event(Event(kind="accumulation-not-equal", subject=f"accumulate {accumulate}", reason=reason))

    @property
    def parameters(self) -> dict[str, Array]:
        """A copy of the current values by name, float32."""
        return {name: array.copy() for name, array in self.state.parameters.items()}

    @property
    def optimizer(self) -> OptimizerKind:
        """Kind of the optimiser."""
        return self._update.graph.kind

    @property
    def updates(self) -> int:
        """Updates that were made."""
        return self.state.updates

    @property
    def pending(self) -> int:
        """Micro-batches that are accumulated and not yet used."""
        return self._gradients.micro_batches

    @property
    def learning_rate(self) -> float:
        """Of the next update."""
        return self.options.schedule.rate(self.options.learning_rate, self.state.updates)

    def step(self, batch: Mapping[str, Array]) -> float:
        """Take one micro-batch; every ``accumulate`` of them make an update.

        Args:
            batch: the model's inputs (or features) and ``label``, samples along the first axis.

        Returns:
            Mean loss of the micro-batch.

        Raises:
            TensorError: an input does not fit.
            DataError: a label does not fit, or is out of range.
            NotMetError: loss or gradients are not finite; parameters are as they were before.
            OptionError: the trainer is private: its samples are chosen by ``fit``; or its cosine has no length.
        """
        if self.account is not None and not self.is_private:
            raise OptionError("these parameters were trained with privacy: a step without would void it")
        if self.is_private:
            raise OptionError("a private trainer chooses its samples itself, so that they can be counted: use fit")
        if self.options.schedule.kind == "cosine" and not self.options.schedule.steps:
            raise OptionError(
                "single steps do not tell a cosine where it ends: give schedule='cosine:steps=N', or use fit"
            )
        loss = self.accumulate(self._checked(batch)).loss
        if self._gradients.micro_batches >= self.options.accumulate:
            self.update()
        return loss

    def accumulate(self, batch: Mapping[str, Array], **scalars: Array) -> Step:
        """Add the gradients of a micro-batch that fits, without an update.

        Raises:
            NotMetError: the loss is not finite; what was accumulated before stays.
            EngineError: the engine failed.
        """
        if self._closed:
            raise EngineError("the trainer is closed: make another one")
        step = self._graph.add(self.state.parameters, batch, self._gradients, **scalars)
        if not (math.isfinite(step.loss) and math.isfinite(step.weight)):
            raise NotMetError(f"the loss is {step.loss} at update {self.state.updates + 1}")
        return step

    def update(self, *, grad_scale: float | None = None) -> float:
        """Use what was accumulated; returns its mean loss. Nothing happens where it weighs nothing.

        Args:
            grad_scale: of the sums; one over their weight by default, the mean.

        Raises:
            NotMetError: a gradient is not finite; parameters are as they were before.
            EngineError: the engine failed.
        """
        gathered = self._gradients
        if gathered.weight == 0 and grad_scale is None:
            reason = "no label of it counts" if gathered.micro_batches else "nothing was accumulated"
            self.progress.event(Event(kind="update-skipped", subject=f"update {self.updates + 1}", reason=reason))
            self._forget()
            return 0.0
        scale = 1.0 / gathered.weight if grad_scale is None else grad_scale
        clip = math.inf if self.options.clip_norm is None or self.is_private else self.options.clip_norm
        rate = self.learning_rate
        self.last_norm = self._update.update(self.state, gathered.sums, rate=rate, grad_scale=scale, clip_norm=clip)
        loss = gathered.loss_sum / gathered.weight if gathered.weight else 0.0
        self._forget()
        if not math.isfinite(self.last_norm):
            raise NotMetError(f"the norm of the gradients is {self.last_norm} at update {self.state.updates + 1}")
        return loss

    def evaluate(self, data: Dataset | Mapping[str, Array] | str | Path, *, gate: Gate = OPEN) -> Evaluation:
        """Loss and accuracy with the current parameters.

        Args:
            data: a batch, arrays, data that was read, or its path.
            gate: that lets each batch of it run.

        Raises:
            DataError: it does not fit.
            EngineError: the engine failed.
        """
        if isinstance(data, str | Path):
            data = read_data(self.spec, self.task.package.manifest, data, self.progress)
        elif isinstance(data, Mapping):
            data = self._as_data(data)
        if self._evaluation is None:
            self._evaluation = self.task.load(self.task.step_file("eval"))
        return evaluate(self.task, self._evaluation, self.state.parameters, data, self.progress, gate)

    def fit(
        self,
        data: str | Path | Dataset,
        options: FitOptions | None = None,
        **given: Any,  # noqa: ANN401 - of FitOptions
    ) -> FitResult:
        """Train for some epochs, with checkpoints; arguments are those of ``FitOptions``.

        Args:
            data: to train on, or its path.
            options: how; or its attributes by name.

        Raises:
            DataError: the data does not fit, or is not that of the checkpoint.
            WeightsError: the checkpoint is of another task.
            NotMetError: the loss is not finite; the last good checkpoint stays.
            OutputError: a checkpoint cannot be written.
        """
        from sanderling.learn.fitting import FitOptions, fit

        return fit(self, data, options or FitOptions(**given))

    def save(self, path: str | Path, progress: Progressed | None = None) -> None:
        """Write a checkpoint, whole or not at all.

        Raises:
            NotMetError: a parameter is not finite.
            OutputError: it cannot be written; an older one stays.
        """
        gathered = self._gradients
        write_checkpoint(
            Path(path),
            Checkpoint(
                self.state.parameters,
                self.state.states,
                gathered.sums if gathered.micro_batches else {},
                self._standing(progress),
            ),
        )

    def load(self, path: str | Path) -> Progressed:
        """Go on from a checkpoint; returns where training stood.

        Raises:
            WeightsError: it is unreadable, of another task, or of another optimiser.
        """
        found = read_checkpoint(Path(path), self.spec)
        progress = found.progress
        self.account = progress.privacy
        if found.states:
            if progress.optimizer != self.options.optimizer or found.states.keys() != self.state.states.keys():
                raise WeightsError(
                    f"{path} was made with optimizer {progress.optimizer}, this trainer has {self.options.optimizer}: "
                    "give the same"
                )
            states = {kind: Vector(self.spec.parameters, arrays) for kind, arrays in found.states.items()}
            begun_at = progress.optimizer_begun_at
        else:
            reason = f"{path} holds parameters alone: the optimiser begins anew"
            self.progress.event(Event(kind="optimizer-reset", subject=Path(path).name, reason=reason))
            states = {kind: Vector(self.spec.parameters) for kind in self.state.states}
            begun_at = progress.updates
        parameters = Vector(self.spec.parameters, found.parameters)
        self.state = OptimizerState(parameters, states, progress.updates, begun_at)
        sums = Vector(self.spec.parameters, found.sums or None)
        self._gradients = Gradients(sums, progress.weight, progress.loss_sum, progress.micro_batches)
        return progress

    def replace_parameters(self, parameters: Mapping[str, Array]) -> None:
        """Take other values for all parameters, such as those of a server; the optimiser's state stays.

        Raises:
            WeightsError: a name, shape or dtype differs, or a value is not finite.
        """
        if parameters.keys() != self.state.parameters.keys():
            wrong = sorted(parameters.keys() ^ self.state.parameters.keys())[0]
            raise WeightsError(f"parameter '{wrong}' is not on both sides: the task has {len(self.state.parameters)}")
        for name, own in self.state.parameters.items():
            array = parameters[name]
            if array.shape != own.shape or array.dtype != own.dtype or not np.isfinite(array).all():
                got, expected = f"{array.dtype}{list(array.shape)}", f"finite {own.dtype}{list(own.shape)}"
                raise WeightsError(f"parameter '{name}' is {got}: expected {expected}")
        self.state.parameters = Vector(self.spec.parameters, parameters)
        self._forget()

    def restart_optimizer(self) -> None:
        """Keep the parameters, and forget everything else."""
        self.state = self._update.new_state(self.state.parameters)
        self._forget()

    def drop_pending(self) -> None:
        """Forget the micro-batches that are accumulated and not yet used."""
        self._forget()

    def add_to_sums(self, arrays: Mapping[str, Array]) -> None:
        """Add to what is accumulated, such as noise."""
        for name, array in arrays.items():
            self._gradients.sums[name] += array

    def plan(self, schedule: Schedule) -> None:
        """Use another schedule, such as one whose length is known now."""
        self.options = replace(self.options, schedule=schedule)

    def settings(self) -> dict[str, Any]:
        """What an update depends on besides state and data, as plain values."""
        options = self.options
        return {
            "learning_rate": options.learning_rate,
            "schedule": {name: getattr(options.schedule, name) for name in Schedule.__dataclass_fields__},
            "accumulate": options.accumulate,
            "clip_norm": options.clip_norm,
            **self._update.settings,
        }

    def close(self) -> None:
        """Give back what the graphs hold; a second call does nothing."""
        self._closed = True
        for held in (getattr(self, "_graph", None), self._update, self._evaluation):
            if held is not None:
                held.close()
        self._evaluation = None

    def _standing(self, progress: Progressed | None) -> Progressed:
        known = progress or Progressed(
            fingerprint=self.spec.fingerprint,
            optimizer=self.optimizer,
            settings=self.settings(),
            seed=self.options.seed,
            privacy=self.account,
        )
        gathered = self._gradients
        return known.model_copy(
            update={
                "updates": self.state.updates,
                "optimizer_begun_at": self.state.begun_at,
                "weight": gathered.weight,
                "loss_sum": gathered.loss_sum,
                "micro_batches": gathered.micro_batches,
            }
        )

    def _load_update(self) -> UpdateGraph:
        graph = self.spec.optimizer(self.options.optimizer)
        if graph is None:
            known = ", ".join(each.kind for each in self.spec.optimizers)
            raise OptionError(f"the task has no optimizer '{self.options.optimizer}': available are {known}")
        given = dict(self.options.settings or {})
        unknown = sorted(given.keys() - graph.settings.keys())
        if unknown:
            known = ", ".join(graph.settings) or "none"
            raise OptionError(f"optimizer {graph.kind} has no setting '{unknown[0]}': available are {known}")
        _check_settings(graph.kind, given)
        # an update is short and bound by memory: threads would cost more than they bring
        executable = self.task.load(graph.file, threads=1)
        if "param" not in {spec.name for spec in executable.inputs}:
            executable.close()
            raise PackageError(
                f"{self.task.package.path}: {graph.file} has no input 'param', as those of older versions: "
                "prepare the task again"
            )
        return UpdateGraph(graph, executable, {**graph.settings, **given}, self.spec.parameters)

    def _checked(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        named = dict(batch)
        if LABEL not in named:
            raise OptionError(f"the batch has no 'label': it holds {', '.join(named) or 'nothing'}")
        labels = named.pop(LABEL)
        check_feeds(named, self.task.inputs)
        rows = {array.shape[0] for array in named.values()} | {labels.shape[0] if labels.ndim else 0}
        if len(rows) != 1:
            raise OptionError(
                f"inputs and labels have {', '.join(map(str, sorted(rows)))} rows: expected as many of each"
            )
        return {**named, LABEL: check_labels(self.spec, labels)}

    def _as_data(self, batch: Mapping[str, Array]) -> Dataset:
        if not self.task.on_features:
            return from_arrays(self.spec, batch)
        from sanderling.learn.features import from_features

        return from_features(self.task, self._checked(batch))

    def _forget(self) -> None:
        self._gradients.sums.flat.fill(0)
        self._gradients = Gradients(self._gradients.sums)


def _check_settings(kind: OptimizerKind, given: Mapping[str, float]) -> None:
    for name, value in given.items():
        most = _BELOW.get(name, math.inf)
        if not 0 <= value < most:
            told = "0 or more" if most == math.inf else f"0 to below {most:g}"
            raise OptionError(f"optimizer {kind}: {name} is {value:g}: expected {told}")


def _check(options: TrainerOptions) -> None:
    if not (math.isfinite(options.learning_rate) and options.learning_rate > 0):
        known = ", ".join(RATES)
        told = f"learning rate {options.learning_rate:g} must be above 0"
        raise OptionError(
            told if options.optimizer in RATES else f"optimizer '{options.optimizer}' is unknown: {known}"
        )
    if options.accumulate < 1:
        raise OptionError(f"accumulate is {options.accumulate}: expected 1 micro-batch or more")
    if options.clip_norm is not None and not options.clip_norm > 0:
        raise OptionError(f"clip_norm is {options.clip_norm:g}: expected more than 0, or none")
