"""Tries a policy on the twin before it is used: the last minutes' requests again, with latencies as measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict

from sanderling.core.errors import DataError
from sanderling.run.emulation.table import LatencyTable, TableDevice, TableEntry, Thermal
from sanderling.run.policy import NEVER
from sanderling.run.policy.document import Policy
from sanderling.twin.contenders import of_policy
from sanderling.twin.simulate import Played, play
from sanderling.twin.summary import in_time, summarize
from sanderling.twin.traces import Trace

if TYPE_CHECKING:
    from sanderling.serve.live import Arrival
    from sanderling.serve.snapshot import Sample

_LEAST_SAMPLES = 20  # to tell a device's heat from
_LEAST_RISE_C = 2.0
_LEAST_CHANGE = 0.1  # of the share of time that it was busy
_LEAST_EXPLAINED = 0.5  # of the temperature's changes


class PolicyOutcome(BaseModel):
    """What a policy makes of the requests.

    Attributes:
        in_time: share of the requests, in [0, 1].
        p99_ms: of those that were done; None where none was.
        highest_c: by device, where its heat is known.
    """

    model_config = ConfigDict(frozen=True)

    in_time: float
    dropped: int
    p50_ms: float | None
    p99_ms: float | None
    switches: int
    device_shares: dict[str, float]
    highest_c: dict[str, float]


class Trial(BaseModel):
    """Two policies on the same requests.

    Attributes:
        seconds: from the first request to the last.
        notes: what the twin does not know.
    """

    model_config = ConfigDict(frozen=True)

    requests: int
    seconds: float
    current: PolicyOutcome
    proposed: PolicyOutcome
    notes: tuple[str, ...]


def try_policy(
    proposed: Policy,
    current: Policy,
    arrivals: Sequence[Arrival],
    latencies: Mapping[str, Mapping[str, Mapping[int, float]]],
    kinds: Mapping[str, str],
    samples: Sequence[Sample],
) -> Trial:
    """Play the same requests with both policies.

    Args:
        proposed: new policy.
        current: that is used now.
        arrivals: that came, oldest first.
        latencies: measured milliseconds by model, device and rows.
        kinds: of the devices.
        samples: seconds that heat is told from.

    Raises:
        DataError: no request came, or none of the models was measured.
        OptionError, UnavailableError: the policy does not fit the models or the devices.
    """
    known = [arrival for arrival in arrivals if latencies.get(arrival.model)]
    if not known:
        raise DataError("no request has come in the last ten minutes that could be played again: send some first")
    devices, notes = _devices(latencies, kinds, samples)
    table = LatencyTable(
        source="measured while serving",
        devices=devices,
        models={
            model: {device: TableEntry(latency_ms=dict(sizes)) for device, sizes in measured.items()}
            for model, measured in latencies.items()
            if measured
        },
    )
    default_ms = current.deadlines.default
    trace = trace_of_arrivals(known, NEVER if default_ms is None else default_ms)
    heat_known = {device for device in devices if devices[device].thermal.r_c_per_w}
    outcomes = [
        _outcome(play(of_policy(name, policy, trace.models, table), trace, table), heat_known)
        for name, policy in (("current", current), ("proposed", proposed))
    ]
    return Trial(
        requests=len(trace),
        seconds=round(float(trace.time_ms[-1]) / 1e3, 1),
        current=outcomes[0],
        proposed=outcomes[1],
        notes=tuple(notes),
    )


def _devices(
    latencies: Mapping[str, Mapping[str, Mapping[int, float]]], kinds: Mapping[str, str], samples: Sequence[Sample]
) -> tuple[dict[str, TableDevice], list[str]]:
    """The devices that were measured, with their heat, and what is not known."""
    notes = []
    devices: dict[str, TableDevice] = {}
    for device in dict.fromkeys(device for measured in latencies.values() for device in measured):
        seconds = [each.devices[device] for each in samples if device in each.devices]
        thermal = fit_heat([(second.busy, second.temperature_c) for second in seconds])
        if thermal is None:
            notes.append(f"the heat of {device} is not known: it stays cold here")
            thermal = Thermal(r_c_per_w=0.0)
        # r is in °C for full use: a busy device draws one watt here
        described = {"kind": kinds[device], "power_w": 1.0, "idle_w": 0.0, "thermal": thermal}
        devices[device] = TableDevice.model_validate(described)
    notes += [f"no request ran on {device} yet: it is left out here" for device in kinds if device not in devices]
    return devices, notes


def trace_of_arrivals(arrivals: Sequence[Arrival], default_ms: float) -> Trace:
    """The requests as the twin plays them, from 0 on, with a deadline for those that brought none."""
    models = tuple(dict.fromkeys(arrival.model for arrival in arrivals))
    at_s = np.array([arrival.at_s for arrival in arrivals])
    return Trace(
        models=models,
        model=np.array([models.index(arrival.model) for arrival in arrivals]),
        time_ms=(at_s - at_s[0]) * 1e3,
        deadline_ms=np.array([default_ms if each.deadline_ms is None else each.deadline_ms for each in arrivals]),
        priority=np.array([arrival.priority for arrival in arrivals]),
        rows=np.array([arrival.rows for arrival in arrivals]),
    )


def fit_heat(seconds: Sequence[tuple[float, float | None]]) -> Thermal | None:
    """A device's heat, from seconds of use in [0, 1] and of temperature; None where they do not tell.

    T' = (ambient + r·use − T) / τ is linear in 1, use and T: least squares over the seconds' differences.
    """
    known = [(use, celsius) for use, celsius in seconds if celsius is not None]
    if len(known) < _LEAST_SAMPLES:
        return None
    use, celsius = (np.array(column) for column in zip(*known, strict=True))
    if np.ptp(celsius) < _LEAST_RISE_C or np.ptp(use) < _LEAST_CHANGE:
        return None
    change = np.diff(celsius)
    columns = np.stack([np.ones(len(change)), (use[1:] + use[:-1]) / 2, celsius[:-1]], axis=1)  # (n, 3)
    (constant, rise, decay), *_ = np.linalg.lstsq(columns, change, rcond=None)
    left = change - columns @ np.array([constant, rise, decay])
    if decay >= 0 or rise <= 0 or left @ left > (1 - _LEAST_EXPLAINED) * (change @ change):
        return None
    # the step of one second is exact for a decay of exp(-1/τ) = 1 + decay
    tau_s = -1.0 / np.log(max(1.0 + decay, 1e-3))
    ambient_c, rise_c = constant / -decay, rise / -decay
    if not -50 < ambient_c < 150:
        return None
    return Thermal(tau_s=float(tau_s), r_c_per_w=float(rise_c), ambient_c=float(ambient_c))


def _outcome(played: Played, heat_known: set[str]) -> PolicyOutcome:
    summary = summarize(played)
    whole = summary.whole
    done = max(sum(device.requests for device in summary.devices.values()), 1)
    return PolicyOutcome(
        in_time=float(in_time(played).mean()),
        dropped=whole.dropped + whole.rejected,
        p50_ms=whole.latency_ms["p50"] if whole.latency_ms else None,
        p99_ms=whole.latency_ms["p99"] if whole.latency_ms else None,
        switches=len(summary.switches),
        device_shares={name: device.requests / done for name, device in summary.devices.items()},
        highest_c={name: device.highest_c for name, device in summary.devices.items() if name in heat_known},
    )
