"""A device elsewhere: files go there and come back, and commands run there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sanderling.core.errors import EngineError, OptionError, first_line

_KINDS = ("ssh", "hdc")


@dataclass(frozen=True)
class Ran:
    """What a command left on a device: its exit code and what it printed."""

    code: int
    output: str
    errors: str = ""


@dataclass(frozen=True)
class RemoteOptions:
    """How it is measured there.

    Attributes:
        variants: ids; all without any.
        threads: of one call; 0 means all cores there.
        command: that starts Sanderling there.
        runner: folder with `bin/sanderling-run` and `lib/libonnxruntime.so` for the device; None for Sanderling.
    """

    variants: tuple[str, ...] = ()
    threads: int = 0
    batch: int = 1
    warmup: int = 10
    repeats: int = 100
    command: str = "sanderling"
    runner: Path | None = None


class RemoteDevice(Protocol):
    """A device that is reached; ``name`` is what the user called it, without a login.

    Attributes:
        folder: below which temporary folders are made there.
    """

    name: str
    folder: str

    def reach(self) -> None:
        """Check that it answers.

        Raises:
            UnavailableError: the program that reaches devices is missing, or this one does not answer.
        """

    def push(self, file: Path, target: str) -> None:
        """Copy a file there.

        Raises:
            EngineError: it could not be copied.
        """

    def pull(self, source: str, file: Path) -> None:
        """Copy a file here.

        Raises:
            EngineError: it could not be copied.
        """

    def run(self, command: str, *, timeout_s: float) -> Ran:
        """Run a command of its shell.

        Raises:
            EngineError: it took too long, or the connection was lost.
        """


def device_of(on: str) -> RemoteDevice:
    """The device that ``--on`` names.

    Raises:
        OptionError: it is neither ``ssh:HOST`` nor ``hdc:KEY``.
    """
    kind, _, name = on.partition(":")
    if kind not in _KINDS or not name or name.startswith("-"):
        raise OptionError(f"--on '{on}' is no device: expected ssh:[USER@]HOST[:PORT] or hdc:KEY")
    if kind == "ssh":
        from sanderling.measure.remote.ssh import SshDevice

        return SshDevice(name)
    from sanderling.measure.remote.hdc import HdcDevice

    return HdcDevice(name)


def must(device: RemoteDevice, command: str, *, timeout_s: float = 60.0) -> str:
    """Run a command that must end with 0; returns what it printed.

    Raises:
        EngineError: it failed.
    """
    ran = device.run(command, timeout_s=timeout_s)
    if ran.code:
        raise EngineError(f"{device.name}: '{command}' failed: {told_by(ran)}")
    return ran.output


def told_by(ran: Ran) -> str:
    """What a command that failed said first."""
    return first_line(RuntimeError(ran.errors or ran.output or f"exit code {ran.code}"))
