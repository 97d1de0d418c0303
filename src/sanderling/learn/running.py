"""One run of training as a command asks for it: the trainer, its gate, its data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from sanderling.core.errors import OptionError
from sanderling.core.progress import Event, Progress, Silent
from sanderling.learn.fitting import FitOptions, FitResult, Open
from sanderling.learn.idle import IdleGate
from sanderling.learn.schedules import Schedule, parse_numbers
from sanderling.learn.task import open_task
from sanderling.learn.trainer import Trainer
from sanderling.model.learning import LearningSpec
from sanderling.run.policy.document import Policy
from sanderling.run.runtime import Runtime
from sanderling.run.sensors import Sensors

_SETTINGS = ("weight_decay", "momentum", "beta1", "beta2", "eps", "nesterov")


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
        gate = Open() if asked.policy is None else stack.enter_context(_gate(asked, asked.policy, progress))
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
