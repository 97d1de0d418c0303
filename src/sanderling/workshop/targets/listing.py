"""`sanderling export --list`: the targets, their devices and options, and which of their tools are here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sanderling.workshop.targets import TARGETS, target
from sanderling.workshop.targets.base import Tool


@dataclass(frozen=True)
class TargetState:
    """A target as `export --list` shows it."""

    name: str
    summary: str
    devices: tuple[str, ...]
    options: Mapping[str, str]
    tools: tuple[Tool, ...]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return asdict(self)


def list_targets() -> list[TargetState]:
    """Every target, with the state of its tools here."""
    found = [target(name) for name in TARGETS]
    return [
        TargetState(each.name, each.summary, each.devices, dict(each.options), tuple(each.tools())) for each in found
    ]
