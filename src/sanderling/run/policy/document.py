"""The policy file: which device, when to leave it, how to batch, what to free, what to check."""

from __future__ import annotations

import difflib
import inspect
import json
import re
import reprlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel

from sanderling.core.errors import OptionError
from sanderling.core.json_text import json_object
from sanderling.core.precision import Precision

POLICY = "policy.json"
_FILE_LIMIT_BYTES = 1 << 20
_COOLDOWN_C = 10.0
_SHOWN = 60  # characters of a key or a value in a message
_REMARKS = ("$schema", "$comment")  # keys that any section may have, and that mean nothing
_WORDS = {
    "model_type": "must be an object",
    "dict_type": "must be an object",
    "tuple_type": "must be a list",
    "missing": "a value is missing",
}
_RELEASABLE = {"tensorPool": "tensorPool", "tensors": "tensorPool", "models": "models", "modelCache": "models"}
_SHARE_SCHEMA = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0, "maximum": 100},
        {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*%\s*$"},
    ]
}
_FREE_SCHEMA = {"anyOf": [{"type": "number", "minimum": 0, "maximum": 100}, _SHARE_SCHEMA["anyOf"][1]]}
_HOURS = r"^([01][0-9]|2[0-3]):[0-5][0-9]-([01][0-9]|2[0-3]):[0-5][0-9]$"


def _folded(text: str) -> str:
    return text.replace("_", "").lower()


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    twice = next((value for at, value in enumerate(values) if value in values[:at]), None)
    if twice is not None:
        raise ValueError(f"'{twice}' stands twice")
    return values


def _device(name: str) -> str:
    if not name.strip():
        raise ValueError("a device needs a name")
    return name.strip().lower()


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
    words = {_folded(word): meant for word, meant in _RELEASABLE.items()}
    return words.get(_folded(value), value) if isinstance(value, str) else value


Number = Annotated[float, Strict()]
Count = Annotated[int, Strict()]
Flag = Annotated[bool, Strict()]
DeviceName = Annotated[str, AfterValidator(_device)]
Share = Annotated[Number, BeforeValidator(_share), Field(gt=0, le=1), WithJsonSchema(_SHARE_SCHEMA)]
Releasable = Annotated[
    Literal["tensorPool", "models"],
    BeforeValidator(_releasable),
    WithJsonSchema({"enum": [*_RELEASABLE, "tensor_pool", "model_cache"]}),
]
Step = Annotated[
    Precision,
    BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
    WithJsonSchema({"enum": [*Precision, *(precision.upper() for precision in Precision)]}),
]
Size = Annotated[Count, Field(ge=1, le=4096)]
Distinct = AfterValidator(_distinct)


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _without_remarks(cls, value: object) -> object:
        return {key: item for key, item in value.items() if key not in _REMARKS} if isinstance(value, dict) else value


