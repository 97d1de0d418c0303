"""What a play says: how much was in time, how late the rest, how warm, at which power."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from sanderling.core.statistics import percentiles
from sanderling.twin.simulate import Outcome, Played

MINUTES = (1, 30)
_ROUNDING_MS = 1e-6  # of sums of milliseconds over hours
Mask = npt.NDArray[np.bool_]


class Part(BaseModel):
    """The requests that arrived in some time, or that are for one model.

    Attributes:
        seconds: from the first possible arrival to the last.
        in_time: were done before their deadline, or had none.
        late: were done after it.
        dropped: were given up before they ran: too late, on arrival or in the queue.
        rejected: found the queue full.
        slo_attainment: in time, as a share of all.
        goodput_per_s: in time, a second.
        latency_ms: of what was done, p50, p95, p99, min and mean; None where nothing was.
    """

    model_config = ConfigDict(frozen=True)

    seconds: float
    requests: int
    in_time: int
    late: int
    dropped: int
    rejected: int
    slo_attainment: float
    goodput_per_s: float
    latency_ms: dict[str, float] | None

    @property
    def misses(self) -> int:
        """Late, dropped and rejected."""
        return self.requests - self.in_time


class DeviceSummary(BaseModel):
    """A device.

    Attributes:
        utilization: share of the time that it was busy.
        requests: that it ran.
        energy_j: that it drew, idle power included.
        highest_c: its highest temperature.
        seconds_above_c: by temperature.
    """

    model_config = ConfigDict(frozen=True)

    utilization: float
    requests: int
    energy_j: float
    highest_c: float
    seconds_above_c: dict[float, float]


class SwitchSummary(BaseModel):
    """A model changed the device that it prefers."""

    model_config = ConfigDict(frozen=True)

    at_s: float
    model: str
    source: str
    target: str
    reason: str


class Summary(BaseModel):
    """A play in numbers.

    Attributes:
        whole: all requests.
        minutes: the first minute and the thirtieth, as far as the trace goes.
        models: by name.
        devices: by name.
        rows_per_call: mean over the requests that ran.
        energy_j: of all devices.
        energy_per_inference_j: of all devices, for each request that was done; None where none was.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    whole: Part
    minutes: dict[int, Part]
    models: dict[str, Part]
    devices: dict[str, DeviceSummary]
    switches: tuple[SwitchSummary, ...]
    rows_per_call: float
    energy_j: float
    energy_per_inference_j: float | None


def summarize(played: Played, thresholds_c: Mapping[str, frozenset[float]] | None = None) -> Summary:
    """Count what a play did.

    Args:
        played: by ``play``.
        thresholds_c: temperatures by device above which seconds are counted.
    """
    trace = played.trace
    seconds = max(math.ceil(float(trace.time_ms[-1]) / 1e3), 1)
    everything = np.ones(len(trace), np.bool_)
    minutes = {
        minute: _part(
            played, (trace.time_ms >= 60e3 * (minute - 1)) & (trace.time_ms < 60e3 * minute), min(60.0, seconds)
        )
        for minute in MINUTES
        if minute == 1 or seconds >= 60 * minute
    }
    tick_s = np.diff(played.tick_ms, prepend=0.0) / 1e3
    energy_j = (played.power_w * tick_s[:, None]).sum(axis=0)
    done = played.outcome == Outcome.DONE
    return Summary(
        name=played.contender.name,
        whole=_part(played, everything, seconds),
        minutes=minutes,
        models={name: _part(played, trace.model == index, seconds) for index, name in enumerate(trace.models)},
        devices={
            name: DeviceSummary(
                utilization=float(np.average(played.busy_share[:, index], weights=tick_s)),
                requests=int((played.device == index).sum()),
                energy_j=float(energy_j[index]),
                highest_c=float(played.temperature_c[:, index].max()),
                seconds_above_c={
                    limit: float(tick_s[played.temperature_c[:, index] > limit].sum())
                    for limit in sorted((thresholds_c or {}).get(name, ()))
                },
            )
            for index, name in enumerate(played.devices)
        },
        switches=tuple(
            SwitchSummary(
                at_s=switch.at_ms / 1e3,
                model=switch.model,
                source=switch.source,
                target=switch.target,
                reason=switch.reason,
            )
            for switch in played.switches
        ),
        rows_per_call=float(played.rows[done].mean()) if done.any() else 0.0,
        energy_j=float(energy_j.sum()),
        energy_per_inference_j=float(energy_j.sum() / done.sum()) if done.any() else None,
    )


def in_time(played: Played) -> Mask:
    """Which requests were done before their deadline, shape (n,); the trace's deadlines count, not a policy's."""
    trace = played.trace
    met: Mask = (played.outcome == Outcome.DONE) & (played.end_ms <= trace.time_ms + trace.deadline_ms + _ROUNDING_MS)
    return met


def _part(played: Played, chosen: Mask, seconds: float) -> Part:
    outcome = played.outcome[chosen]
    done = outcome == Outcome.DONE
    good = int(in_time(played)[chosen].sum())
    latency_ms = (played.end_ms - played.trace.time_ms)[chosen][done]
    return Part(
        seconds=seconds,
        requests=len(outcome),
        in_time=good,
        late=int(done.sum()) - good,
        dropped=int(((outcome == Outcome.REFUSED_LATE) | (outcome == Outcome.DROPPED)).sum()),
        rejected=int((outcome == Outcome.REFUSED_FULL).sum()),
        slo_attainment=good / len(outcome) if len(outcome) else 1.0,
        goodput_per_s=good / seconds,
        latency_ms=percentiles(latency_ms) if len(latency_ms) else None,
    )
