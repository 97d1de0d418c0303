"""What the dashboard shows: how the server is set up, and one second of what it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from sanderling.run.conditions import Conditions

if TYPE_CHECKING:
    from sanderling.run.pool import Member
    from sanderling.run.runtime import Runtime
    from sanderling.serve.data_plane import DataPlane, ServedModel


_KINDS = ("npu", "gpu", "cpu")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class LaneParts(NamedTuple):
    """What a lane's name, such as ``openvino/gpu:1/int8``, says."""

    engine: str
    device: str
    precision: str


class ModelSetup(_Part):
    """A version of a model.

    Attributes:
        key: name and version, as samples name it.
        lanes: ways of running it, the preferred one first.
        is_loaded: whether it holds memory now.
        guard: trips, retries, stale results and shadow runs so far.
    """

    key: str
    name: str
    version: str
    lanes: tuple[str, ...]
    is_ready: bool
    is_loaded: bool
    copied_bytes: int
    guard: dict[str, int]


class DeviceSetup(_Part):
    """A device that some model may use.

    Attributes:
        leave_c: temperature from which the policy leaves it; None where it names none.
        return_c: temperature down to which it must cool.
    """

    name: str
    kind: str
    leave_c: float | None
    return_c: float | None


class Setup(_Part):
    """What seldom changes."""

    models: tuple[ModelSetup, ...]
    devices: tuple[DeviceSetup, ...]
    memory_limit_bytes: int | None
    is_ready: bool


class Traffic(_Part):
    """The requests that ended within a second.

    Attributes:
        requests: a second, those that failed among them.
        failed: a second.
        p50_ms: from arrival to result, of those that did not fail; None where there are none.
        p95_ms: likewise.
        p99_ms: likewise.
        waiting: requests in the queue at the end of the second.
        tokens: of text a second; None where none is generated.
    """

    requests: float = 0.0
    failed: float = 0.0
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    waiting: int = 0
    tokens: float | None = None


class ModelSample(Traffic):
    """A model's second.

    Attributes:
        lane: that it used at the end.
        bytes: that it holds: its loaded variants, and buffers for batches.
        batches: requests by the rows of the call that ran them.
    """

    lane: str
    bytes: int
    batches: dict[int, int]


class DeviceSample(_Part):
    """A device's second.

    Attributes:
        busy: share of its recent time, in [0, 1].
        temperature_c: None where no sensor shows it.
    """

    busy: float
    temperature_c: float | None


class Sample(_Part):
    """One second.

    Attributes:
        at_s: its end, seconds since the epoch.
        memory_bytes: used of the limit, by everything on this machine or in this container.
        process_bytes: that this process has resident.
    """

    at_s: float
    total: Traffic
    models: dict[str, ModelSample]
    devices: dict[str, DeviceSample]
    memory_bytes: int | None
    process_bytes: int | None


class LiveEvent(_Part):
    """What was switched, released or given up, and why.

    Attributes:
        model: key of the model that it concerns; empty where it concerns all.
    """

    at_s: float
    model: str
    kind: str
    subject: str
    reason: str


class Snapshot(_Part):
    """Everything the page shows, at one moment."""

    setup: Setup
    sample: Sample


def model_key(model: ServedModel) -> str:
    """Name and version of a model in one word."""
    return f"{model.name}:{model.version}"


def key_of(plane: DataPlane, runtime: Runtime, name: str) -> str:
    """Key of the model that a runtime knows by a name; the name itself where no request can reach it."""
    for model in plane.models:
        if model.session.runtime is runtime and model.session.name == name:
            return model_key(model)
    return name


def lane_parts(name: str) -> LaneParts:
    """Engine, device and variant of a lane's name; empty words where there is no lane."""
    engine, _, rest = name.partition("/")
    device, _, precision = rest.rpartition("/")
    return LaneParts(engine, device, precision)


def describe(plane: DataPlane) -> Setup:
    """How the server is set up now."""
    devices: dict[str, DeviceSetup] = {}
    for model in plane.models:
        for device, kind in model.session.devices.items():
            threshold = model.session.policy.threshold(device, kind)
            known = devices.get(device)
            if known is None or known.leave_c is None:
                devices[device] = DeviceSetup(
                    name=device, kind=kind, leave_c=threshold.temp, return_c=threshold.return_c
                )
    readings = [each.last for each in conditions_of(plane) if each.last is not None]
    return Setup(
        models=tuple(_model(model) for model in plane.models),
        devices=tuple(sorted(devices.values(), key=lambda each: (_KINDS.index(each.kind), each.name))),
        memory_limit_bytes=next((each.memory_limit_bytes for each in readings if each.memory_limit_bytes), None),
        is_ready=plane.is_ready,
    )


def conditions_of(plane: DataPlane) -> tuple[Conditions, ...]:
    """The readers of sensors: the pool's, and those of sessions outside it."""
    own = [model.session.conditions for model in plane.models if model.session.conditions is not None]
    return tuple(dict.fromkeys([plane.pool.conditions, *own]))


def device_samples(plane: DataPlane) -> dict[str, DeviceSample]:
    """How busy and how warm every device is."""
    temperatures_c: dict[str, float] = {}
    for conditions in conditions_of(plane):
        temperatures_c |= conditions.temperatures_c
    busy: dict[str, float] = {}
    for model in plane.models:
        for device in model.session.devices:
            used = model.session.runtime.utilization(device)
            busy[device] = max(busy.get(device, 0.0), used)
    return {
        device: DeviceSample(busy=round(share, 3), temperature_c=_rounded(temperatures_c.get(device), 2))
        for device, share in busy.items()
    }


def held_bytes(session: Member) -> int:
    """What a session's loaded variants and kept buffers take."""
    return session.size_bytes + session.pooled_bytes


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Objects of the same form as one object of columns; None where a row lacks the key.

    Ten minutes of seconds name each key once this way.
    """
    keys = dict.fromkeys(key for row in rows for key in row)
    found: dict[str, Any] = {}
    for key in keys:
        values = [row.get(key) for row in rows]
        nested = any(isinstance(value, dict) for value in values)
        found[key] = columns([value or {} for value in values]) if nested and key != "batches" else values
    return found


def _model(model: ServedModel) -> ModelSetup:
    session = model.session
    return ModelSetup(
        key=model_key(model),
        name=model.name,
        version=model.version,
        lanes=session.lanes,
        is_ready=model.is_ready,
        is_loaded=session.is_loaded,
        copied_bytes=session.copied_bytes,
        guard=session.guard_counts,
    )


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
