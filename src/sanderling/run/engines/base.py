"""The contract that every engine keeps; `tests/contract` holds each of them to it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from sanderling.core.precision import Precision
from sanderling.core.tensor import Array, Feeds, TensorSpec


class DeviceKind(StrEnum):
    """What kind of hardware a device is."""

    CPU = "cpu"
    GPU = "gpu"
    NPU = "npu"


class Fidelity(StrEnum):
    """How far a device can be believed: latency counts on hardware only."""

    HARDWARE = "hardware"
    SOFTWARE = "software"
    SIMULATOR = "simulator"


class Optimization(StrEnum):
    """How much an engine may rewrite the graph before it runs."""

    NONE = "none"
    BASIC = "basic"
    ALL = "all"


@dataclass(frozen=True)
class Availability:
    """Whether an engine is installed; ``hint`` says how to install it when it is not."""

    installed: bool
    version: str = ""
    hint: str = ""


@dataclass(frozen=True)
class DeviceInfo:
    """A device that an engine reaches."""

    engine: str
    device: str
    kind: DeviceKind
    fidelity: Fidelity
    description: str
    memory_bytes: int | None
    precisions: tuple[Precision, ...]


@dataclass(frozen=True)
class EngineOptions:
    """How a graph is loaded.

    Attributes:
        threads: of one call; 0 leaves it to the engine.
        optimization: how much the engine may rewrite.
        lean: prefer little resident memory to the last few percent of speed.
    """

    threads: int = 0
    optimization: Optimization = Optimization.ALL
    lean: bool = False


class Executable(Protocol):
    """A graph that an engine has loaded. Usable from several threads; closed once."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Execute once.

        Args:
            feeds: arrays that fit ``inputs`` (already checked).

        Raises:
            EngineError: execution failed, or the executable is closed.
        """

    def close(self) -> None:
        """Give back what the graph holds; a second call does nothing."""


class Engine(Protocol):
    """Software that executes a graph."""

    name: str

    def availability(self) -> Availability:
        """Whether it is installed here, in which version."""

    def devices(self) -> tuple[DeviceInfo, ...]:
        """Devices that it reaches here."""

    def load(self, model: Path | bytes, options: EngineOptions) -> Executable:
        """Load a graph from a file, or from serialised bytes.

        Raises:
            ModelError: the engine does not take this graph; the message names the operator where it is known.
            EngineError: loading failed for another reason.
        """
