"""Which variant each branch runs in, so that the whole keeps its budget: decided by the answers, not by features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from sanderling.core.progress import Progress
from sanderling.measure.accuracy import within_budget
from sanderling.measure.multimodal import FLOAT, Joint
from sanderling.model.manifest import Budget
from sanderling.model.package import Package
from sanderling.workshop.multimodal.evidence import Choice
from sanderling.workshop.search import CONFIDENCE

INT8 = "int8"


def all_in(branches: Mapping[str, Package], variant: str) -> dict[str, str]:
    """That variant of each branch, FP32 where a branch has no such variant."""
    return {name: variant if package.manifest.variant(variant) else FLOAT for name, package in branches.items()}


def candidates(branches: Mapping[str, Package], joint: Joint) -> list[Choice]:
    """Choices between all INT8 and all FP32 that are worth testing, the safest first.

    Kept are those that no other beats in both: the time that the branches take, and the answers on calibration data
    that change.
    """
    names = list(branches)
    options = [[variant.id for variant in branches[name].manifest.variants] for name in names]
    every = [dict(zip(names, chosen, strict=True)) for chosen in product(*options)]
    measured = [
        Choice(branches=chosen, latency_ms=latency_ms(branches, chosen), changed_percent=joint_change(joint, chosen))
        for chosen in every
        if any(variant != FLOAT for variant in chosen.values()) and chosen != all_in(branches, INT8)
    ]
    measured.sort(key=lambda choice: (choice.latency_ms, choice.changed_percent or 0.0))
    kept: list[Choice] = []
    for choice in measured:
        if not kept or (choice.changed_percent or 0.0) < (kept[-1].changed_percent or 0.0):
            kept.append(choice)
    return kept[::-1]


def search(choices: Sequence[Choice], joint: Joint, budget: Budget, seed: int, progress: Progress) -> list[Choice]:
    """Test choices on the evaluation data in the order given, and end at the first that misses the budget.

    The order was fixed on other data, so that the last one that passes passes no more often by luck than one test does.

    Returns:
        The choices that were tested, with their accuracy.
    """
    progress.stage("choose a variant for each branch", len(choices))
    tested = []
    for choice in choices:
        accuracy = joint.accuracy(choice.branches, confidence=CONFIDENCE, seed=seed)
        tested.append(choice.model_copy(update={"accuracy": accuracy}))
        progress.advance()
        if not within_budget(accuracy, budget):
            break
    return tested


def passed(tested: Sequence[Choice], budget: Budget) -> Choice | None:
    """The last that kept the budget."""
    kept = [choice for choice in tested if choice.accuracy is not None and within_budget(choice.accuracy, budget)]
    return kept[-1] if kept else None


def latency_ms(branches: Mapping[str, Package], chosen: Mapping[str, str]) -> float:
    """Sum of the medians that were measured for the branches."""
    found = [branches[name].variant(variant).latency_ms for name, variant in chosen.items()]
    return sum(latency.p50 for latency in found if latency is not None)


def joint_change(joint: Joint, chosen: Mapping[str, str]) -> float:
    """Percent of the first answers that are not FP32's."""
    ours = joint.scores(chosen).argmax(axis=1)
    theirs = joint.scores(dict.fromkeys(chosen, FLOAT)).argmax(axis=1)
    return float(100.0 * np.mean(ours != theirs))
