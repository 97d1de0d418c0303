"""`sanderling check`: what a target refuses of a graph, before anything is converted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sanderling.core.errors import ModelError
from sanderling.core.progress import Progress, Silent
from sanderling.model.graph import read_graph
from sanderling.model.package import Package, is_package
from sanderling.run.session import check_one_graph
from sanderling.workshop.targets import choose_device, target
from sanderling.workshop.targets.base import Refusal, Target

_NAMED = 3


@dataclass(frozen=True)
class CheckResult:
    """What a target says about a model; of a package, about each variant that an export would take."""

    model: str
    target: str
    device: str
    refusals: dict[str, tuple[Refusal, ...]]

    @property
    def accepted(self) -> bool:
        """Whether an export can do all that is needed by itself."""
        return all(refusal.automatic for refused in self.refusals.values() for refusal in refused)

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {**asdict(self), "accepted": self.accepted}


def check(
    path: str | Path,
    *,
    target_name: str,
    device: str | None = None,
    variant: str | None = None,
    progress: Progress | None = None,
) -> CheckResult:
    """Ask a target what it refuses; arguments and errors are those of ``sanderling.check``."""
    progress, file, found = progress or Silent(), Path(path), target(target_name)
    device = choose_device(found, device)
    if is_package(file) or file.name.endswith((".sdl", ".sdl.zip")):
        package = Package.open(file)
        check_one_graph(package)
        variants = found.variants(package, variant)
        progress.stage(f"check for {found.name}", len(variants))
        return CheckResult(file.name, found.name, device, variant_refusals(found, package, variants, device, progress))
    progress.stage(f"check for {found.name}", 1)
    refused = found.check(read_graph(file), device)
    progress.advance()
    return CheckResult(file.name, found.name, device, {"": refused})


def variant_refusals(
    found: Target, package: Package, variants: Sequence[str], device: str, progress: Progress
) -> dict[str, tuple[Refusal, ...]]:
    """By variant, what a target refuses of it."""
    refusals = {}
    for identifier in variants:
        refusals[identifier] = found.check(read_graph(package.file(package.variant(identifier).file)), device)
        progress.advance()
    return refusals


def require_accepted(refusals: Sequence[Refusal], target_name: str, subject: str) -> None:
    """Check that an export can do all that is needed by itself.

    Raises:
        ModelError: it cannot; the message names operators and nodes, and what helps.
    """
    open_ones = [refusal for refusal in refusals if not refusal.automatic]
    if open_ones:
        told = "; ".join(describe(refusal) for refusal in open_ones)
        raise ModelError(f"{target_name} does not take {subject}: {told}; see sanderling check")


def describe(refusal: Refusal) -> str:
    """A refusal in one line."""
    more = f" and {len(refusal.nodes) - _NAMED} more" if len(refusal.nodes) > _NAMED else ""
    nodes = ", ".join(f"'{name}'" for name in refusal.nodes[:_NAMED])
    helps = f" ({refusal.rewrite})" if refusal.rewrite else ""
    return f"{refusal.operator} {nodes}{more}: {refusal.reason}{helps}"
