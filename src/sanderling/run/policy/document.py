"""The policy file: which device, when to leave it, how to batch, what to free, what to check."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel

from sanderling.core.errors import OptionError
from sanderling.core.json_text import json_object
from sanderling.core.precision import Precision

POLICY = "policy.json"
_FILE_LIMIT_BYTES = 1 << 20
_COOLDOWN_C = 10.0
DeviceName = Annotated[str, AfterValidator(lambda name: name.strip().lower()), Field(min_length=1)]
Share = Annotated[float, BeforeValidator(lambda value: _share(value)), Field(gt=0, le=1)]
Releasable = Annotated[Literal["tensorPool", "models"], BeforeValidator(lambda value: _releasable(value))]


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False
    )


class FallbackThreshold(_Section):
    """When a device is left, and when it may be used again.

    Attributes:
        latency: milliseconds of one batch; more than this several times in a row leaves the device.
        temp: °C from which the device is left.
        cooldown_temp: °C down to which it must cool before it is used again; 10 °C below ``temp`` by default.
        sensor: name, or a part of it, of the temperature sensor that counts; found by well-known names by default.
    """

    latency: float | None = Field(None, gt=0)
    temp: float | None = Field(None, gt=-50, lt=200)
    cooldown_temp: float | None = Field(None, gt=-50, lt=200)
    sensor: str | None = None

    @model_validator(mode="after")
    def _cools_down(self) -> FallbackThreshold:
        if self.cooldown_temp is not None and (self.temp is None or self.cooldown_temp > self.temp):
            raise ValueError(f"cooldownTemp {self.cooldown_temp:g} needs a temp that is not below it")
        return self

    @property
    def return_c(self) -> float | None:
        """Temperature down to which the device must cool."""
        if self.temp is None:
            return None
        return self.cooldown_temp if self.cooldown_temp is not None else self.temp - _COOLDOWN_C


class Recovery(_Section):
    """How a device that was slow or failed is tried again.

    Attributes:
        slow_batches: in a row over the latency threshold before the device is left.
        hold_off: milliseconds before it is tried again; doubled each time that it fails again.
        longest_hold_off: milliseconds at most.
        hang_timeout: milliseconds after which a call counts as hung.
        loading: ``lazy`` loads a fallback when it is needed, ``hot`` loads all of them at once.
    """

    slow_batches: int = Field(3, ge=1)
    hold_off: float = Field(10_000, gt=0)
    longest_hold_off: float = Field(300_000, gt=0)
    hang_timeout: float = Field(60_000, gt=0)
    loading: Literal["lazy", "hot"] = "lazy"


class BatchTuning(_Section):
    """How many rows of several callers run in one call.

    Attributes:
        min_batch_size: the steering never goes below; a request that is alone runs alone.
        max_batch_size: most rows of one call.
        latency_target: milliseconds that one call may take.
        profiles: the only sizes that a call may have, filled up with zeros; any size by default.
    """

    min_batch_size: int = Field(1, ge=1)
    max_batch_size: int = Field(8, ge=1, le=4096)
    latency_target: float = Field(16.67, gt=0)
    profiles: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = ()

    @model_validator(mode="after")
    def _ordered(self) -> BatchTuning:
        if self.min_batch_size > self.max_batch_size:
            raise ValueError(f"minBatchSize {self.min_batch_size} is more than maxBatchSize {self.max_batch_size}")
        return self


class Deadlines(_Section):
    """What late requests meet.

    Attributes:
        default: milliseconds from arrival, for requests that bring none; none by default.
        drop_late: refuse at once what cannot be finished in time, instead of finishing it late.
        patience: milliseconds after which a request without a deadline is as urgent as one that is due now.
    """

    default: float | None = Field(None, gt=0)
    drop_late: bool = True
    patience: float = Field(1_000, gt=0)


class Scheduling(_Section):
    """How several models share the devices.

    Attributes:
        utilization_cap: share of a device's time that ``cap_applies_to`` may fill, so that bursts find room.
        cap_applies_to: ``background`` (priority below 0) or ``all``.
        time_slice: milliseconds that one call may take while other models wait for the device.
        queue_limit: requests of one model that may wait.
        when_full: ``reject`` the next request, or let its caller ``wait``.
        spill: use another device for requests that would be late on their own (``deadline``), for any that it
            finishes sooner (``earliest``), or ``never``.
    """

    utilization_cap: Share = 0.8
    cap_applies_to: Literal["background", "all"] = "background"
    time_slice: float = Field(100, gt=0)
    queue_limit: int = Field(1024, ge=1)
    when_full: Literal["reject", "wait"] = "reject"
    spill: Literal["never", "deadline", "earliest"] = "deadline"


class Guard(_Section):
    """What is checked in results, and what a failed check leads to.

    Attributes:
        check_finite: NaN and infinity in outputs, and in ``inner_tensors``.
        ranges: lowest and highest value of an output, by name.
        distribution: largest distance of an output's mean from that of the golden outputs, in their standard
            deviations; not checked by default.
        inner_tensors: names of tensors inside the graph whose extremes are watched as well.
        shadow_share: share of requests that run in FP32 as well, afterwards, to be compared.
        shadow_tolerance: largest relative error of such a comparison; the package's own by default.
        on_trip: ``retry-fp32``, ``last-good`` (marked stale), or ``raise``.
        breaker_trips: trips within ``breaker_window`` that move the session to FP32.
        breaker_window: milliseconds.
        reproducers: folder for input, variant, engine and versions of a trip; none are written by default.
    """

    check_finite: bool = True
    ranges: dict[str, tuple[float, float]] = {}
    distribution: float | None = Field(None, gt=0)
    inner_tensors: tuple[str, ...] = ()
    shadow_share: float = Field(0.0, ge=0, le=1)
    shadow_tolerance: float | None = Field(None, gt=0)
    on_trip: Literal["retry-fp32", "last-good", "raise"] = "retry-fp32"
    breaker_trips: int = Field(3, ge=1)
    breaker_window: float = Field(60_000, gt=0)
    reproducers: str | None = None

    @model_validator(mode="after")
    def _ranges_ordered(self) -> Guard:
        for name, (low, high) in self.ranges.items():
            if low > high:
                raise ValueError(f"range of '{name}' goes from {low:g} down to {high:g}")
        return self


class EmergencyRelease(_Section):
    """What is freed when memory runs out.

    Attributes:
        threshold: share of the memory limit from which it begins; ``0.9``, ``90`` or ``"90%"``.
        release_order: ``tensorPool`` and ``models``, the first first.
    """

    threshold: Share = 0.9
    release_order: tuple[Releasable, ...] = ("tensorPool", "models")


class Policy(_Section):
    """A policy file.

    Attributes:
        device_priorities: kinds (``npu``, ``gpu``, ``cpu``) or names of devices, the best first; case does not matter.
        fallback_thresholds: by device.
        precision_ladder: precisions that a device runs, the preferred one first; the next one is taken where a
            device is too slow. The chosen variant alone by default.
        max_model_cache: models that a pool keeps loaded.
        max_model_bytes: that they may hold together; no limit by default.
        tensor_pool_size: buffers of each kind that are kept for batches.
        sensor_interval: milliseconds from one reading of the sensors to the next.
        isolation: ``thread`` runs engines in this process, ``process`` in one of their own.
    """

    device_priorities: tuple[DeviceName, ...] = ()
    fallback_thresholds: dict[DeviceName, FallbackThreshold] = {}
    recovery: Recovery = Recovery()
    precision_ladder: tuple[Precision, ...] = ()
    batch_tuning: BatchTuning = BatchTuning()
    deadlines: Deadlines = Deadlines()
    scheduling: Scheduling = Scheduling()
    guard: Guard = Guard()
    max_model_cache: int = Field(3, ge=1)
    max_model_bytes: int | None = Field(None, ge=1)
    tensor_pool_size: int = Field(5, ge=0)
    emergency_release: EmergencyRelease = EmergencyRelease()
    sensor_interval: float = Field(1_000, gt=0)
    isolation: Literal["thread", "process"] = "thread"

    @model_validator(mode="before")
    @classmethod
    def _memory_section(cls, value: object) -> object:
        """The memory keys may stand in a section of their own, as in the article's second file."""
        if isinstance(value, dict) and isinstance(value.get("memoryPolicy"), dict):
            rest = {key: item for key, item in value.items() if key != "memoryPolicy"}
            twice = sorted(rest.keys() & value["memoryPolicy"].keys())
            if twice:
                raise ValueError(f"'{twice[0]}' stands in memoryPolicy and beside it")
            return rest | value["memoryPolicy"]
        return value

    @model_validator(mode="after")
    def _thresholds_of_devices(self) -> Policy:
        if self.device_priorities:
            for name in self.fallback_thresholds:
                if name not in self.device_priorities:
                    known = ", ".join(self.device_priorities)
                    raise ValueError(f"fallbackThresholds names '{name}', devicePriorities only {known}")
        return self

    def threshold(self, device: str) -> FallbackThreshold:
        """Of a device, by its name (``gpu:0``), or by its kind (``gpu``)."""
        named = self.fallback_thresholds
        return named.get(device) or named.get(device.partition(":")[0]) or FallbackThreshold()

    def to_text(self) -> str:
        """The file's content, every value written out."""
        return json.dumps(self.model_dump(mode="json", by_alias=True), indent=1) + "\n"


