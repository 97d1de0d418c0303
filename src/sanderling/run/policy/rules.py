"""From a policy file to the numbers that the decisions take; every host translates here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sanderling.core.errors import OptionError, UnavailableError
from sanderling.run.policy import NEVER
from sanderling.run.policy.batching import BatchRules
from sanderling.run.policy.breaker import BreakerRules
from sanderling.run.policy.document import Policy, device_names
from sanderling.run.policy.memory import MemoryRules
from sanderling.run.policy.placement import LaneRule, RecoveryRule
from sanderling.run.policy.scheduling import SchedulingRules
from sanderling.run.policy.training import TrainingRules


class DeviceOrder(NamedTuple):
    """Devices that are here, the preferred one first, and names of the policy that none of them answers to."""

    devices: tuple[str, ...]
    absent: tuple[str, ...]


def scheduling_rules(policy: Policy) -> SchedulingRules:
    """How requests are ordered, dropped and spilled."""
    section = policy.scheduling
    return SchedulingRules(
        utilization_cap=section.utilization_cap,
        cap_applies_to=section.cap_applies_to,
        time_slice_ms=section.time_slice,
        queue_limit=section.queue_limit,
        spill=section.spill,
        drop_late=policy.deadlines.drop_late,
        patience_ms=policy.deadlines.patience,
    )


def batch_rules(policy: Policy, profiles: Sequence[int] = ()) -> BatchRules:
    """How a model is batched.

    Args:
        policy: whose own profiles, if it has any, are kept as well.
        profiles: batch sizes that the model can be called with; any size without them.

    Raises:
        OptionError: the model has none of the policy's profiles.
    """
    section = policy.batch_tuning
    wanted, given = set(section.profiles), set(profiles)
    common = sorted(wanted & given if wanted and given else wanted | given)
    if (wanted or given) and not common:
        raise OptionError(
            f"batchTuning.profiles are {_listed(sorted(wanted))}, the model runs batches of {_listed(sorted(given))}: "
            f"name at least one of these"
        )
    largest = min(section.max_batch_size, common[-1]) if common else section.max_batch_size
    return BatchRules(
        min_rows=min(section.min_batch_size, largest),
        max_rows=largest,
        target_ms=section.latency_target,
        profiles=tuple(common),
    )


def recovery_rule(policy: Policy) -> RecoveryRule:
    """When a slow device is left, and how long it is held off."""
    section = policy.recovery
    return RecoveryRule(section.slow_batches, section.hold_off, section.longest_hold_off)


def lane_rule(policy: Policy, name: str, device: str, kind: str) -> LaneRule:
    """When a way of running is left.

    Args:
        policy: with thresholds by device or kind.
        name: of the lane.
        device: that it occupies, such as ``gpu:0``.
        kind: of that device: ``npu``, ``gpu`` or ``cpu``.
    """
    threshold = policy.threshold(device, kind)
    return LaneRule(
        name,
        device,
        slow_ms=NEVER if threshold.latency is None else threshold.latency,
        leave_c=NEVER if threshold.temp is None else threshold.temp,
        return_c=NEVER if threshold.return_c is None else threshold.return_c,
    )


def memory_rules(policy: Policy) -> MemoryRules:
    """What a pool keeps loaded, and what it frees first."""
    return MemoryRules(
        max_models=policy.max_model_cache,
        max_bytes=NEVER if policy.max_model_bytes is None else policy.max_model_bytes,
        threshold=policy.emergency_release.threshold,
        release_order=policy.emergency_release.release_order,
    )


def training_rules(policy: Policy) -> TrainingRules:
    """When a model may be trained."""
    section = policy.training
    begin, end = section.hours.split("-") if section.hours else ("00:00", "00:00")
    return TrainingRules(
        needs_charging=section.charging,
        leave_c=NEVER if section.max_temp is None else section.max_temp,
        free_share=section.free_memory,
        begin_minute=_minute(begin),
        end_minute=_minute(end),
    )


def breaker_rules(policy: Policy) -> BreakerRules:
    """What a failed check leads to."""
    section = policy.guard
    return BreakerRules(section.on_trip, section.breaker_trips, section.breaker_window)


def deadline_at(policy: Policy, *, arrival_ms: float, deadline_ms: float | None) -> float:
    """When a request is due; infinite if never.

    Args:
        policy: whose default counts for requests that bring no deadline.
        arrival_ms: when it came.
        deadline_ms: that it brought, from its arrival on.
    """
    given = policy.deadlines.default if deadline_ms is None else deadline_ms
    return NEVER if given is None else arrival_ms + given


def device_order(policy: Policy, available: Mapping[str, str]) -> DeviceOrder:
    """Which of the devices that are here are used, and in which order.

    Args:
        policy: without priorities, all are used as they come.
        available: kind (``npu``, ``gpu``, ``cpu``) by name of device, the best first.

    Returns:
        For each priority its devices, each once. A name that no device answers to is ``absent``: the host tells it.

    Raises:
        UnavailableError: none of the devices that the policy names is here.
    """
    if not policy.device_priorities:
        return DeviceOrder(tuple(available), ())
    chosen: list[str] = []
    absent: list[str] = []
    for wanted in policy.device_priorities:
        found = [device for device, kind in available.items() if wanted in device_names(device, kind)]
        chosen += [device for device in found if device not in chosen]
        if not found:
            absent.append(wanted)
    if not chosen:
        raise UnavailableError(
            f"devicePriorities names {_listed(policy.device_priorities)}: here are only "
            f"{_listed([f'{device} ({kind})' for device, kind in available.items()]) or 'no devices'}"
        )
    return DeviceOrder(tuple(chosen), tuple(absent))


def _minute(clock: str) -> int:
    hours, minutes = clock.split(":")
    return 60 * int(hours) + int(minutes)


def _listed(items: Sequence[object]) -> str:
    return ", ".join(map(str, items))