class FallbackThreshold(_Section):
    """When a device is left, and when it may be used again.

    Attributes:
        latency: milliseconds of one batch; more than this several times in a row leaves the device.
        temp: °C from which the device is left.
        cooldown_temp: °C down to which it must cool before it is used again; 10 °C below ``temp`` by default.
        sensor: name, or a part of it, of the temperature sensor that counts; found by well-known names by default.
    """

    latency: Number | None = Field(None, gt=0)
    temp: Number | None = Field(None, gt=-50, lt=200)
    cooldown_temp: Number | None = Field(None, gt=-50, lt=200)
    sensor: str | None = None

    @model_validator(mode="after")
    def _cools_down(self) -> FallbackThreshold:
        if self.cooldown_temp is not None and self.temp is None:
            raise ValueError("cooldownTemp needs a temp")
        if self.cooldown_temp is not None and self.temp is not None and self.cooldown_temp >= self.temp:
            raise ValueError(f"cooldownTemp {self.cooldown_temp:g} must be below temp, which is {self.temp:g}")
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
        slow_batches: batches in a row over the latency threshold before the device is left.
        hold_off: milliseconds before it is tried again; doubled each time that it fails again.
        longest_hold_off: milliseconds that this is doubled to at most.
        hang_timeout: milliseconds after which a call counts as hung.
        loading: ``lazy`` loads a fallback when it is needed, ``hot`` loads all of them at once.
    """

    slow_batches: Count = Field(3, ge=1)
    hold_off: Number = Field(10_000, gt=0)
    longest_hold_off: Number = Field(300_000, gt=0)
    hang_timeout: Number = Field(60_000, gt=0)
    loading: Literal["lazy", "hot"] = "lazy"

    @model_validator(mode="after")
    def _ordered(self) -> Recovery:
        if self.hold_off > self.longest_hold_off:
            raise ValueError(f"holdOff {self.hold_off:g} is more than longestHoldOff {self.longest_hold_off:g}")
        return self


class BatchTuning(_Section):
    """How many rows of several callers run in one call.

    Attributes:
        min_batch_size: rows that the steering never goes below; a request that is alone runs alone.
        max_batch_size: most rows of one call.
        latency_target: milliseconds that one call may take.
        profiles: the only sizes that a call may have, filled up with zeros; any size by default.
    """

    min_batch_size: Count = Field(1, ge=1)
    max_batch_size: Size = 8
    latency_target: Number = Field(16.67, gt=0)
    profiles: Annotated[tuple[Size, ...], Distinct] = ()

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

    default: Number | None = Field(None, gt=0)
    drop_late: Flag = True
    patience: Number = Field(1_000, gt=0)


class Scheduling(_Section):
    """How several models share the devices.

    Attributes:
        utilization_cap: share of a device's time that ``cap_applies_to`` may fill, so that bursts find room.
        cap_applies_to: ``background`` (priority below 0) or ``all``.
        time_slice: milliseconds that one call may take while other models wait for the device.
        queue_limit: requests of one model that may wait.
        when_full: ``reject`` the next request, or let its caller ``wait``.
        spill: use another device that is free for any request that it finishes sooner (``earliest``), only for
            requests that would be late on their own (``deadline``), for these until their own device is busy for more
            than ``utilization_cap`` and for any from then on (``balanced``), or ``never``.
    """

    utilization_cap: Share = 0.8
    cap_applies_to: Literal["background", "all"] = "background"
    time_slice: Number = Field(100, gt=0)
    queue_limit: Count = Field(1024, ge=1)
    when_full: Literal["reject", "wait"] = "reject"
    spill: Literal["never", "deadline", "balanced", "earliest"] = "balanced"


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
        breaker_window: milliseconds for which a trip counts.
        reproducers: folder for input, variant, engine and versions of a trip; none are written by default.
    """

    check_finite: Flag = True
    ranges: dict[str, tuple[Number, Number]] = {}
    distribution: Number | None = Field(None, gt=0)
    inner_tensors: Annotated[tuple[str, ...], Distinct] = ()
    shadow_share: Number = Field(0.0, ge=0, le=1)
    shadow_tolerance: Number | None = Field(None, gt=0)
    on_trip: Literal["retry-fp32", "last-good", "raise"] = "retry-fp32"
    breaker_trips: Count = Field(3, ge=1)
    breaker_window: Number = Field(60_000, gt=0)
    reproducers: str | None = None

    @property
    def checks_anything(self) -> bool:
        """Whether results are looked at."""
        watches = self.check_finite or self.ranges or self.inner_tensors
        return bool(watches or self.distribution is not None or self.shadow_share)

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
    release_order: Annotated[tuple[Releasable, ...], Distinct] = ("tensorPool", "models")


class Training(_Section):
    """When a model may be trained on the device.

    Attributes:
        charging: only while the device has mains power.
        max_temp: °C of the processor from which training pauses; no limit by default.
        sensor: name, or a part of it, of the temperature sensor that counts; found by well-known names by default.
        free_memory: share of the memory that must be free; ``0.2``, ``20`` or ``"20%"``; 0 asks for none.
        hours: local time within which it may train, such as ``22:00-06:00``; the whole day by default.
    """

    charging: Flag = True
    max_temp: Number | None = Field(None, gt=-50, lt=200)
    sensor: str | None = None
    free_memory: Annotated[Number, BeforeValidator(_share), Field(ge=0, lt=1), WithJsonSchema(_FREE_SCHEMA)] = 0.1
    hours: Annotated[str, Field(pattern=_HOURS)] | None = None


_MEMORY = "memoryPolicy"
_MEMORY_KEYS = ("maxModelCache", "maxModelBytes", "tensorPoolSize", "emergencyRelease")


