"""How often the search for mixed precision accepts a form whose true drop exceeds the budget.

Forms with known true drops stand for a network's: a form changes the answer to a sample with that probability. All
else is real: all INT8 is tested first, as in a build, and then comes the search with its bounds. Each repeat draws
other calibration and evaluation samples. The forms' changes are correlated, as a sample near a class border changes in
many forms: with 0 every form is another chance to be lucky, with 1 the changes of a safer form are among a rougher's.

    python -m benchmarks.quantize.budget [--repeats 4000] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sanderling.core.statistics import binomial_upper, samples_needed
from sanderling.workshop import mixed
from sanderling.workshop.search import CONFIDENCE, MOST_TESTS, last_that_holds, order_of_tests, rough_boundary

EVALUATION_SAMPLES = 300
CALIBRATION_SAMPLES = 128
FORMS = 60
MOST_LIES = 0.05
_CERTAIN = 0.9999  # there are two hundred cases
CORRELATIONS = (0.0, 0.5, 0.9, 1.0)
LIMITS = (1.3, 2.0, 3.0, 5.0)  # percentage points; below 1.23, 300 samples show nothing
_POSITIONS = np.linspace(0, 1, FORMS)  # of the forms between all INT8 and all float

# Per shape, the true drop of each form, as a multiple of the budget.
SHAPES: Mapping[str, npt.NDArray[np.float64]] = {
    "linear": 3 * (1 - _POSITIONS),
    "cliff in the middle": np.where(_POSITIONS < 0.5, 8.0, 0.1),
    "cliff at the end": np.where(_POSITIONS < 0.9, 8.0, 0.1),
    "steep": 5 * np.exp(-6 * _POSITIONS),
    "long tail": 1.5 / (1 + 4 * _POSITIONS),
    "all just above": np.full(FORMS, 1.0001),
    "all just above but float": np.where(_POSITIONS < 1, 1.0001, 0.0),
    "falling to just above": 1.0001 + 2 * (1 - _POSITIONS) ** 2,
    "just above and just below in turn": np.where(np.arange(FORMS) % 2 == 0, 1.0001, 0.9),
    "rising": 0.2 + 2 * _POSITIONS,
}


@dataclass(frozen=True)
class Outcome:
    """What the repeats of one case came to.

    Attributes:
        lies: share of the repeats that accepted a form whose true drop exceeds the budget.
        accepted: share of the repeats that accepted any form but float.
        int8_lies: share in which that was all INT8.
    """

    shape: str
    limit: float
    correlation: float
    repeats: int
    lies: float
    accepted: float
    int8_lies: float

    @property
    def lies_too_often(self) -> bool:
        """Whether the share of lies is beyond 5 % by more than chance explains."""
        honest = self.repeats - round(self.lies * self.repeats)
        return 1 - binomial_upper(honest, self.repeats, confidence=_CERTAIN) > MOST_LIES


def simulate(shape: str, limit: float, correlation: float, *, repeats: int, seed: int) -> Outcome:
    """Repeat a whole decision with other samples each time."""
    generator = np.random.default_rng(seed)
    drops = np.clip(SHAPES[shape] * limit / 100, 0, 1)
    chosen = [_decide(drops, limit, correlation, generator) for _ in range(repeats)]
    lies = [index for index in chosen if index is not None and drops[index] > limit / 100]
    return Outcome(
        shape=shape,
        limit=limit,
        correlation=correlation,
        repeats=repeats,
        lies=len(lies) / repeats,
        accepted=sum(index is not None for index in chosen) / repeats,
        int8_lies=lies.count(0) / repeats,
    )


def tightest_limit() -> float:
    """A budget, in percentage points, at which the bounds are exact: no slack hides a second chance."""
    return _upper(8)


def _decide(
    drops: npt.NDArray[np.float64], limit: float, correlation: float, generator: np.random.Generator
) -> int | None:
    """The form that a build would accept, or None."""
    calibration = _changes(drops, CALIBRATION_SAMPLES, correlation, generator)
    evaluation = _changes(drops, EVALUATION_SAMPLES, correlation, generator)

    def looks_good(index: int) -> bool:
        drop = 100 * calibration[index] / CALIBRATION_SAMPLES
        return _likely(float(drop)) <= limit

    def holds(index: int) -> bool:
        return _upper(int(evaluation[index])) <= limit

    if holds(0):
        return 0
    if samples_needed(limit / 100, confidence=CONFIDENCE) > EVALUATION_SAMPLES:
        return None
    boundary = rough_boundary(len(drops), looks_good)
    return last_that_holds(order_of_tests(boundary, len(drops), most=MOST_TESTS), holds)


def _changes(
    drops: npt.NDArray[np.float64], samples: int, correlation: float, generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """How many answers each form changes, shape (forms,): thresholds on normal numbers with a common part."""
    common = generator.standard_normal(samples)
    own = generator.standard_normal((len(drops), samples))
    values = math.sqrt(correlation) * common + math.sqrt(1 - correlation) * own
    counts: npt.NDArray[np.int64] = (values < _quantiles(tuple(drops))[:, None]).sum(axis=1)
    return counts


@cache
def _quantiles(shares: tuple[float, ...]) -> npt.NDArray[np.float64]:
    """Of the normal distribution."""
    from statistics import NormalDist

    ends = {0.0: -np.inf, 1.0: np.inf}
    return np.array([ends[share] if share in ends else NormalDist().inv_cdf(share) for share in shares])


@cache
def _upper(changed: int) -> float:
    return 100 * binomial_upper(changed, EVALUATION_SAMPLES, confidence=CONFIDENCE)


@cache
def _likely(drop: float) -> float:
    return mixed.likely_upper(drop, "agreement", EVALUATION_SAMPLES)


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate every case and print one JSON object; 1 when any lies more often than one time in twenty."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=4_000, help="of each case; about four minutes by default")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    outcomes = [
        simulate(shape, limit, correlation, repeats=options.repeats, seed=seed)
        for seed, (shape, limit, correlation) in enumerate(
            (shape, limit, correlation)
            for shape in SHAPES
            for limit in (*LIMITS, tightest_limit())
            for correlation in CORRELATIONS
        )
    ]
    worst = max(outcomes, key=lambda outcome: outcome.lies)
    text = json.dumps(
        {
            "evaluation_samples": EVALUATION_SAMPLES,
            "calibration_samples": CALIBRATION_SAMPLES,
            "forms": FORMS,
            "confidence": CONFIDENCE,
            "worst": asdict(worst),
            "cases": [asdict(outcome) for outcome in outcomes],
        },
        indent=1,
    )
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    return int(any(outcome.lies_too_often for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
