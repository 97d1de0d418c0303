"""What is kept of a result that failed a check: everything that is needed to run it again."""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from sanderling.core.arrays import read_npz, write_npz
from sanderling.core.errors import DataError, OutputError, first_line
from sanderling.core.machine import Machine, describe_machine
from sanderling.core.tensor import Array, Feeds
from sanderling.model.manifest import Variant
from sanderling.model.package import Package
from sanderling.run.guard.fault import Fault, Kind

LIMIT = 20
INPUT = "input.npz"
OUTPUTS = "outputs.npz"
TRIP = "trip.json"


class Trip(BaseModel):
    """What `trip.json` says.

    Attributes:
        written_at: UTC, ISO 8601.
        package: its name.
        path: of the package, where it was.
        sha256: of the variant's file.
        versions: of the engine and what else the caller knows.
        kind, subject, reason: of the fault.
        inputs: dtype and shape by name.
        outputs: dtype and shape by name.
        commands: to run it again, in the folder of this file: as it was, in FP32, and a check of the package.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    written_at: str
    kind: Kind
    subject: str
    reason: str
    package: str
    path: str
    variant: str
    sha256: str
    engine: str
    device: str
    versions: dict[str, str]
    machine: Machine
    inputs: dict[str, str]
    outputs: dict[str, str]
    commands: dict[str, str]

    @property
    def fault(self) -> Fault:
        """The fault."""
        return Fault(self.kind, self.subject, self.reason)


@dataclass(frozen=True)
class Reproducer:
    """A trip with its arrays."""

    trip: Trip
    feeds: dict[str, Array]
    outputs: dict[str, Array]


def write_reproducer(
    folder: Path,
    *,
    package: Package,
    variant: Variant,
    engine: str,
    device: str,
    versions: Mapping[str, str],
    fault: Fault,
    feeds: Feeds,
    outputs: Mapping[str, Array],
) -> Path | None:
    """Write ``NAME-0001`` with ``input.npz``, ``outputs.npz`` and ``trip.json``, whole or not at all.

    Nothing is ever overwritten, by several processes neither.

    Args:
        folder: made when it is missing.
        package: that ran.
        variant: of it.
        engine: by name.
        device: the engine's name for it.
        versions: of the engine and what else matters.
        fault: of the result.
        feeds: of the request.
        outputs: that failed the check.

    Returns:
        Its folder; None when the folder has 20 of this package: the first ones say more than the latest.

    Raises:
        OutputError: it cannot be written.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", package.manifest.name).strip(".-") or "model"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if len(_numbers(folder, name)) >= LIMIT:
            return None
        scratch = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=folder))
    except OSError as error:
        raise _unwritten(folder, error) from error
    try:
        content = scratch / name
        content.mkdir()  # mkdtemp's own folder is closed to others
        arrays, results = _plain(feeds), _plain(outputs)
        write_npz(content / INPUT, arrays)
        write_npz(content / OUTPUTS, results)
        trip = Trip(
            written_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            kind=fault.kind,
            subject=fault.subject,
            reason=fault.reason,
            package=package.manifest.name,
            path=str(package.path.resolve()),
            variant=variant.id,
            sha256=package.manifest.files[variant.file].sha256,
            engine=engine,
            device=device,
            versions=dict(versions),
            machine=describe_machine(),
            inputs=_described(arrays),
            outputs=_described(results),
            commands=_commands(package, variant),
        )
        (content / TRIP).write_text(trip.model_dump_json(indent=1) + "\n", encoding="utf-8")
        return _placed(content, folder, name)
    except OSError as error:
        raise _unwritten(folder, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def read_reproducer(folder: str | Path) -> Reproducer:
    """Read what ``write_reproducer`` wrote.

    Raises:
        DataError: a file is missing, damaged, or says something else than it may.
    """
    path = Path(folder) / TRIP
    try:
        trip = Trip.model_validate_json(path.read_bytes())
    except OSError as error:
        reason = f"{path} cannot be read: {error.strerror}; expected a folder with {INPUT}, {OUTPUTS} and {TRIP}"
        raise DataError(reason) from error
    except ValidationError as error:
        detail = error.errors()[0]
        place = ".".join(map(str, detail["loc"]))
        raise DataError(f"{path} is no trip: {': '.join(part for part in (place, detail['msg']) if part)}") from error
    return Reproducer(trip, read_npz(path.with_name(INPUT)), read_npz(path.with_name(OUTPUTS)))


def _placed(content: Path, folder: Path, name: str) -> Path | None:
    """Move a finished folder to the next number that is free: renaming never replaces a folder that has files."""
    first = max(_numbers(folder, name), default=0) + 1
    for number in range(first, first + LIMIT):
        if len(_numbers(folder, name)) >= LIMIT:
            break
        target = folder / f"{name}-{number:04}"
        try:
            return content.rename(target)
        except OSError:
            if not target.exists():  # else another process was faster
                raise
    return None


def _numbers(folder: Path, name: str) -> list[int]:
    pattern = re.compile(rf"{re.escape(name)}-(\d{{4,}})")
    return [int(match[1]) for path in folder.iterdir() if (match := pattern.fullmatch(path.name))]


def _plain(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays as files without pickles can hold them: text with a fixed width."""
    return {name: array.astype(np.str_) if array.dtype.kind == "O" else array for name, array in arrays.items()}


def _described(arrays: Mapping[str, Array]) -> dict[str, str]:
    return {name: f"{array.dtype.name}{list(array.shape)}" for name, array in arrays.items()}


def _commands(package: Package, variant: Variant) -> dict[str, str]:
    path = shlex.quote(str(package.path.resolve()))
    return {
        "again": f"sanderling run {path} {INPUT} --variant {shlex.quote(variant.id)} --out again.npz",
        "in_fp32": f"sanderling run {path} {INPUT} --variant fp32 --out fp32.npz",
        "check_package": f"sanderling verify {path}",
    }


def _unwritten(folder: Path, error: OSError) -> OutputError:
    reason = error.strerror or first_line(error)
    return OutputError(f"cannot write a reproducer into {folder}: {reason}; nothing was kept of this trip")