class Policy(_Section):
    """A policy file.

    Attributes:
        device_priorities: kinds (``npu``, ``gpu``, ``cpu``) or names of devices, the best first; case does not matter.
        fallback_thresholds: by device.
        precision_ladder: precisions that a device runs, the preferred one first; the next one is taken where a
            device is too slow. The chosen variant alone by default.
        max_model_cache: models that a pool keeps loaded.
        max_model_bytes: bytes that these may hold together; no limit by default.
        tensor_pool_size: buffers of each kind that are kept for batches.
        sensor_interval: milliseconds from one reading of the sensors to the next.
        isolation: ``thread`` runs engines in this process, ``process`` in one of their own.
        training: when a model may be trained on the device.
    """

    device_priorities: Annotated[tuple[DeviceName, ...], Distinct] = ()
    fallback_thresholds: dict[DeviceName, FallbackThreshold] = {}
    recovery: Recovery = Recovery()
    precision_ladder: Annotated[tuple[Step, ...], Distinct] = ()
    batch_tuning: BatchTuning = BatchTuning()
    deadlines: Deadlines = Deadlines()
    scheduling: Scheduling = Scheduling()
    guard: Guard = Guard()
    max_model_cache: Count = Field(3, ge=1)
    max_model_bytes: Count | None = Field(None, ge=1)
    tensor_pool_size: Count = Field(5, ge=0)
    emergency_release: EmergencyRelease = EmergencyRelease()
    sensor_interval: Number = Field(1_000, gt=0)
    isolation: Literal["thread", "process"] = "thread"
    training: Training = Training()

    @model_validator(mode="before")
    @classmethod
    def _memory_section(cls, value: object) -> object:
        """The memory keys may stand in a section of their own, as in the article's second file."""
        if not isinstance(value, dict) or _MEMORY not in value:
            return value
        section = value[_MEMORY]
        if not isinstance(section, dict):
            raise ValueError(f"{_MEMORY}: must be an object, got {_shown(section)}")  # noqa: TRY004 - for pydantic
        rest = {key: item for key, item in value.items() if key != _MEMORY}
        section = {key: item for key, item in section.items() if key not in _REMARKS}
        for key in section:
            if key not in _MEMORY_KEYS:
                raise ValueError(_unknown([_MEMORY, str(key)], _MEMORY_KEYS))
            if key in rest:
                raise ValueError(f"'{key}' stands in {_MEMORY} and beside it")
        return rest | section

    @model_validator(mode="before")
    @classmethod
    def _thresholds_distinct(cls, value: object) -> object:
        named = value.get("fallbackThresholds") if isinstance(value, dict) else None
        if isinstance(named, dict):
            try:
                _distinct(tuple(str(name).strip().lower() for name in named))
            except ValueError as error:
                raise ValueError(f"fallbackThresholds: {error}; case does not matter") from error
        return value

    @model_validator(mode="after")
    def _thresholds_of_devices(self) -> Policy:
        for name in self.fallback_thresholds:
            if self.device_priorities and not any(_concerns(name, device) for device in self.device_priorities):
                known = ", ".join(self.device_priorities)
                raise ValueError(f"fallbackThresholds names '{name}', devicePriorities only {known}")
        return self

    def threshold(self, device: str, kind: str = "") -> FallbackThreshold:
        """Of a device: by its whole name (``gpu:0``), by the name before the colon, or by its kind."""
        found = (self.fallback_thresholds.get(name) for name in device_names(device, kind))
        return next((threshold for threshold in found if threshold is not None), FallbackThreshold())

    def to_text(self) -> str:
        """The file's content, every value written out."""
        return json.dumps(self.model_dump(mode="json", by_alias=True), indent=1) + "\n"


def device_names(device: str, kind: str = "") -> tuple[str, ...]:
    """What a policy may call a device, the most exact name first."""
    name = device.strip().lower()
    return name, name.partition(":")[0], kind.lower()


def read_policy(source: str | Path) -> Policy:
    """Read a policy file.

    Raises:
        OptionError: it is missing, no JSON object, has an unknown key or a value that does not fit.
    """
    return parse_policy(policy_text(source), str(source))


