"""What was measured on a device, as the package's evidence keeps it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from sanderling.core.errors import NotMetError, PackageError
from sanderling.measure.bench import BenchResult
from sanderling.measure.checks import Check
from sanderling.measure.remote.devices import RemoteDevice
from sanderling.model.package import EVIDENCE, Package, rewrite_manifest


class DeviceBench(BaseModel):
    """One run on a device.

    Attributes:
        on: as it was named, without a login.
        way: by ``sanderling`` there, or by the ``runner`` of an export to OpenHarmony.
        checks: what was verified there before.
        result: what was timed; of the runner, ``memory_bytes`` is the most that its process had.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    on: str
    way: Literal["sanderling", "runner"]
    checks: tuple[Check, ...]
    result: BenchResult


def require_passed(checks: Sequence[Check], device: RemoteDevice) -> None:
    """Numbers of a device that computes something else do not count.

    Raises:
        NotMetError: a check does not hold.
    """
    wrong = "; ".join(f"{check.name}: {check.detail}" for check in checks if not check.passed)
    if wrong:
        raise NotMetError(f"{device.name} does not compute what the package says: {wrong}; nothing was kept")


def keep(path: str | Path, found: DeviceBench) -> None:
    """Put a run into the package's evidence, in the place of an earlier one on the same device.

    Raises:
        PackageError: the package, or its evidence, is broken.
        OutputError: it cannot be written; it stays as it was.
    """
    package = Package.open(path)
    evidence = _evidence(package)
    evidence["devices"] = {**evidence.get("devices", {}), found.on: found.model_dump(mode="json")}
    text = json.dumps(evidence, indent=1, ensure_ascii=False) + "\n"
    rewrite_manifest(package, package.manifest, Path(path), {EVIDENCE: text})


def _evidence(package: Package) -> dict[str, Any]:
    path = package.file(EVIDENCE)
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise PackageError(f"{path} is no JSON: build the package again") from error
    if not isinstance(found, dict) or not isinstance(found.get("devices", {}), dict):
        raise PackageError(f"{path} is no evidence: build the package again")
    return found
