"""Whether an engine computes what a package says: its outputs for the golden vectors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sanderling.core.statistics import relative_error, sqnr_db
from sanderling.core.tensor import Array, Feeds
from sanderling.model.package import GoldenVectors
from sanderling.run.engines.base import Executable, Optimization

_ALLOWED_LOSS_DB = 3.0
_ENOUGH_DB = 40.0


class Runs(Protocol):
    """What executes a graph: an executable, or a lane that has one."""

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Outputs by name."""


def wrong_outputs(executable: Runs, golden: GoldenVectors, variant: str, tolerance: float) -> str | None:
    """Say what is wrong with the outputs, or None.

    They are right when they repeat the variant's own golden outputs within their tolerance. Engines, processors and
    levels of optimisation round INT8 and BF16 differently, so they are right as well when they are as close to FP32's
    outputs as that variant was when it was built, less 3 dB, or as 40 dB.
    """
    own, reference = golden.outputs[variant], golden.outputs["fp32"]
    got = [executable.run(golden.call(index)) for index in range(len(golden))]
    for name in reference:
        rows = [outputs.get(name) for outputs in got]
        if any(row is None for row in rows):
            return f"output '{name}' is missing"
        outputs = np.stack([row for row in rows if row is not None])
        if outputs.shape != reference[name].shape:
            return f"output '{name}' has shape {outputs.shape[1:]}: expected {reference[name].shape[1:]}"
        if not np.isfinite(outputs[np.isfinite(reference[name])]).all():
            return f"output '{name}' has NaN or infinite values"
        error = relative_error(own[name], outputs)
        if error > tolerance and not _close(reference[name], own[name], outputs):
            return f"output '{name}' differs from the golden one: relative error {error:.2e}, at most {tolerance:.0e}"
    return None


@dataclass(frozen=True)
class SafeLevel:
    """A level of optimisation; ``reason`` says what a higher one did, and is empty at ``ALL``."""

    level: Optimization
    reason: str = ""


def safe_level(
    load: Callable[[Optimization], Executable], golden: GoldenVectors, variant: str, tolerance: float
) -> SafeLevel:
    """The highest level of optimisation at which an engine computes what the graph says, up to rounding.

    At ``NONE`` it runs the graph as it is written. A higher level is right when ``wrong_outputs`` finds nothing against
    that: a rewrite may round INT8 another way, but not be further from FP32.

    Args:
        load: the variant, at a level; what it returns is closed.
        golden: whose inputs are run, and whose FP32 outputs are the reference of other variants.
        variant: id.
        tolerance: of its golden outputs.
    """
    with closing(load(Optimization.NONE)) as executable:
        written = _stacked(executable, golden)
    reference = written if variant == "fp32" else golden.outputs["fp32"]
    expected = GoldenVectors(golden.inputs, {"fp32": reference, variant: written})
    reason = ""
    for level in (Optimization.ALL, Optimization.BASIC):
        with closing(load(level)) as executable:
            wrong = wrong_outputs(executable, expected, variant, tolerance)
            if wrong is None:
                return SafeLevel(level, reason and f"{reason}; {level} is used")
            told = _both_numbers(reference, written, _stacked(executable, golden))
        reason = "; ".join(part for part in (reason, f"at {level} {wrong}, {told}") if part)
    return SafeLevel(Optimization.NONE, f"{reason}; {Optimization.NONE} is used")


def _stacked(executable: Executable, golden: GoldenVectors) -> dict[str, Array]:
    """Outputs for every golden call; the first axis counts the calls."""
    results = [executable.run(golden.call(index)) for index in range(len(golden))]
    return {name: np.stack([result[name] for result in results]) for name in results[0]}


def _both_numbers(reference: dict[str, Array], written: dict[str, Array], outputs: dict[str, Array]) -> str:
    """SQNR against FP32 of the output that lost most, at a level and as the graph is written."""
    numbers = []
    for name, expected in reference.items():
        if name in outputs and outputs[name].shape == expected.shape:
            finite = np.isfinite(expected)
            own = _sqnr_db(expected[finite], written[name][finite])
            numbers.append((_sqnr_db(expected[finite], outputs[name][finite]) - own, own))
    if not numbers:
        return "no output to compare"
    lost, own = min(numbers)
    return f"SQNR against FP32 {own + lost:.1f} dB, as written {own:.1f} dB"


def _close(reference: Array, own: Array, outputs: Array) -> bool:
    finite = np.isfinite(reference)  # a mask's -inf has no distance: it must be there again
    if not np.array_equal(reference[~finite], outputs[~finite], equal_nan=True):
        return False
    return _sqnr_db(reference[finite], outputs[finite]) >= least_sqnr_db(reference, own)


def least_sqnr_db(reference: Array, own: Array) -> float:
    """How close to FP32's outputs those of a variant must be, when its own golden ones are ``own``."""
    finite = np.isfinite(reference)
    return min(_sqnr_db(reference[finite], own[finite]) - _ALLOWED_LOSS_DB, _ENOUGH_DB)


def _sqnr_db(reference: Array, other: Array) -> float:
    x, y = reference.astype(np.float64), other.astype(np.float64)
    return sqnr_db(float(np.square(x).sum()), float(np.square(x - y).sum()))
