"""Differential privacy: noise, and what it has cost so far, counted by Google's ``dp-accounting``.

Each step takes every sample with the same probability (Poisson sampling), clips each sample's gradient to a norm in the
graph, and adds normal noise to the sum. Neighbouring data sets differ by one sample that is added or removed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sanderling.core.errors import OptionError, UnavailableError
from sanderling.core.tensor import Array
from sanderling.learn.schedules import parse_numbers

HINT = "pip install 'sanderling[privacy]'"
_SUMMED = 4  # normals of a draw: see ``noise``
_LEAST_NOISE, _MOST_NOISE = 0.2, 1e4
_CLOSE = 0.01  # by how much the noise may be more than the least
_INTERVAL = (
    1e-3  # of privacy losses that are counted as one, the larger: epsilon is at most 1e-3 too high, 10 times as fast
)


@dataclass(frozen=True)
class PrivacyTarget:
    """What may be lost.

    Attributes:
        epsilon: above 0.
        delta: in (0, 1); below 1 over the number of samples.
        clip_norm: to which each sample's gradient is clipped, above 0.
    """

    epsilon: float
    delta: float
    clip_norm: float


@dataclass(frozen=True)
class Spent:
    """Steps of one kind that have looked at the data.

    Attributes:
        probability: with which each sample is in a step.
        noise_multiplier: standard deviation of the noise over the clipping norm.
        steps: that were made.
    """

    probability: float
    noise_multiplier: float
    steps: int


def parse_privacy(text: str) -> PrivacyTarget:
    """Read ``epsilon=8,delta=1e-5,clip=1``.

    Raises:
        OptionError: another form, or a number outside its range.
    """
    what = f"--dp '{text}'"
    values = parse_numbers(text, what, ("epsilon", "delta", "clip"))
    missing = [name for name in ("epsilon", "delta") if name not in values]
    if missing:
        raise OptionError(f"{what} has no {missing[0]}: expected epsilon=8,delta=1e-5,clip=1")
    target = PrivacyTarget(values["epsilon"], values["delta"], values.get("clip", 1.0))
    if target.epsilon <= 0 or not 0 < target.delta < 1 or target.clip_norm <= 0:
        raise OptionError(f"{what}: epsilon and clip must be above 0, and delta between 0 and 1")
    return target


def noise(shapes: Mapping[str, Sequence[int]], deviation: float) -> dict[str, npt.NDArray[np.float32]]:
    """Normal noise by the random numbers of the operating system, which no seed repeats.

    Each number is the sum of four normals in float64, over two: of one float64 normal the last bits can tell what was
    added to it.

    Args:
        shapes: by name.
        deviation: standard deviation, 0 or more.

    Returns:
        float32 arrays by name.

    Source: Holohan and Braghin, Secure Random Sampling in Differential Privacy (ESORICS 2021); Box and Muller (1958).
    """
    return {
        name: (deviation * _normal(int(np.prod(shape, dtype=np.int64)))).astype(np.float32).reshape(tuple(shape))
        for name, shape in shapes.items()
    }


def _normal(count: int) -> npt.NDArray[np.float64]:
    total = np.zeros(count)
    for _ in range(_SUMMED // 2):  # Box and Muller give two at a time
        radius = np.sqrt(-2.0 * np.log(1.0 - _uniform(count)))
        angle = 2.0 * math.pi * _uniform(count)
        total += radius * np.cos(angle) + radius * np.sin(angle)
    return total / math.sqrt(_SUMMED)


def _uniform(count: int) -> npt.NDArray[np.float64]:
    """In [0, 1), 53 random bits each."""
    bits = np.frombuffer(os.urandom(8 * count), np.uint64) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def epsilon_of(spent: Sequence[Spent], delta: float) -> float:
    """What has been lost at that delta, an upper bound; 0 before the first step.

    Raises:
        UnavailableError: dp-accounting is not installed.

    Source: Koskela, Jälkö and Honkela (AISTATS 2020), as in ``dp_accounting.pld``.
    """
    counted = [entry for entry in spent if entry.steps]
    if not counted:
        return 0.0
    accounting = _accounting()
    accountant = accounting.pld.PLDAccountant(value_discretization_interval=_INTERVAL)
    for entry in counted:
        accountant.compose(_event(accounting, entry.probability, entry.noise_multiplier), entry.steps)
    return float(accountant.get_epsilon(delta))


def noise_multiplier_for(
    target: PrivacyTarget, *, probability: float, steps: int, spent: Sequence[Spent] = ()
) -> float:
    """The least noise, to within a hundredth, with which as many more steps stay within the target.

    Args:
        target: that must hold in the end.
        probability: with which each sample is in a step.
        steps: still to be made, above 0.
        spent: what was spent before on the same data.

    Raises:
        OptionError: what was spent before leaves nothing.
        UnavailableError: dp-accounting is not installed.
    """
    already = epsilon_of(spent, target.delta)
    if already >= target.epsilon:
        raise OptionError(
            f"epsilon {already:.3g} is spent already, the target is {target.epsilon:g}: stop here, or give a larger one"
        )

    def lost(multiplier: float) -> float:
        return epsilon_of([*spent, Spent(probability, multiplier, steps)], target.delta)

    low, high = _LEAST_NOISE, 1.0
    while lost(high) > target.epsilon:
        low, high = high, high * 2
        if high > _MOST_NOISE:
            raise OptionError(
                f"no noise keeps {steps} steps within epsilon {target.epsilon:g}: make fewer, or give a larger epsilon"
            )
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        low, high = (low, middle) if lost(middle) <= target.epsilon else (middle, high)
    return high


def check_delta(target: PrivacyTarget, samples: int) -> None:
    """Refuse a delta that promises nothing.

    Raises:
        OptionError: one over the number of samples, or more: giving away one sample whole would keep it.
    """
    if target.delta >= 1 / samples:
        raise OptionError(
            f"delta {target.delta:g} promises nothing for {samples} samples: expected less than {1 / samples:.2g}"
        )


def require_accountant() -> None:
    """Refuse before anything is computed.

    Raises:
        UnavailableError: dp-accounting is not installed.
    """
    _accounting()


def _event(accounting: Any, probability: float, multiplier: float) -> Any:  # noqa: ANN401 - the library is untyped
    return accounting.PoissonSampledDpEvent(probability, accounting.GaussianDpEvent(multiplier))


def _accounting() -> Any:  # noqa: ANN401 - a module
    try:
        import dp_accounting
        import dp_accounting.pld
    except ImportError as error:
        raise UnavailableError(f"differential privacy needs dp-accounting: {HINT}") from error
    return dp_accounting


def norm_of(arrays: Mapping[str, Array]) -> float:
    """Norm of all arrays together; not finite where one of them is not."""
    return math.sqrt(
        sum(float(np.dot(flat := array.reshape(-1).astype(np.float64), flat)) for array in arrays.values())
    )
