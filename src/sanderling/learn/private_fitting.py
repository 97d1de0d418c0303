"""Updates under differential privacy, and the account of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sanderling.core.errors import OptionError
from sanderling.learn.checkpoint import Privacy, SpentSteps
from sanderling.learn.graphs import scalar
from sanderling.learn.privacy import (
    PrivacyTarget,
    Spent,
    check_delta,
    epsilon_of,
    noise,
    noise_multiplier_for,
    require_accountant,
)
from sanderling.learn.sampling import padded, poisson_sample

if TYPE_CHECKING:
    from sanderling.learn.data import Dataset
    from sanderling.learn.trainer import Trainer


class Ledger:
    """What was spent, and the noise that keeps the target.

    Args:
        target: that holds in the end.
        before: what a checkpoint says was spent on the same data.
        samples: in the data.
        size: samples of an update in the mean.

    Attributes:
        steps_each: updates of an epoch: in the mean each sample is in one of them.
        noise_multiplier: standard deviation of the noise over the clipping norm.

    Raises:
        OptionError: delta promises nothing, the batch is as large as the data, or nothing is left to spend.
        UnavailableError: dp-accounting is not installed.
    """

    def __init__(self, target: PrivacyTarget, before: Privacy | None, *, samples: int, size: int) -> None:
        require_accountant()
        check_delta(target, samples)
        if size >= samples:
            raise OptionError(f"an update of {size} samples takes all {samples}: privacy needs a smaller batch")
        self.target = target
        self.samples = samples
        self.size = size
        self.probability = size / samples
        self.steps_each = math.ceil(samples / size)
        self.noise_multiplier = 0.0
        self._spent = (
            [Spent(entry.probability, entry.noise_multiplier, entry.steps) for entry in before.spent] if before else []
        )
        if before is not None and before.samples != samples:
            raise OptionError(
                f"the checkpoint's account is of {before.samples} samples, the data has {samples}: "
                "what was spent cannot be added up; begin a new checkpoint"
            )

    def begin(self, *, steps: int) -> None:
        """Choose the noise for so many more steps, unless it was chosen before.

        Raises:
            OptionError: nothing is left to spend.
        """
        if self.noise_multiplier:
            return
        known = [entry for entry in self._spent if entry.probability == self.probability]
        if known and epsilon_of(self._with(known[-1], steps), self.target.delta) <= self.target.epsilon:
            self.noise_multiplier = known[-1].noise_multiplier  # a run that was stopped goes on as it began
            return
        self.noise_multiplier = noise_multiplier_for(
            self.target, probability=self.probability, steps=steps, spent=self._spent
        )

    def step(self, trainer: Trainer, data: Dataset, rows: int) -> float | None:
        """Make one update; returns the mean loss of its samples, None where none was chosen."""
        chosen = poisson_sample(self.samples, self.probability)
        size = trainer.task.private.batch or rows
        loss_sum = 0.0
        for indices, mask in padded(chosen, size):
            found = trainer.accumulate(data.batch(indices), sample_mask=mask, clip_norm=scalar(self.target.clip_norm))
            loss_sum += found.loss * found.weight
        shapes = {parameter.name: parameter.shape for parameter in trainer.spec.parameters}
        trainer.add_to_sums(noise(shapes, self.noise_multiplier * self.target.clip_norm))
        self._count()  # before the update: what has been computed counts, whether it is used or not
        trainer.update(grad_scale=1.0 / self.size)
        return loss_sum / len(chosen) if len(chosen) else None

    def told(self) -> Privacy:
        """What was spent so far."""
        return Privacy(
            delta=self.target.delta,
            epsilon=epsilon_of(self._spent, self.target.delta),
            clip_norm=self.target.clip_norm,
            spent=tuple(
                SpentSteps(probability=entry.probability, noise_multiplier=entry.noise_multiplier, steps=entry.steps)
                for entry in self._spent
            ),
            samples=self.samples,
        )

    def _count(self) -> None:
        last = self._spent[-1] if self._spent else None
        if last is not None and (last.probability, last.noise_multiplier) == (self.probability, self.noise_multiplier):
            self._spent[-1] = Spent(last.probability, last.noise_multiplier, last.steps + 1)
        else:
            self._spent.append(Spent(self.probability, self.noise_multiplier, 1))

    def _with(self, entry: Spent, steps: int) -> list[Spent]:
        return [*self._spent, Spent(entry.probability, entry.noise_multiplier, steps)]
