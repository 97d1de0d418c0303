"""The contract that every engine keeps; `tests/contract` holds each of them to it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from sanderling.core.errors import OptionError
from sanderling.core.precision import Precision
from sanderling.core.progress import Progress
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
    COMPILE_ONLY = "compile-only"


class Compute(StrEnum):
    """The arithmetic that an engine may use for a graph's float nodes."""

    EXACT = "exact"  # as the graph says
    BF16 = "bf16"
    FP16 = "fp16"


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
    """A device that an engine reaches.

    Attributes:
        device: the engine's name for it in ``EngineOptions.device``.
        fidelity: a simulator or software device is never chosen for its latency.
        precisions: of the variants that it takes.
        computes: arithmetic that it offers for float nodes.
        optimizations: levels at which its rewriting of the graph can be held; only ALL where it does as it likes.
    """

    engine: str
    device: str
    kind: DeviceKind
    fidelity: Fidelity
    description: str
    memory_bytes: int | None
    precisions: tuple[Precision, ...]
    computes: tuple[Compute, ...] = (Compute.EXACT,)
    optimizations: tuple[Optimization, ...] = (Optimization.ALL,)


@dataclass(frozen=True)
class EngineOptions:
    """How a graph is loaded.

    Attributes:
        device: one of the engine's devices, such as ``cpu`` or ``gpu:0``; empty means its first.
        threads: of one call; 0 leaves it to the engine.
        optimization: how much the engine may rewrite.
        compute: arithmetic of float nodes; an engine refuses what it cannot do.
        lean: prefer little resident memory to the last few percent of speed.
        spin: let threads wait busily for the next call; they take the cores of other graphs meanwhile.
        cache: folder for what the engine compiles from this graph; None compiles every time.
    """

    device: str = ""
    threads: int = 0
    optimization: Optimization = Optimization.ALL
    compute: Compute = Compute.EXACT
    lean: bool = False
    spin: bool = True
    cache: Path | None = None


@dataclass(frozen=True)
class Placement:
    """Where a loaded graph runs, as the engine itself tells after loading.

    Attributes:
        device: that was asked for.
        kinds: kind of hardware to the share of nodes that runs there, in [0, 1]; they sum to 1.
        macs: kind of hardware to the share of multiply–accumulates; None where the engine's layers are not the graph's
            nodes, so that it cannot be told.
        fell_back: names of nodes that run elsewhere than asked, as far as the engine names them.
        detail: the engine's own words.
    """

    device: str
    kinds: dict[DeviceKind, float]
    fell_back: tuple[str, ...] = ()
    detail: str = ""
    macs: dict[DeviceKind, float] | None = None

    def share(self, kind: DeviceKind) -> tuple[float, str]:
        """Share that runs on a kind of hardware, in [0, 1], and of what."""
        if self.macs is not None:
            return self.macs.get(kind, 0.0), "multiply–accumulates"
        return self.kinds.get(kind, 0.0), "nodes"


class Executable(Protocol):
    """A graph that an engine has loaded. Usable from several threads; closed once."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    placement: Placement

    @property
    def copied_bytes(self) -> int:
        """Bytes that this side of the engine has copied so far: inputs that the engine cannot read where they lie, and
        results that it cannot write to ``outputs``. What the engine moves inside is not known.
        """

    def run(self, feeds: Feeds, outputs: Feeds | None = None) -> dict[str, Array]:
        """Execute once. No reference to the caller's arrays is kept.

        Args:
            feeds: arrays that fit ``inputs`` (already checked).
            outputs: where the results are written, an array for every output (already checked, see
                ``core.tensor.check_outputs``); without, they are new arrays.

        Returns:
            An array for every output by name; those of ``outputs`` where they are given.

        Raises:
            EngineError: execution failed, an output has another shape than its array in ``outputs``, or the executable
                is closed.
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
            OptionError: an unknown device, or arithmetic that the device does not offer.
            ModelError: the engine does not take this graph; the message names the operator where it is known.
            EngineError: loading failed for another reason.
        """


class Installation(Protocol):
    """What an engine needs of its own in the cache folder, made on request: its file calls it ``ENVIRONMENT``."""

    @property
    def name(self) -> str:
        """The engine's."""

    @property
    def folder(self) -> Path:
        """Where it is, or will be."""

    def install(self, progress: Progress) -> None:
        """Make it, unless it is ready.

        Raises:
            UnavailableError: something that is needed for it is missing; nothing is kept.
            OutputError: the cache folder cannot be written.
        """


def cpu_device(
    engine: str,
    precisions: tuple[Precision, ...],
    *,
    computes: tuple[Compute, ...] = (Compute.EXACT,),
    optimizations: tuple[Optimization, ...] = (Optimization.ALL,),
) -> DeviceInfo:
    """The processor that this process runs on, as an engine uses it."""
    import platform

    import psutil

    return DeviceInfo(
        engine=engine,
        device="cpu",
        kind=DeviceKind.CPU,
        fidelity=Fidelity.HARDWARE,
        description=platform.processor() or platform.machine(),
        memory_bytes=psutil.virtual_memory().total,
        precisions=precisions,
        computes=computes,
        optimizations=optimizations,
    )


def choose_device(devices: tuple[DeviceInfo, ...], options: EngineOptions) -> DeviceInfo:
    """The device that the options name, or the first.

    Raises:
        OptionError: there is no such device, or it does not offer the arithmetic.
    """
    found = next((info for info in devices if not options.device or info.device == options.device), None)
    if found is None:
        known = ", ".join(info.device for info in devices) or "none here"
        raise OptionError(f"engine '{devices[0].engine if devices else ''}' has no device '{options.device}': {known}")
    if options.compute not in found.computes:
        known = ", ".join(found.computes)
        raise OptionError(
            f"{found.engine} on {found.device} does not compute in {options.compute}: available are {known}"
        )
    return found
