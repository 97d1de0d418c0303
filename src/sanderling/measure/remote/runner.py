"""Measuring by the C++ runner of an export to OpenHarmony, on a device that has no Python."""

from __future__ import annotations

import json
import shlex
import tempfile
from pathlib import Path
from typing import Any

from sanderling.core.errors import EngineError, OptionError, UnavailableError
from sanderling.core.machine import Machine
from sanderling.core.progress import Progress
from sanderling.core.statistics import percentiles
from sanderling.measure.bench import BenchResult, VariantBench
from sanderling.measure.checks import Check
from sanderling.measure.golden_files import write_golden
from sanderling.measure.latency import Timing
from sanderling.measure.remote.devices import RemoteDevice, RemoteOptions, must, told_by
from sanderling.measure.remote.results import DeviceBench, require_passed
from sanderling.model.manifest import Variant
from sanderling.model.package import Package
from sanderling.run.ort_format import write_ort

PROGRAM, LIBRARY = "bin/sanderling-run", "lib/libonnxruntime.so"
_RUN_S = 3600.0
_ENGINE = "onnxruntime"
_ASKED = "uname -s; uname -r; uname -m; nproc; grep MemTotal /proc/meminfo; grep -m1 'model name' /proc/cpuinfo || true"


def bench_by_runner(
    package: Package, device: RemoteDevice, folder: str, options: RemoteOptions, progress: Progress
) -> DeviceBench:
    """Send runner, library, models and golden calls, run each variant, and read what it wrote.

    Raises:
        UnavailableError: the runner's folder lacks a file.
        OptionError: no variant that was asked for runs on ONNX Runtime, or the batch is not 1.
        EngineError: the runner failed there.
        NotMetError: it computes something else than the package says.
    """
    if options.batch != 1:
        raise OptionError(f"--batch {options.batch}: the runner runs the golden calls as they are")
    assert options.runner is not None
    variants = _variants(package, options)
    files = [options.runner / name for name in (PROGRAM, LIBRARY)]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise UnavailableError(
            f"{', '.join(missing)} is missing: build it with the scripts of sanderling export --target openharmony"
        )
    progress.stage(f"copy to {device.name}")
    for file in files:
        device.push(file, f"{folder}/{file.name}")
    must(device, f"chmod 700 {folder}/{files[0].name}")
    machine = _machine(device)
    checks, measured = [], []
    progress.stage(f"measure on {device.name}", len(variants))
    for variant in variants:
        found = _run(package, variant, device, folder, machine, options)
        checks += _checks(variant, found)
        measured.append(_bench(variant, found, options))
        progress.advance()
    require_passed(checks, device)
    versions = {_ENGINE: str(found["onnxruntime"])}
    result = BenchResult(
        package=package.path.name,
        machine=machine.model_copy(update={"versions": versions}),
        threads=int(found["threads"]),
        batch=1,
        variants=tuple(measured),
    )
    return DeviceBench(on=device.name, way="runner", checks=tuple(checks), result=result)


def _variants(package: Package, options: RemoteOptions) -> list[Variant]:
    wanted = [package.variant(name) for name in options.variants] or list(package.manifest.variants)
    taken = [variant for variant in wanted if _ENGINE in variant.engines]
    if not taken:
        names = ", ".join(variant.id for variant in wanted)
        raise OptionError(f"the runner runs variants of {_ENGINE}, and {names} has another engine")
    return taken


def _run(
    package: Package, variant: Variant, device: RemoteDevice, folder: str, machine: Machine, options: RemoteOptions
) -> dict[str, Any]:
    """Run one variant there; returns what the runner wrote."""
    there = f"{folder}/{variant.id}"
    with tempfile.TemporaryDirectory(prefix="sanderling-remote-") as scratch:
        here = Path(scratch)
        model = here / "model.ort"
        architecture = "amd64" if machine.architecture == "x86_64" else "arm64"
        write_ort(package.file(variant.file), model, architecture, variant.optimization)
        names = [model.name, *write_golden(package, variant.id, model.name, here)]
        must(device, f"mkdir -p {shlex.quote(there)}/golden")
        for name in names:
            device.push(here / name, f"{there}/{name}")
        threads = options.threads or machine.cores
        words = f"--threads {threads} --warmup {options.warmup} --repeats {options.repeats} --out benchmark.json"
        command = f"cd {shlex.quote(there)} && ../sanderling-run . --library ../libonnxruntime.so {words}"
        ran = device.run(command, timeout_s=_RUN_S)
        if ran.code not in (0, 1):
            raise EngineError(f"the runner failed on {device.name}: {told_by(ran)}")
        device.pull(f"{there}/benchmark.json", here / "benchmark.json")
        return _read(here / "benchmark.json", device)


def _read(file: Path, device: RemoteDevice) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except ValueError:
        found = None
    wanted = ("onnxruntime", "threads", "outputs", "samples_ms", "peak_memory_bytes")
    if not isinstance(found, dict) or not all(key in found for key in wanted) or not found["samples_ms"]:
        raise EngineError(f"the runner on {device.name} wrote no result: was it built from another export?")
    return found


def _checks(variant: Variant, found: dict[str, Any]) -> list[Check]:
    return [
        Check(
            name=f"golden vectors of {variant.id}, output {output['name']}",
            passed=bool(output["passed"]),
            detail=f"relative error {_number(output['relative_error'])}, at most {_number(output['tolerance'])}, "
            f"or SQNR {_number(output['sqnr_db'])} dB, at least {_number(output['least_db'])}",
        )
        for output in found["outputs"]
    ]


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"


def _bench(variant: Variant, found: dict[str, Any], options: RemoteOptions) -> VariantBench:
    samples = [float(value) for value in found["samples_ms"]]
    timing = Timing(
        **percentiles(samples),
        warmup=options.warmup,
        repeats=len(samples),
        samples_ms=tuple(round(v, 4) for v in samples),
    )
    return VariantBench(
        id=variant.id,
        precision=variant.precision,
        engine=_ENGINE,
        size_bytes=variant.size_bytes,
        latency_ms=timing,
        throughput_per_s=1e3 / timing.p50,
        memory_bytes=int(found["peak_memory_bytes"]) or None,
    )


def _machine(device: RemoteDevice) -> Machine:
    """The device, as its own kernel tells.

    Raises:
        EngineError: it tells something else.
    """
    lines = [line.strip() for line in must(device, _ASKED).splitlines() if line.strip()]
    try:
        system, release, architecture, cores, memory = lines[:5]
        return Machine(
            system=f"{system} {release}",
            architecture=architecture,
            processor=lines[5].partition(":")[2].strip() if lines[5:] else architecture,
            cores=int(cores),
            memory_bytes=int(memory.split()[1]) * 1024,
            cpu_features=(),
            python="",
            versions={},
        )
    except (ValueError, IndexError) as error:
        raise EngineError(f"{device.name} does not tell what it is: {' '.join(lines)[:200]}") from error