def read_policy(source: str | Path) -> Policy:
    """Read a policy file.

    Raises:
        OptionError: it is missing, no JSON object, has an unknown key or a value that does not fit.
    """
    path = Path(source)
    try:
        if path.stat().st_size > _FILE_LIMIT_BYTES:
            raise OptionError(f"policy {path} has {path.stat().st_size} bytes: at most {_FILE_LIMIT_BYTES} are read")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise OptionError(f"policy {path} cannot be read: {reason}") from error
    return parse_policy(text, str(path))


def parse_policy(text: str, name: str = "policy") -> Policy:
    """Read a policy from JSON text.

    Raises:
        OptionError: no JSON object, an unknown key, or a value that does not fit.
    """
    try:
        return Policy.model_validate(json_object(text, name))
    except ValidationError as error:
        raise OptionError(f"{name}: {_fault(error)}") from error


def policy_schema() -> dict[str, Any]:
    """The JSON Schema of policy files."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Policy.model_json_schema(by_alias=True),
        "title": "Sanderling policy",
    }


def _fault(error: ValidationError) -> str:
    """The first fault in words, with what may have been meant for an unknown key."""
    detail = error.errors()[0]
    place = [str(part) for part in detail["loc"]]
    if detail["type"] == "extra_forbidden":
        known = _keys(place[:-1])
        near = difflib.get_close_matches(place[-1], known, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(known)}"
        return f"unknown key '{'.'.join(place)}'; {hint}"
    message = detail["msg"].removeprefix("Value error, ")
    return f"{'.'.join(place)}: {message}, got {detail['input']!r}" if place else message


def _keys(place: list[str]) -> list[str]:
    """The keys that a section knows."""
    section: type[BaseModel] = Policy
    for part in place:
        for name, field in section.model_fields.items():
            if part in (name, field.alias) and isinstance(field.default, BaseModel):
                section = type(field.default)
            elif part in (name, field.alias):
                section = FallbackThreshold
    return [field.alias or name for name, field in section.model_fields.items()]


def _share(value: object) -> object:
    """A share from ``0.9``, ``90`` or ``"90%"``."""
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return float(value.strip()[:-1]) / 100
        except ValueError:
            return value
    if isinstance(value, int | float) and not isinstance(value, bool) and 1 < value <= 100:
        return value / 100
    return value


def _releasable(value: object) -> object:
    """The article's words for what can be freed."""
    words = {"tensorpool": "tensorPool", "tensors": "tensorPool", "modelcache": "models", "models": "models"}
    return words.get(value.replace("_", "").lower(), value) if isinstance(value, str) else value
