"""Latency tables: how long each model's batches take on each device, and what the devices draw and bear."""

from __future__ import annotations

import json
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sanderling.core.errors import DataError, OptionError
from sanderling.core.files import replacing
from sanderling.core.json_text import json_object
from sanderling.run.emulation.heat import HeatRule
from sanderling.run.policy import NEVER
from sanderling.run.policy.latency import LatencyModel, from_table

ARTICLE = "article"
_FILE_LIMIT_BYTES = 1 << 24

DeviceKindName = Literal["npu", "gpu", "cpu"]
_KINDS: tuple[DeviceKindName, ...] = ("npu", "gpu", "cpu")
Rows = Annotated[int, Field(ge=1, le=4096)]
Milliseconds = Annotated[float, Field(gt=0, le=1e7)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Thermal(_Section):
    """A device's heat, see ``HeatRule``; ``throttle_c`` is None where it never slows itself down."""

    tau_s: float = Field(90.0, gt=0)
    r_c_per_w: float = Field(12.0, ge=0)
    ambient_c: float = Field(25.0, gt=-50, lt=150)
    throttle_c: float | None = Field(None, gt=-50, lt=200)
    slowdown: float = Field(1.5, ge=1, le=100)

    def rule(self) -> HeatRule:
        """The same as numbers for the heat model."""
        limit_c = NEVER if self.throttle_c is None else self.throttle_c
        return HeatRule(self.tau_s, self.r_c_per_w, self.ambient_c, limit_c, self.slowdown)


class TableDevice(_Section):
    """A device of a table.

    Attributes:
        kind: ``npu``, ``gpu`` or ``cpu``; by default what its name begins with, else ``cpu``.
        power_w: that it draws while it is busy.
        idle_w: that it draws while it is not.
        capacity: calls that run at once, each as fast as alone.
    """

    kind: DeviceKindName | None = None
    power_w: float = Field(3.0, ge=0, le=1e5)
    idle_w: float = Field(0.3, ge=0, le=1e5)
    capacity: int = Field(1, ge=1, le=1024)
    thermal: Thermal = Thermal()

    @model_validator(mode="after")
    def _busy_draws_more(self) -> TableDevice:
        if self.idle_w > self.power_w:
            raise ValueError(f"idle_w {self.idle_w:g} is more than power_w {self.power_w:g}")
        return self


class TableEntry(_Section):
    """A model on a device.

    Attributes:
        latency_ms: of one call, by its number of rows; other numbers lie on straight lines between them, and beyond the
            largest in proportion to the rows.
        jitter: standard deviation of a call's latency, as a share of it.
        fixed: a call has one of these numbers of rows, filled up with zeros.
    """

    latency_ms: dict[Rows, Milliseconds] = Field(min_length=1)
    jitter: float = Field(0.0, ge=0, le=2)
    fixed: bool = False

    @cached_property
    def latency(self) -> LatencyModel:
        """What a policy knows before the first call."""
        return from_table(self.latency_ms)


class LatencyTable(_Section):
    """A table.

    Attributes:
        source: where the numbers come from.
        devices: by name, the best first; names and order of the models' devices where it is empty.
        models: by name, then by device.
    """

    source: str
    devices: dict[str, TableDevice] = {}
    models: dict[str, dict[str, TableEntry]] = Field(min_length=1)

    @model_validator(mode="after")
    def _devices_known(self) -> LatencyTable:
        for model, entries in self.models.items():
            if not entries:
                raise ValueError(f"model '{model}' has no device")
            for device in entries:
                if self.devices and device not in self.devices:
                    raise ValueError(f"model '{model}' runs on '{device}', devices are {', '.join(self.devices)}")
        return self

    @cached_property
    def device_kinds(self) -> dict[str, str]:
        """Kind by name of every device, in order."""
        names = self.devices or dict.fromkeys(device for entries in self.models.values() for device in entries)
        return {name: self.device(name).kind or _kind(name) for name in names}

    def device(self, name: str) -> TableDevice:
        """A device, with the defaults where the table says nothing of it."""
        return self.devices.get(name) or TableDevice()

    def model(self, name: str) -> dict[str, TableEntry]:
        """A model's entries.

        Raises:
            OptionError: the table does not have it.
        """
        if name not in self.models:
            raise OptionError(f"the latency table has no model '{name}': it has {', '.join(self.models)}")
        return self.models[name]

    def with_thermal(self, changes: dict[str, float], device: str | None = None) -> LatencyTable:
        """The same table with other heat, on one device or on all.

        Raises:
            OptionError: an unknown device or key, or a value that does not fit.
        """
        if device is not None and device not in self.device_kinds:
            raise OptionError(f"the latency table has no device '{device}': it has {', '.join(self.device_kinds)}")
        devices = {}
        for name in self.device_kinds:
            entry = self.device(name)
            if device in (None, name):
                try:
                    thermal = Thermal.model_validate(entry.thermal.model_dump() | changes)
                except ValidationError as error:
                    raise OptionError(f"heat of device '{name}': {_fault(error)}") from error
                entry = entry.model_copy(update={"thermal": thermal})
            devices[name] = entry
        return LatencyTable(source=self.source, devices=devices, models=self.models)

    def to_text(self) -> str:
        """The file's content."""
        return json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"


def read_table(source: str | Path) -> LatencyTable:
    """Read a latency table, or take the article's for the word ``article``.

    Raises:
        OptionError: no JSON object, an unknown key, or a value that does not fit.
        DataError: the file is missing or not readable.
    """
    if str(source) == ARTICLE:
        return article_table()
    path = Path(source)
    try:
        if path.stat().st_size > _FILE_LIMIT_BYTES:
            raise DataError(
                f"latency table {path} has {path.stat().st_size} bytes: at most {_FILE_LIMIT_BYTES} are read"
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise DataError(f"cannot read latency table {path}: {reason}; 'article' is the one that is built in") from error
    return _parsed(text, f"latency table {path}")


def article_table() -> LatencyTable:
    """ResNet-18, YOLOv5s, MobileNetV3 and EfficientNet-Lite on NPU, GPU and CPU, as the article prints them."""
    text = (resources.files("sanderling.run.emulation") / "data" / "article.json").read_text("utf-8")
    return _parsed(text, "the article's latency table")


def write_table(path: Path, table: LatencyTable) -> LatencyTable:
    """Write a table; models and devices that the file has already are kept unless the new table has them as well.

    Returns:
        What is in the file now.

    Raises:
        OptionError, DataError: the file is there and no table.
        OutputError: it cannot be written.
    """
    if path.exists():
        old = read_table(path)
        models = dict(old.models)
        for name, entries in table.models.items():
            models[name] = models.get(name, {}) | entries
        devices = {name: old.device(name) for name in old.device_kinds} | {
            name: old.devices.get(name) or table.device(name) for name in table.device_kinds
        }
        source = old.source if table.source in old.source else f"{old.source}; {table.source}"
        table = LatencyTable(source=source, devices=devices, models=models)
    with replacing(path) as scratch:
        scratch.write_text(table.to_text(), encoding="utf-8")
    return table


def _parsed(text: str, name: str) -> LatencyTable:
    try:
        return LatencyTable.model_validate(json_object(text, name))
    except ValidationError as error:
        raise OptionError(f"{name}: {_fault(error)}") from error


def _fault(error: ValidationError) -> str:
    detail = error.errors()[0]
    place = ".".join(str(part) for part in detail["loc"] if part != "[key]")
    if detail["type"] == "extra_forbidden":
        return f"unknown key '{place}'"
    message = detail["msg"].removeprefix("Value error, ")
    return f"{place}: {message}, got {detail['input']!r}" if place else message


def _kind(name: str) -> DeviceKindName:
    """What a name such as ``gpu:0`` or ``openvino/npu`` says of the device's kind."""
    parts = name.lower().replace("/", ":").split(":")
    return next((kind for kind in _KINDS if kind in parts), "cpu")
