"""The contract that every target keeps; `tests/contract/test_targets.py` holds each of them to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sanderling.core.progress import Progress
from sanderling.model.package import Package

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Tool:
    """A program or a library that a target uses, and whether it is here.

    Attributes:
        hint: how to get it, or where it was found.
    """

    name: str
    found: bool
    version: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Refusal:
    """What a target does not take of a graph.

    Attributes:
        operator: such as ``Conv``; ``input`` or ``output`` for a tensor's shape or dtype.
        nodes: names of the nodes, or of the tensors.
        rewrite: what helps; empty where nothing is known to.
        automatic: the export does the rewrite by itself, exactly.
    """

    operator: str
    nodes: tuple[str, ...]
    reason: str
    rewrite: str = ""
    automatic: bool = False


@dataclass(frozen=True)
class Proof:
    """Something that was checked while the files were made.

    Attributes:
        what: was compared with what.
        on: what executed it, such as ``OpenVINO 2026.4.1 on x86-64``.
        value: that was found; None where the answer is yes or no.
        limit: that ``value`` was held against; None where there is none.
    """

    what: str
    on: str
    value: float | None
    limit: float | None
    passed: bool


@dataclass(frozen=True)
class Exported:
    """What a target wrote.

    Attributes:
        files: relative path in the folder to what it is; every file that was written.
        tool: which converter was used, with its version.
        proofs: what was verified here.
        remaining: what only the device can show.
        next_steps: commands, in their order.
        notes: what whoever uses the files must know, and what was found on the way.
        details: of the target's own, as plain values for ``export.json``.
    """

    files: Mapping[str, str]
    tool: str
    proofs: tuple[Proof, ...]
    remaining: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class ExportRequest:
    """What is exported, how, and where to.

    Attributes:
        package: opened, its hashes hold.
        folder: an empty temporary folder, which is renamed to ``--output`` when all is done.
        device: one of the target's.
        variant: id that was asked for, or None: ``Target.variants`` chooses.
        options: each of the target's own names.
        progress: told about stages, steps and events.
    """

    package: Package
    folder: Path
    device: str
    variant: str | None
    options: Mapping[str, str]
    progress: Progress


class Target(Protocol):
    """A kind of devices, and the form that their software reads. Its file calls it ``TARGET``.

    Attributes:
        devices: that may be asked for; the first is the default.
        options: name to help, for ``--option NAME=VALUE``.
    """

    name: str
    summary: str
    devices: tuple[str, ...]
    options: Mapping[str, str]

    def tools(self) -> Sequence[Tool]:
        """The programs and libraries that an export may use; quick, nothing is started."""

    def variants(self, package: Package, wanted: str | None) -> tuple[str, ...]:
        """Ids of the package's variants that an export takes; only ``wanted`` where it is named.

        Raises:
            OptionError: the package has no such variant, or the target takes none of its kind.
        """

    def check(self, model: onnx.ModelProto, device: str) -> tuple[Refusal, ...]:
        """Each operator, opset, shape and dtype that the target refuses, before any conversion.

        Args:
            model: a checked graph with its weights in memory; it is left alone.
            device: one of ``devices``.
        """

    def export(self, request: ExportRequest) -> Exported:
        """Write the files into ``request.folder`` and prove them; every refusal was found by ``check`` before.

        Raises:
            OptionError: a value of an option, or a combination that excludes itself.
            UnavailableError: a tool is missing; the message says how to get it.
            ModelError: the graph cannot be brought into the target's form.
            EngineError: a tool failed, crashed or took too long.
        """


def chosen_variant(package: Package, wanted: str | None) -> tuple[str, ...]:
    """The variant that was asked for, or the one that the package chose: ``Target.variants`` of most targets.

    Raises:
        OptionError: the package has no such variant.
    """
    return (package.variant(wanted).id,)
