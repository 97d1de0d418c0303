"""How far the tensors inside a graph may go, as learned from the golden inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sanderling.core.tensor import Array
from sanderling.run.guard.fault import Fault
from sanderling.run.guard.inner import Extremes

_MARGIN = 4.0
_LEAST_WIDTH = 0.1  # of the largest absolute value: a tensor that the golden inputs hardly move


@dataclass(frozen=True)
class InnerLimits:
    """What a watched tensor may hold.

    Attributes:
        golden: lowest and highest value of the golden inputs.
        low: no value below; -inf where the golden inputs gave that, too.
        high: no value above.
        l1: no row's sum of absolute values above.
        allows_nan: the golden inputs gave NaN.
    """

    golden: tuple[float, float]
    low: float
    high: float
    l1: float
    allows_nan: bool


def learned_limits(calls: Sequence[Mapping[str, Extremes]], *, lengths_vary: bool) -> dict[str, InnerLimits]:
    """Limits by name, from what each golden call gave.

    Flipped bits, saturated accumulators and wrong scales leave a tensor's usual range by powers of two, and inputs
    that nobody has seen by a small factor. A few golden calls know the range only roughly, and a check that trips on
    good results is worse than none, so the limits lie three golden widths beyond either end (a ReLU's may grow to four
    times its golden maximum), and the sum of absolute values, which grows when many values saturate inside the range,
    may be four times the largest. That a tensor is all zeros is no fault: a black picture does that to a layer without
    biases.

    Args:
        calls: what ``inner.split`` found in each.
        lengths_vary: other axes than the first have no fixed size: a sum says nothing about the values then.

    Source: Chen, Li and Pattabiraman, "A Low-cost Fault Corrector for Deep Neural Networks through Range Restriction",
    DSN 2021, which takes the limits from a part of the training data.
    """
    names = dict.fromkeys(name for call in calls for name in call)
    found = {name: _limits([call[name] for call in calls if name in call], lengths_vary) for name in names}
    return {name: limits for name, limits in found.items() if limits is not None}


def inner_fault(
    limits: Mapping[str, InnerLimits], inner: Mapping[str, Extremes], *, check_finite: bool
) -> Fault | None:
    """The first fault of watched tensors, or None.

    The sum of absolute values shows NaN for certain: engines differ in whether a minimum does.
    """
    for name, extremes in inner.items():
        known = limits.get(name)
        if known is not None and _inside(extremes, known):
            continue
        found = (check_finite and _not_finite(extremes, known)) or (known and _beyond(extremes, known))
        if found:
            return Fault("inner", name, found)
    return None


def _limits(calls: Sequence[Extremes], lengths_vary: bool) -> InnerLimits | None:
    lows, highs, sums = (np.concatenate([np.asarray(call[part], np.float64) for call in calls]) for part in range(3))
    filled = ~(lows > highs)
    if not filled.any():
        return None
    allows_nan = bool(np.isnan(sums).any())
    lowest, highest = _least(lows[filled]), -_least(-highs[filled])
    largest = max((abs(end) for end in (lowest, highest) if math.isfinite(end)), default=0.0)
    width = highest - lowest if math.isfinite(highest - lowest) else largest
    reach = (_MARGIN - 1) * max(width, _LEAST_WIDTH * largest, 1e-6)
    l1 = math.inf if lengths_vary or not np.isfinite(sums).all() else max(_MARGIN * float(sums.max()), 1e-6)
    return InnerLimits((lowest, highest), lowest - reach, highest + reach, l1, allows_nan)


def _least(values: Array) -> float:
    """The lowest value that is a number; -inf when there is none."""
    numbers = values[~np.isnan(values)]
    return float(numbers.min()) if numbers.size else -math.inf


def _not_finite(extremes: Extremes, known: InnerLimits | None) -> str:
    """Rows with NaN; with infinity too where no limits are known that would tell."""
    bad = np.isnan(extremes.l1) & (known is None or not known.allows_nan)
    if known is None:
        bad |= (extremes.low <= extremes.high) & (np.isinf(extremes.low) | np.isinf(extremes.high))
    rows = np.flatnonzero(bad)
    return f"{rows.size} of {bad.size} rows hold NaN or infinity, the first is {rows[0]}" if rows.size else ""


def _inside(extremes: Extremes, limits: InnerLimits) -> bool:
    """Whether all rows are in range, and none holds NaN: nearly always, and told in microseconds."""
    low, high, l1 = extremes
    return l1.size == 0 or bool(low.min() >= limits.low and high.max() <= limits.high and l1.max() <= limits.l1)


def _beyond(extremes: Extremes, limits: InnerLimits) -> str:
    """What is out of range, of rows that hold anything: without values the lowest is above the highest."""
    low, high, l1 = extremes
    for values, bad, what, limit in (
        (low, low < limits.low, "lowest value", limits.low),
        (high, high > limits.high, "highest value", limits.high),
        (l1, l1 > limits.l1, "sum of absolute values", limits.l1),
    ):
        rows = np.flatnonzero(bad & (low <= high))
        if rows.size:
            allowed = f"at {'least' if values is low else 'most'} {limit:.6g} is allowed"
            golden = f"the golden inputs gave {limits.golden[0]:.6g} to {limits.golden[1]:.6g}"
            first = f"the first is {rows[0]}: its {what} is {values[rows[0]]:.6g}, {allowed}"
            return f"{rows.size} of {values.size} rows are out of range, {first}; {golden}"
    return ""
