"""Learning rates: what an update's rate is, as a function of its number alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

from sanderling.core.errors import OptionError

Kind = Literal["constant", "cosine", "step"]


@dataclass(frozen=True)
class Schedule:
    """How the learning rate changes from update to update.

    Attributes:
        kind: ``constant``; ``cosine``, which falls to ``floor`` along half a cosine; or ``step``, which is multiplied
            by ``factor`` after every ``every`` updates.
        steps: updates in all, for the cosine; 0 lets ``fit`` set what its epochs come to.
        warmup: first updates, in which the rate rises from one part to the whole.
        floor: share of the highest rate that the cosine ends at, in [0, 1].
        every: updates of a step, above 0.
        factor: of a step, in (0, 1].
    """

    kind: Kind = "constant"
    steps: int = 0
    warmup: int = 0
    floor: float = 0.0
    every: int = 100
    factor: float = 0.5

    def with_steps(self, steps: int) -> Schedule:
        """The same over as many updates, where it needs their number and that was left open."""
        return replace(self, steps=steps) if self.kind == "cosine" and not self.steps else self

    def rate(self, peak: float, update: int) -> float:
        """Learning rate of an update.

        Args:
            peak: the highest rate, above 0.
            update: its number, from 0.

        Source: for the cosine, Loshchilov and Hutter, SGDR (ICLR 2017), equation 5 without restarts.
        """
        if update < self.warmup:
            return peak * (update + 1) / (self.warmup + 1)
        if self.kind == "cosine":
            share = min(1.0, (update - self.warmup) / max(1, self.steps - self.warmup))
            return peak * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * share)))
        if self.kind == "step":
            return float(peak * self.factor ** ((update - self.warmup) // self.every))
        return peak


def parse_schedule(text: str) -> Schedule:
    """Read ``cosine``, ``cosine:warmup=10`` or ``step:every=100,factor=0.5``.

    Raises:
        OptionError: another form, an unknown key, or a number outside its range.
    """
    kind, _, rest = text.strip().partition(":")
    if kind not in get_args(Kind):
        raise OptionError(f"schedule '{text}' is unknown: expected {', '.join(get_args(Kind))}, as cosine:warmup=10")
    known = {"constant": ("warmup",), "cosine": ("warmup", "steps", "floor"), "step": ("warmup", "every", "factor")}
    values = parse_numbers(rest, f"schedule '{text}'", known[kind])
    for name in ("steps", "warmup", "every"):
        if name in values and (values[name] != int(values[name]) or values[name] < (name == "every")):
            raise OptionError(f"schedule '{text}': {name} must be a whole number of updates, got {values[name]:g}")
    made = Schedule(
        kind=cast(Kind, kind),
        steps=int(values.get("steps", 0)),
        warmup=int(values.get("warmup", 0)),
        floor=values.get("floor", 0.0),
        every=int(values.get("every", 100)),
        factor=values.get("factor", 0.5),
    )
    if not 0 <= made.floor <= 1 or not 0 < made.factor <= 1:
        raise OptionError(f"schedule '{text}': floor must be in [0, 1] and factor in (0, 1]")
    return made


def parse_numbers(text: str, what: str, known: Sequence[str]) -> Mapping[str, float]:
    """Read ``name=1,other=2e-3``; nothing in an empty text.

    Args:
        text: to read.
        what: it is, for the message.
        known: names that it may have, each once.

    Raises:
        OptionError: another form, a name that is not known or stands twice, or no finite number.
    """
    values: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, separator, number = part.partition("=")
        name = name.strip()
        if not separator or name not in known or name in values:
            fault = "stands twice" if name in values else "is unknown"
            raise OptionError(f"{what}: '{part}' {fault}; expected {', '.join(f'{each}=…' for each in known)}")
        try:
            values[name] = float(number)
        except ValueError:
            values[name] = math.nan
        if not math.isfinite(values[name]):
            raise OptionError(f"{what}: {name} is '{number}': expected a number")
    return values
