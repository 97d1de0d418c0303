"""How warm a device gets: one thermal resistance and one time constant, stepped exactly."""

from __future__ import annotations

import math
from typing import NamedTuple

from sanderling.run.policy import NEVER

_HYSTERESIS_C = 3.0


class HeatRule(NamedTuple):
    """A device's heat.

    Attributes:
        tau_s: time constant: 63 % of a step of power is seen after it.
        r_c_per_w: °C above the ambient temperature for each watt, in the end.
        ambient_c: temperature around it.
        throttle_c: from which the device slows itself down; infinite if it never does.
        slowdown: how many times longer its calls take then, at least 1.
    """

    tau_s: float = 90.0
    r_c_per_w: float = 12.0
    ambient_c: float = 25.0
    throttle_c: float = NEVER
    slowdown: float = 1.5


class Heat(NamedTuple):
    """Temperature, and whether the device slows itself down."""

    temperature_c: float
    throttled: bool = False


def cold(rule: HeatRule) -> Heat:
    """A device that has the temperature of what is around it."""
    return Heat(rule.ambient_c)


def after_power(rule: HeatRule, heat: Heat, *, power_w: float, seconds: float) -> Heat:
    """The heat after so many seconds at a constant power.

    T' = T∞ + (T − T∞)·exp(−t/τ) with T∞ = ambient + r·P; exact for any step. The device slows itself down from
    ``throttle_c`` on, until it is 3 °C below.

    Source: Skadron et al., "Temperature-aware microarchitecture", ISCA 2003, section 3: the RC model of a block.
    """
    final_c = rule.ambient_c + rule.r_c_per_w * power_w
    temperature_c = final_c + (heat.temperature_c - final_c) * math.exp(-seconds / rule.tau_s)
    limit_c = rule.throttle_c - _HYSTERESIS_C if heat.throttled else rule.throttle_c
    return Heat(temperature_c, temperature_c >= limit_c)


def slowdown(rule: HeatRule, heat: Heat) -> float:
    """How many times longer a call takes now."""
    return rule.slowdown if heat.throttled else 1.0
