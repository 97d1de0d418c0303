"""One run of training as a command asks for it: the trainer, its gate, its data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from sanderling.core.errors import OptionError
from sanderling.core.progress import Event, Progress, Silent
from sanderling.learn.fitting import FitOptions, FitResult
from sanderling.learn.gates import OPEN
from sanderling.learn.idle import IdleGate
from sanderling.learn.privacy import parse_privacy
from sanderling.learn.schedules import Schedule, parse_numbers, parse_schedule
from sanderling.learn.task import open_task
from sanderling.learn.trainer import Trainer
from sanderling.model.learning import LearningSpec
from sanderling.run.policy.document import Policy, read_policy
from sanderling.run.runtime import Runtime
from sanderling.run.sensors import Sensors

_SETTINGS = ("weight_decay", "momentum", "dampening", "beta1", "beta2", "eps")


@dataclass(frozen=True)
class RunOptions:
    """What a run of training is asked for, besides what ``FitOptions`` say.

    Attributes:
        optimizer: ``adamw`` or ``sgd``.
        settings: of the optimiser.
        learning_rate: the highest; the optimiser's own by default.
        schedule: of the learning rate.
        accumulate: micro-batches of an update.
        clip_norm: of all gradients of an update together.
        seed: of the order of samples.
        engine: that computes.
        threads: of one call.
        features: compute the frozen part once; None where the task cuts it off and there are several epochs.
        policy: that says when training may run; None lets it run at once.
        give_up_s: seconds of a pause after which it ends.
        runtime: whose models it shares the processor with.
        sensors: to read instead of this machine's.
    """

    optimizer: str = "adamw"
    settings: Mapping[str, float] = field(default_factory=dict)
    learning_rate: float | None = None
    schedule: Schedule = field(default_factory=Schedule)
    accumulate: int = 1
    clip_norm: float | None = None
    seed: int = 0
    engine: str = "onnxruntime"
    threads: int = 0
    features: bool | None = None
    policy: Policy | None = None
    give_up_s: float = math.inf
    runtime: Runtime | None = None
    sensors: Sensors | None = None


def learn_run(
    path: str | Path,
    data: str | Path,
    *,
    epochs: int = 1,
    batch: int = 32,
    optimizer: str = "adamw",
    learning_rate: float | None = None,
    schedule: str = "constant",
    accumulate: int = 1,
    clip_norm: float | None = None,
    evaluation: str | Path | None = None,
    holdout: float = 0.0,
    patience: int = 0,
    checkpoint: str | Path | None = None,
    save_every: int = 0,
    new_data: bool = False,
    privacy: str | None = None,
    policy: str | Path | Policy | None = None,
    give_up_s: float = math.inf,
    features: bool | None = None,
    engine: str = "onnxruntime",
    threads: int = 0,
    seed: int = 0,
    progress: Progress | None = None,
) -> FitResult:
    """Train a task on this device, without PyTorch: ``sanderling learn run``. It goes on from its checkpoint.

    Args:
        path: the task, a folder or a zip.
        data: a folder with a folder for each class, a CSV, or an ``.npz`` with the inputs and ``label``.
        epochs: in all, those before a resumed checkpoint included.
        batch: samples of a micro-batch.
        optimizer: ``adamw`` or ``sgd``, with settings as ``sgd:momentum=0.8``.
        learning_rate: the highest; the optimiser's own by default.
        schedule: ``constant``, ``cosine`` or ``step``, with options as ``cosine:warmup=10``.
        accumulate: micro-batches of an update.
        clip_norm: of all gradients of an update together.
        evaluation: data to evaluate on after each epoch, which chooses the best parameters.
        holdout: share of the data to evaluate on instead.
        patience: evaluations in a row without a lower loss that end training; 0 never does.
        checkpoint: safetensors file that is saved to and gone on from.
        save_every: updates between two checkpoints; 0 saves after each epoch.
        new_data: the data may differ from that of the checkpoint.
        privacy: such as ``epsilon=8,delta=1e-5,clip=1``.
        policy: a policy, or its file, that says when training may run.
        give_up_s: seconds of a pause after which training ends.
        features: compute the frozen part once and train on what it gives; by default where that pays.
        engine: that computes.
        threads: of one call; 0 leaves it to the engine.
        seed: of the order of samples.
        progress: told about stages, steps and events.

    Raises:
        PackageError: the package is broken, or is no task.
        OptionError: an option has no such value, or no privacy can be promised.
        DataError: the data does not fit, or is not that of the checkpoint.
        WeightsError: the checkpoint is of another task.
        NotMetError: the engine's gradients are wrong, or the loss is not finite; the last good checkpoint stays.
        RefusedError: the policy did not allow training for ``give_up_s``.
        OutputError: a checkpoint cannot be written.
    """
    kind, settings = parse_optimizer(optimizer)
    asked = RunOptions(
        optimizer=kind,
        settings=settings,
        learning_rate=learning_rate,
        schedule=parse_schedule(schedule),
        accumulate=accumulate,
        clip_norm=clip_norm,
        seed=seed,
        engine=engine,
        threads=threads,
        features=features,
        policy=policy if isinstance(policy, Policy) or policy is None else read_policy(policy),
        give_up_s=give_up_s,
    )
    fit = FitOptions(
        epochs=epochs,
        batch=batch,
        evaluation=evaluation,
        holdout=holdout,
        patience=patience,
        checkpoint=checkpoint,
        save_every=save_every,
        new_data=new_data,
        privacy=parse_privacy(privacy) if privacy else None,
    )
    return run(path, data, asked, fit, progress)


def run(
    path: str | Path, data: str | Path, asked: RunOptions, fit: FitOptions, progress: Progress | None = None
) -> FitResult:
    """Train a task on data; see ``Trainer.fit`` for the errors."""
    progress = progress or Silent()
    spec = open_task(path, engine_name=asked.engine).spec
    on_features = _takes_features(spec, asked, fit, progress)
    with ExitStack() as stack:
        trainer = stack.enter_context(
            Trainer(
                path,
                optimizer=asked.optimizer,
                learning_rate=asked.learning_rate,
                schedule=asked.schedule,
                accumulate=asked.accumulate,
                clip_norm=asked.clip_norm,
                seed=asked.seed,
                engine=asked.engine,
                threads=asked.threads,
                settings=asked.settings,
                on_features=on_features,
                private=fit.privacy is not None,
                progress=progress,
            )
        )
        gate = OPEN if asked.policy is None else stack.enter_context(_gate(asked, asked.policy, progress))
        return trainer.fit(data, replace(fit, gate=gate))


def parse_optimizer(text: str) -> tuple[str, dict[str, float]]:
    """Read ``adamw`` or ``sgd:momentum=0.8``.

    Raises:
        OptionError: another form, or a setting that no optimiser has.
    """
    kind, _, rest = text.strip().partition(":")
    return kind, dict(parse_numbers(rest, f"optimizer '{text}'", _SETTINGS))


def _takes_features(spec: LearningSpec, asked: RunOptions, fit: FitOptions, progress: Progress) -> bool:
    cut = spec.features
    if asked.features and cut is None:
        raise OptionError("this task has no frozen part that is cut off: train it without --features on")
    if cut is None or asked.features is False:
        return False
    usable = fit.privacy is None or cut.private.file is not None
    if asked.features is None and (fit.epochs < 2 or not usable):
        return False
    reason = f"{100 * cut.macs_share:.0f} % of the forward pass is computed once, {cut.bytes_per_sample} bytes a sample"
    progress.event(Event(kind="features-cached", subject=", ".join(each.name for each in cut.tensors), reason=reason))
    return True


def _gate(asked: RunOptions, policy: Policy, progress: Progress) -> IdleGate:
    return IdleGate(
        policy,
        sensors=asked.sensors,
        runtime=asked.runtime,
        threads=asked.threads,
        progress=progress,
        give_up_s=asked.give_up_s,
    )
