"""Whether a model may be trained now: only while the device has power, memory and coolness to spare, at its hours."""

from __future__ import annotations

from typing import NamedTuple

from sanderling.run.policy import NEVER

DAY_MINUTES = 24 * 60
_COOLER_C = 5.0  # below the limit before training goes on: readings that waver are one pause
_FREER = 0.02  # of the memory, likewise


class TrainingRules(NamedTuple):
    """The policy's numbers.

    Attributes:
        needs_charging: train only on mains power.
        leave_c: °C from which training pauses.
        free_share: of the memory that must be free, in [0, 1); 0 asks for none.
        begin_minute: of the day, from which it may train.
        end_minute: of the day, from which it may not; equal to ``begin_minute`` for the whole day.
    """

    needs_charging: bool = True
    leave_c: float = NEVER
    free_share: float = 0.0
    begin_minute: int = 0
    end_minute: int = 0


class TrainingConditions(NamedTuple):
    """What is known of the device; None for what is not.

    Attributes:
        charging: whether it has mains power.
        temperature_c: of its processor.
        free_share: of its memory.
        minute: of the local day.
    """

    charging: bool | None
    temperature_c: float | None
    free_share: float | None
    minute: int


class Verdict(NamedTuple):
    """Whether training may run, and why not."""

    allowed: bool
    reason: str


ALLOWED = Verdict(True, "")


def may_train(rules: TrainingRules, seen: TrainingConditions, *, training: bool) -> Verdict:
    """Decide for the next step. A limit on what no sensor shows cannot be kept, so that it forbids.

    Args:
        rules: of the policy.
        seen: now.
        training: whether it trained until now: a pause ends a little below the limit that began it.
    """
    if not _in_hours(rules, seen.minute):
        hours = f"{_clock(rules.begin_minute)} to {_clock(rules.end_minute)}"
        return Verdict(False, f"it is {_clock(seen.minute)}, and training is allowed from {hours}")
    if rules.needs_charging and seen.charging is not True:
        return Verdict(
            False, "the device is on battery" if seen.charging is False else "no sensor tells whether it is charging"
        )
    return _cool_and_free(rules, seen, training=training)


def _cool_and_free(rules: TrainingRules, seen: TrainingConditions, *, training: bool) -> Verdict:
    if rules.leave_c != NEVER:
        limit_c = rules.leave_c if training else rules.leave_c - _COOLER_C
        if seen.temperature_c is None:
            return Verdict(False, f"no sensor shows the temperature that {rules.leave_c:g} °C are a limit of")
        if seen.temperature_c >= limit_c:
            return Verdict(False, f"the processor has {seen.temperature_c:g} °C, less than {limit_c:g} °C are allowed")
    if rules.free_share > 0:
        least = rules.free_share if training else min(rules.free_share + _FREER, 1.0)
        if seen.free_share is None:
            return Verdict(False, "it is not known how much memory is free")
        if seen.free_share < least:
            return Verdict(False, f"{100 * seen.free_share:.0f} % of the memory is free, {100 * least:.0f} % must be")
    return ALLOWED


def _in_hours(rules: TrainingRules, minute: int) -> bool:
    if rules.begin_minute == rules.end_minute:
        return True
    if rules.begin_minute < rules.end_minute:
        return rules.begin_minute <= minute < rules.end_minute
    return minute >= rules.begin_minute or minute < rules.end_minute


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"