def policy_text(source: str | Path) -> str:
    """The text of a policy file, not looked at.

    Raises:
        OptionError: it cannot be read, is too large or no UTF-8.
    """
    path = Path(source)
    try:
        with path.open("rb") as stream:
            data = stream.read(_FILE_LIMIT_BYTES + 1)
        if len(data) > _FILE_LIMIT_BYTES:
            raise OptionError(f"policy {path} is too large: at most {_FILE_LIMIT_BYTES} bytes are read")
        return data.decode("utf-8")
    except OSError as error:
        raise OptionError(f"policy {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"policy {path} cannot be read: it is not UTF-8 text (byte {error.start})") from error


def parse_policy(text: str, name: str = "policy") -> Policy:
    """Read a policy from JSON text; there keys have one spelling, that of the article.

    Raises:
        OptionError: no JSON object, an unknown key, or a value that does not fit.
    """
    try:
        return Policy.model_validate(json_object(text, name), by_alias=True, by_name=False)
    except ValidationError as error:
        raise OptionError(f"{name}: {_fault(error)}") from error


def policy_schema() -> dict[str, Any]:
    """The JSON Schema of policy files."""
    schema = Policy.model_json_schema(by_alias=True)
    sections: dict[str, type[BaseModel]] = {each.__name__: each for each in _Section.__subclasses__()}
    for name, part in ({"Policy": schema} | schema["$defs"]).items():
        for key, meaning in meanings(sections[name]).items():
            part["properties"][key]["description"] = meaning
        for value in part["properties"].values():
            value.pop("title", None)
        part["description"] = inspect.getdoc(sections[name]).splitlines()[0]  # type: ignore[union-attr]
        part["properties"]["$comment"] = {"description": "for readers; means nothing"}
    known = schema["properties"]
    known["$schema"] = {"type": "string", "description": "for editors; means nothing"}
    known[_MEMORY] = {
        "type": "object",
        "description": "the same keys as beside it",
        "additionalProperties": False,
        "properties": {key: known[key] for key in (*_MEMORY_KEYS, "$comment")},
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Sanderling policy"}


def meanings(section: type[BaseModel]) -> dict[str, str]:
    """What each key of a section means: the docstring's words, by the key as files have it."""
    found: dict[str, str] = {}
    _, _, attributes = (inspect.getdoc(section) or "").partition("Attributes:\n")
    for line in attributes.splitlines():
        name, colon, words = line.strip().partition(": ")
        if colon and name in section.model_fields:
            last = to_camel(name)
            found[last] = words
        else:
            found[last] += " " + line.strip()
    named = re.compile("`([a-z]+(_[a-z]+)+)`")
    return {
        key: named.sub(lambda name: f"`{to_camel(name[1])}`", words.replace("``", "`")) for key, words in found.items()
    }


def _concerns(name: str, device: str) -> bool:
    """Whether a threshold's name and a priority's name, each a kind or a device, can mean the same device."""
    kinds = [part.partition(":")[0] for part in (name, device)]
    return name == device or (kinds[0] == kinds[1] and (name in kinds or device in kinds))


def _fault(error: ValidationError) -> str:
    """The first fault in words, with what may have been meant for an unknown key."""
    detail = error.errors()[0]
    place = [str(part) for part in detail["loc"] if part != "[key]"]
    if detail["type"] == "extra_forbidden":
        return _unknown(place, _keys(place[:-1]))
    message = _WORDS.get(detail["type"], detail["msg"].removeprefix("Value error, "))
    message = message.replace("Input should be", "must be")
    if not place:
        return message
    got = "" if detail["type"] == "value_error" else f", got {_shown(detail['input'])}"
    return f"{_joined(place)}: {message}{got}"


def _unknown(place: list[str], known: Iterable[str]) -> str:
    by_folded = {_folded(key): key for key in known}
    near = difflib.get_close_matches(_folded(place[-1]), by_folded, n=1)
    hint = f"did you mean '{by_folded[near[0]]}'?" if near else f"known are {', '.join(by_folded.values())}"
    return f"unknown key '{_joined(place)}'; {hint}"


def _joined(place: list[str]) -> str:
    text = ".".join(part if len(part) <= _SHOWN else f"{part[: _SHOWN - 1]}…" for part in place)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = brief.maxlong = _SHOWN
    return brief.repr(value)


def _keys(place: list[str]) -> list[str]:
    """The keys that a section knows."""
    section: type[BaseModel] = Policy
    if place[:1] == ["fallbackThresholds"]:
        section = FallbackThreshold
    elif place:
        section = type(next(field.default for field in Policy.model_fields.values() if field.alias == place[0]))
    return [field.alias or name for name, field in section.model_fields.items()]
