"""Training over epochs: which samples an update takes, when to save, when to stop, how to go on where it stopped."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from sanderling.core.errors import DataError, NotMetError, OptionError
from sanderling.core.progress import Event
from sanderling.learn.checkpoint import (
    Best,
    Checkpoint,
    Privacy,
    Progressed,
    best_path,
    remove_leftovers,
    write_checkpoint,
)
from sanderling.learn.data import Dataset, TrainingData, read_data
from sanderling.learn.evaluation import Evaluation
from sanderling.learn.gates import OPEN, Gate
from sanderling.learn.graphs import Step
from sanderling.learn.privacy import PrivacyTarget
from sanderling.learn.private_fitting import Ledger
from sanderling.learn.sampling import Indices, epoch_order, micro_batches

if TYPE_CHECKING:
    from sanderling.learn.trainer import Trainer

_CARRIED = ("best", "evaluation_sha256", "worse", "finished", "privacy")
_EVALUATION_SEED = 1_000_003  # apart from the seeds of the epochs' orders


@dataclass(frozen=True)
class FitOptions:
    """How a trainer goes through its data.

    Attributes:
        epochs: in all, those before a resumed checkpoint included.
        batch: samples of a micro-batch; the task's own number where it takes only one.
        evaluation: data to evaluate on after each epoch, which chooses the best parameters.
        holdout: share of the data to evaluate on instead, in [0, 1).
        patience: evaluations in a row without a lower loss that end training; 0 never ends it early.
        checkpoint: where training is saved, and gone on from; None saves nothing.
        save_every: updates between two checkpoints; 0 saves after each epoch and at the end.
        new_data: the data may differ from that of the checkpoint: parameters are kept, and its epochs begin anew.
        privacy: what may be lost of the data's privacy; the trainer must be private then.
        gate: that lets steps run.
    """

    epochs: int = 1
    batch: int = 32
    evaluation: str | Path | Dataset | None = None
    holdout: float = 0.0
    patience: int = 0
    checkpoint: str | Path | None = None
    save_every: int = 0
    new_data: bool = False
    privacy: PrivacyTarget | None = None
    gate: Gate = OPEN


class FitResult(BaseModel):
    """What training came to.

    Attributes:
        updates: in all.
        epochs: in all.
        samples: in the data.
        losses: mean of each epoch, over what this run took of it; None where that was nothing.
        evaluations: after each epoch of this run.
        best: evaluation, of all runs.
        stopped_early: whether there was no gain any more.
        resumed_from: updates that a checkpoint brought.
        checkpoint: that can be gone on from.
        best_checkpoint: with the best parameters; None where nothing was evaluated.
        privacy: what was spent; None without.
    """

    model_config = ConfigDict(frozen=True)

    updates: int
    epochs: int
    samples: int
    losses: tuple[float | None, ...]
    evaluations: tuple[Evaluation, ...]
    best: Best | None
    stopped_early: bool
    resumed_from: int
    checkpoint: str | None
    best_checkpoint: str | None
    privacy: Privacy | None


def fit(trainer: Trainer, source: str | Path | Dataset, options: FitOptions) -> FitResult:
    """Train; see ``Trainer.fit``."""
    _check(trainer, options)
    data, held_out = _data(trainer, source, options)
    run = _Run(trainer, data, held_out, options)
    run.resume()
    return run.train()


class _Run:
    """One run of ``fit``, and where it stands."""

    def __init__(self, trainer: Trainer, data: Dataset, held_out: Dataset | None, options: FitOptions) -> None:
        self.trainer, self.data, self.held_out, self.options = trainer, data, held_out, options
        fixed = trainer.task.batch_rows
        self.size = fixed or options.batch
        if fixed is not None and options.batch != fixed:
            reason = f"{fixed} samples at once, whatever was asked for ({options.batch})"
            trainer.progress.event(Event(kind="batch-fixed", subject=trainer.task.package.manifest.name, reason=reason))
        self.path = Path(options.checkpoint) if options.checkpoint is not None else None
        self.losses: list[float | None] = []
        self.evaluations: list[Evaluation] = []
        self.resumed_from = 0
        self.saved_at = -1
        self.ledger: Ledger | None = None
        batches = len(self._cut(0))
        if not batches:
            raise DataError(f"{len(data)} samples are fewer than the {self.size} that the task takes at once")
        updates_each = -(-batches // trainer.options.accumulate)
        trainer.plan(trainer.options.schedule.with_steps(options.epochs * updates_each))
        self.standing = Progressed(
            fingerprint=trainer.spec.fingerprint,
            optimizer=trainer.optimizer,
            settings=trainer.settings(),
            seed=trainer.options.seed,
            batch_size=self.size,
            data_sha256=None if options.privacy else data.sha256,
            samples=len(data),
        )

    def resume(self) -> None:
        """Go on from the checkpoint, where there is one."""
        if self.path is not None:
            if not self.path.parent.is_dir():
                raise OptionError(f"checkpoint {self.path}: {self.path.parent} is no folder")
            if remove_leftovers(self.path) + remove_leftovers(best_path(self.path)):
                self._tell("leftovers-removed", self.path.name, "a writer was killed in the middle; the file was whole")
            if self.path.exists():
                self._take_up(self.trainer.load(self.path))
        account, where = self.trainer.account, self.path or "the trainer"
        if self.options.privacy is None:
            if account is not None:
                raise OptionError(f"{where} was trained with privacy: going on without would void it; give --dp")
            return
        if self.trainer.updates and account is None:
            raise OptionError(f"{where} was trained without privacy, which cannot be taken back: begin anew")
        size = self.size * self.trainer.options.accumulate
        self.ledger = Ledger(self.options.privacy, account, samples=len(self.data), size=size)

    def _take_up(self, found: Progressed) -> None:
        self.resumed_from = self.saved_at = found.updates
        changed = found.samples is not None and (
            found.samples != len(self.data) or (found.data_sha256 is not None and found.data_sha256 != self.data.sha256)
        )
        if found.samples is None:  # saved by hand: there was no data to go through
            self._tell("epochs-begin", self.path_name, f"the checkpoint has {found.updates} updates and no epochs")
            return
        if changed and not self.options.new_data:
            raise DataError(
                f"the data has changed since {self.path} was written ({found.samples} samples then, {len(self.data)} "
                "now): give the data of then, or say --new-data to begin epochs anew with the checkpoint's parameters"
            )
        if changed:
            self._tell("data-changed", self.path_name, "parameters are kept; epochs and the optimiser begin anew")
            self.trainer.restart_optimizer()
            self.resumed_from, self.saved_at = 0, -1
            return
        asked = self.standing
        differing = [
            name
            for name, value in {**asked.settings, "seed": asked.seed, "batch": asked.batch_size}.items()
            if value != {**found.settings, "seed": found.seed, "batch": found.batch_size}.get(name)
        ]
        if differing:
            self._tell("settings-changed", self.path_name, f"{', '.join(differing)} differ from before the checkpoint")
        epoch, batch = found.epoch, found.batch
        other = (found.seed, found.batch_size) != (asked.seed, asked.batch_size)
        if self.options.privacy is not None:  # places in an epoch are updates then
            other = other or found.settings.get("accumulate") != asked.settings["accumulate"]
        if other and batch:
            reason = "another seed, batch or number of micro-batches: the epoch under way begins anew"
            self._tell("epoch-repeated", self.path_name, reason)
            self.trainer.drop_pending()  # its samples come again
            batch = 0
        self.standing = asked
        self._stand(epoch=epoch, batch=batch, **{name: getattr(found, name) for name in _CARRIED})
        self._hold_out_anew()

    def _hold_out_anew(self) -> None:
        """A loss on other data says nothing about which parameters are better."""
        before = self.standing.evaluation_sha256
        if self.held_out is None or before is None or before == self.held_out.sha256:
            return
        self._tell("evaluation-changed", self.path_name, "the best parameters are looked for anew")
        self._stand(best=None, evaluation_sha256=None, worse=0)

    @property
    def path_name(self) -> str:
        """Of the checkpoint, for events."""
        return self.path.name if self.path is not None else "checkpoint"

    def train(self) -> FitResult:
        """All epochs that are left; however they end, the trainer knows what they cost."""
        try:
            return self._train()
        finally:
            self._account()

    def _train(self) -> FitResult:
        begun_at = self.standing.epoch
        stopped = 0 < self.options.patience <= self.standing.worse
        while self.standing.epoch < self.options.epochs and not stopped:
            self.trainer.progress.stage(
                f"train, epoch {self.standing.epoch + 1} of {self.options.epochs}", self._steps_left()
            )
            self.losses.append(self._epoch())
            self._stand(epoch=self.standing.epoch + 1, batch=0)
            stopped = self._evaluate()
            if not self.options.save_every and self.standing.epoch < self.options.epochs:
                self.save()
        if not self.standing.finished or self.standing.epoch > begun_at:
            self._stand(finished=True)
            self.save()
        return self._result(stopped=stopped)

    def _epoch(self) -> float | None:
        """Train through the rest of an epoch; returns the mean loss of that rest, None where nothing was left."""
        if self.ledger is not None:
            return self._private_epoch(self.ledger)
        loss_sum, weight_sum = 0.0, 0.0
        batches = self._cut(self.standing.epoch)
        done = self.standing.batch
        if self._is_due(done, len(batches)):  # saved after its last micro-batch, before the update
            self._update(batches[done - 1], done)
        for place, indices in enumerate(batches[done:], start=done + 1):
            step = self._step(indices, place)
            loss_sum, weight_sum = loss_sum + step.loss * step.weight, weight_sum + step.weight
            self._stand(batch=place)
            if self._is_due(place, len(batches)):
                self._update(indices, place)
                self.save_in_time()
            self.trainer.progress.advance()
        return loss_sum / weight_sum if weight_sum else None

    def _is_due(self, place: int, last: int) -> bool:
        """Whether what was accumulated is to be used now."""
        pending = self.trainer.pending
        return pending >= self.trainer.options.accumulate or (pending > 0 and place == last)

    def _private_epoch(self, ledger: Ledger) -> float | None:
        ledger.begin(steps=(self.options.epochs - self.standing.epoch) * ledger.steps_each - self.standing.batch)
        losses: list[float | None] = []
        for place in range(self.standing.batch + 1, ledger.steps_each + 1):
            self._take(lambda: losses.append(ledger.step(self.trainer, self.data, self.size)))
            self._stand(batch=place)
            self.save_in_time()
            self.trainer.progress.advance()
        known = [loss for loss in losses if loss is not None]
        return float(np.mean(known)) if known else None

    def _step(self, indices: Indices, place: int) -> Step:
        found: list[Step] = []
        try:
            batch = self.data.batch(indices)
            self._take(lambda: found.append(self.trainer.accumulate(batch)))
        except NotMetError as error:
            raise self._stopped(error, indices, place) from error
        return found[0]

    def _update(self, indices: Indices, place: int) -> None:
        try:
            self._take(self._make_update)
        except NotMetError as error:
            raise self._stopped(error, indices, place) from error

    def _make_update(self) -> None:
        self.trainer.update()

    def _take(self, step: Callable[[], None]) -> None:
        self.options.gate.take(step, self.save)

    def _stopped(self, error: NotMetError, indices: Indices, place: int) -> NotMetError:
        kept = (
            f"the last good checkpoint, of update {self.saved_at}, is {self.path}"
            if self.saved_at >= 0
            else "no checkpoint was written"
        )
        return NotMetError(
            f"{error}, in batch {place} of epoch {self.standing.epoch + 1} "
            f"({self.data.names(indices)}); {kept}; lower the learning rate, clip gradients, or look at these samples"
        )

    def save_in_time(self) -> None:
        """Save if as many updates were made as asked for."""
        every = self.options.save_every
        if every and self.trainer.updates % every == 0:
            self.save()

    def save(self) -> None:
        """Save where training stands."""
        if self.path is None:
            return
        self._account()
        self.trainer.save(self.path, self.standing)
        self.saved_at = self.trainer.updates

    def _account(self) -> None:
        if self.ledger is not None:
            self.trainer.account = self.ledger.told()
            self._stand(privacy=self.trainer.account)

    def _stand(self, **changed: Any) -> None:  # noqa: ANN401 - attributes of Progressed
        self.standing = self.standing.model_copy(update=changed)

    def _evaluate(self) -> bool:
        """Evaluate after an epoch; returns whether to stop."""
        if self.held_out is None:
            return False
        found = self.trainer.evaluate(self.held_out, gate=self.options.gate)
        self.evaluations.append(found)
        best = self.standing.best
        if best is None or found.loss < best.loss:
            best = Best(
                loss=found.loss, accuracy=found.accuracy, update=self.trainer.updates, epoch=self.standing.epoch
            )
            self._stand(best=best, worse=0, evaluation_sha256=self.held_out.sha256)
            if self.path is not None:
                self._account()
                write_checkpoint(
                    best_path(self.path),
                    Checkpoint(
                        self.trainer.state.parameters,
                        {},
                        {},
                        self.standing.model_copy(update={"updates": self.trainer.updates}),
                    ),
                )
        else:
            self._stand(worse=self.standing.worse + 1)
        if 0 < self.options.patience <= self.standing.worse:
            reason = (
                f"{self.standing.worse} evaluations without a lower loss than {best.loss:.4g} of epoch {best.epoch}"
            )
            self._tell("stopped-early", f"epoch {self.standing.epoch}", reason)
            return True
        return False

    def _cut(self, epoch: int) -> list[Indices]:
        order = epoch_order(len(self.data), seed=self.trainer.options.seed, epoch=epoch)
        return micro_batches(order, self.size, is_fixed=self.trainer.task.batch_rows is not None)

    def _steps_left(self) -> int:
        each = self.ledger.steps_each if self.ledger is not None else len(self._cut(self.standing.epoch))
        return each - self.standing.batch

    def _tell(self, kind: str, subject: str, reason: str) -> None:
        self.trainer.progress.event(Event(kind=kind, subject=subject, reason=reason))

    def _result(self, *, stopped: bool) -> FitResult:
        has_best = self.path is not None and self.standing.best is not None
        return FitResult(
            updates=self.trainer.updates,
            epochs=self.standing.epoch,
            samples=len(self.data),
            losses=tuple(self.losses),
            evaluations=tuple(self.evaluations),
            best=self.standing.best,
            stopped_early=stopped,
            resumed_from=self.resumed_from,
            checkpoint=str(self.path) if self.path is not None else None,
            best_checkpoint=str(best_path(self.path)) if has_best and self.path is not None else None,
            privacy=self.ledger.told() if self.ledger is not None else None,
        )


def _data(trainer: Trainer, source: str | Path | Dataset, options: FitOptions) -> tuple[Dataset, Dataset | None]:
    """Data to train on, and to evaluate on; both as features where the trainer takes these."""
    manifest = trainer.task.package.manifest

    def ready(given: str | Path | Dataset) -> Dataset:
        read = read_data(trainer.spec, manifest, given, trainer.progress) if isinstance(given, str | Path) else given
        if trainer.task.on_features and isinstance(read, TrainingData):
            from sanderling.learn.features import cached_features

            return cached_features(trainer.task, read, trainer.progress, options.gate)
        return read

    data = ready(source)
    if options.evaluation is not None:
        return data, ready(options.evaluation)
    if not options.holdout:
        return data, None
    order = epoch_order(len(data), seed=_EVALUATION_SEED, epoch=0)  # the same whatever the seed: a resumed run keeps it
    count = max(1, round(options.holdout * len(data)))
    if count >= len(data):
        raise DataError(f"{len(data)} samples are too few to hold out {options.holdout:g} of them")
    return data.pick(np.sort(order[count:])), data.pick(np.sort(order[:count]))


def _check(trainer: Trainer, options: FitOptions) -> None:
    if options.epochs < 1 or options.batch < 1 or options.save_every < 0 or options.patience < 0:
        raise OptionError("epochs and batch must be at least 1, save_every and patience at least 0")
    if not 0 <= options.holdout < 1 or not math.isfinite(options.holdout):
        raise OptionError(f"holdout is {options.holdout:g}: expected a share from 0 to below 1")
    if options.evaluation is not None and options.holdout:
        raise OptionError("--eval and --holdout both say what is evaluated on: give one of them")
    if options.patience and options.evaluation is None and not options.holdout:
        raise OptionError("stopping early needs data to evaluate on: give --eval DATA or --holdout 0.1")
    if (options.privacy is not None) != trainer.is_private:
        raise OptionError(
            "privacy needs a private trainer and a target, both: give Trainer(private=True) and privacy=…"
        )
    if options.privacy is not None and options.holdout:
        raise OptionError(
            "evaluating on samples that are held out looks at private data without counting it: "
            "give --eval with data that is not private"
        )
