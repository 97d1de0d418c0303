"""`sanderling bench --on`: a package goes to a device, is verified and timed there, and the numbers come back.

By ``sanderling`` where the device has it, else by the runner of an export to OpenHarmony, with an ONNX Runtime that was
built for the device.
"""

from __future__ import annotations

import json
import secrets
import shlex
import tempfile
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from sanderling.core.errors import EngineError, UnavailableError
from sanderling.core.progress import Event, Progress, Silent
from sanderling.measure.bench import BenchResult
from sanderling.measure.remote.devices import RemoteDevice, RemoteOptions, device_of, must, told_by
from sanderling.measure.remote.results import DeviceBench, keep, require_passed
from sanderling.measure.remote.runner import bench_by_runner
from sanderling.measure.verify import VerifyResult
from sanderling.model.package import Package, write_zip
from sanderling.run.session import check_one_graph

Model = TypeVar("Model", VerifyResult, BenchResult)
_VERIFY_S, _BENCH_S, _SHORT_S = 1800.0, 3600.0, 60.0
_NOT_FOUND = (126, 127)


def bench_on(path: str | Path, on: str, options: RemoteOptions, progress: Progress | None = None) -> DeviceBench:
    """Measure a package on a device, and keep the result in the package's evidence.

    Args:
        path: the package, a folder or a zip.
        on: ``ssh:[USER@]HOST[:PORT]`` or ``hdc:KEY``.
        options: how.
        progress: told about each step.

    Raises:
        OptionError: an unknown variant, or ``on`` names no device.
        PackageError: the package is broken.
        UnavailableError: the device does not answer, or has not what is needed.
        EngineError: something failed or took too long there.
        NotMetError: the device does not compute what the package says; nothing is kept.
    """
    progress, package = progress or Silent(), Package.open(path)
    check_one_graph(package)
    for name in options.variants:
        package.variant(name)
    device = device_of(on)
    progress.stage(f"reach {device.name}")
    device.reach()
    folder = f"{device.folder}/sanderling-{secrets.token_hex(6)}"
    must(device, f"umask 077 && mkdir {folder}")
    try:
        by = _by_sanderling if options.runner is None else bench_by_runner
        found = by(package, device, folder, options, progress)
    finally:
        _clear(device, folder, progress)
    keep(path, found)
    return found


def _clear(device: RemoteDevice, folder: str, progress: Progress) -> None:
    """Remove what was copied there; what cannot be removed is told, as another error may be on its way."""
    try:
        must(device, f"rm -rf {folder}", timeout_s=_SHORT_S)
    except EngineError as error:
        progress.event(Event(kind="left-on-device", subject=folder, reason=str(error)))


def _by_sanderling(
    package: Package, device: RemoteDevice, folder: str, options: RemoteOptions, progress: Progress
) -> DeviceBench:
    """Let Sanderling verify and time the package there."""
    version = device.run(f"{options.command} --version", timeout_s=_SHORT_S)
    if version.code in _NOT_FOUND:
        raise UnavailableError(
            f"{device.name} has no '{options.command}': pip install sanderling there, name it with --command, or take "
            "a runner with --runner"
        )
    progress.stage(f"copy to {device.name}")
    target = f"{folder}/package.sdl.zip"
    with tempfile.TemporaryDirectory(prefix="sanderling-remote-") as scratch:
        packed = Path(scratch) / "package.sdl.zip"
        write_zip(package.path, packed)
        device.push(packed, target)
    start = f"SANDERLING_CACHE={folder}/cache {options.command}"
    progress.stage(f"verify on {device.name}")
    verified = _answer(device, f"{start} verify {target} --threads {options.threads} --json", _VERIFY_S)
    checks = _parsed(VerifyResult, verified, device).checks
    require_passed(checks, device)
    progress.stage(f"measure on {device.name}", options.repeats)
    variants = " ".join(f"--variant {shlex.quote(name)}" for name in options.variants)
    numbers = (
        f"--threads {options.threads} --batch {options.batch} --warmup {options.warmup} --repeats {options.repeats}"
    )
    measured = _answer(device, f"{start} bench {target} {variants} {numbers} --json", _BENCH_S)
    result = _parsed(BenchResult, measured, device).model_copy(update={"package": package.path.name})
    return DeviceBench(on=device.name, way="sanderling", checks=checks, result=result)


def _answer(device: RemoteDevice, command: str, timeout_s: float) -> dict[str, Any]:
    """The one JSON object that a command prints.

    Raises:
        EngineError: it printed none, or an error.
    """
    ran = device.run(command, timeout_s=timeout_s)
    lines = [line for line in ran.output.splitlines() if line.startswith("{")]
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise EngineError(f"sanderling on {device.name} gave no result: {told_by(ran)}")
    if "error" in found:
        raise EngineError(f"sanderling on {device.name}: {found['error'].get('message', 'it failed')}")
    return found


def _parsed(kind: type[Model], value: dict[str, Any], device: RemoteDevice) -> Model:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise EngineError(
            f"sanderling on {device.name} answers as another version: {error.errors()[0]['msg']}; install this one"
        ) from error
