"""What an export to OpenHarmony has: the model as `.ort`, recipes, the runner with golden files, and a push script."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path

import onnx

from sanderling.core.progress import Event
from sanderling.measure.golden_files import write_golden
from sanderling.model.manifest import Variant
from sanderling.model.package import Package
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions
from sanderling.run.ort_format import list_operators, write_ort
from sanderling.workshop.targets.base import Exported, ExportRequest, Proof, Refusal, Tool, chosen_variant
from sanderling.workshop.targets.openharmony.runner import compiler, run_here
from sanderling.workshop.targets.ort_ import OPERATORS, onnxruntime_refusals
from sanderling.workshop.targets.proving import golden_proof

_TEMPLATE = {
    "build/ohos.cmake": "CMake toolchain: the OHOS SDK's, for projects that know Linux",
    "build/build_onnxruntime.sh": "builds ONNX Runtime, minimal or full",
    "build/build_runner.sh": "builds the runner",
    "runner/CMakeLists.txt": "of the runner",
    "runner/main.cc": "C++ sample: runs and times the model, writes benchmark.json",
    "runner/session.h": "a session of ONNX Runtime",
    "runner/session.cc": "a session of ONNX Runtime",
    "runner/golden.h": "golden files and their comparison",
    "runner/golden.cc": "golden files and their comparison",
    "runner/ort_api.h": "the part of ONNX Runtime's C API that is used",
    "python/make_wheel.py": "packs a tree built for the device as a wheel",
    "run_on_device.sh": "hdc: push, run, fetch benchmark.json",
}
_NOTES = (
    "OHOS SDKs with Clang 15 compile ONNX Runtime up to 1.16.3 as it is; later releases need Clang 16, or changes",
    "github.com/csukuangfj/onnxruntime-libs has such changes and built libraries, which the runner takes too",
    "the runner opens libonnxruntime.so itself and needs no headers: any release from 1.11 on",
    "ONNX Runtime's glibc libraries do not load on OpenHarmony, whose C library is musl",
)


class OpenHarmony:
    """Writes what ONNX Runtime needs on OpenHarmony."""

    name = "openharmony"
    summary = "ONNX Runtime on OpenHarmony: .ort, build recipe for the OHOS SDK, C++ sample, hdc script"
    devices = ("arm64-v8a", "armeabi-v7a", "x86_64")
    options: Mapping[str, str] = {}

    def tools(self) -> Sequence[Tool]:
        """ONNX Runtime, and a compiler with which the C++ sample is proved here."""
        program = compiler()
        return (
            Tool("onnxruntime", found=True, version=metadata.version("onnxruntime")),
            Tool("C++ compiler", program is not None, hint=program or "apt install g++ (the sample is then run here)"),
        )

    def variants(self, package: Package, wanted: str | None) -> tuple[str, ...]:
        """The variant that was asked for, or the chosen one."""
        return chosen_variant(package, wanted)

    def check(self, model: onnx.ModelProto, device: str) -> tuple[Refusal, ...]:  # noqa: ARG002 - all take the same
        """What ONNX Runtime has no kernel for."""
        return onnxruntime_refusals(model)

    def export(self, request: ExportRequest) -> Exported:
        """Write everything, and run the model here by Python and by the C++ sample."""
        variant = request.package.variant(*self.variants(request.package, request.variant))
        version = metadata.version("onnxruntime")
        request.progress.stage("write .ort and recipes")
        files = _write_template(request.folder, version, request.device)
        files |= _write_model(request, variant)
        request.progress.stage("run golden vectors", len(request.package.golden()))
        return Exported(
            files=files,
            tool=f"onnxruntime {version}",
            proofs=_proofs(request, variant, version),
            remaining=(
                f"that ONNX Runtime {version} compiles with your OHOS SDK: the recipe was not run here",
                f"that the runner computes the same on a device with {request.device}",
                "latency and memory there",
            ),
            next_steps=(
                f"git clone --branch v{version} --recursive https://github.com/microsoft/onnxruntime",
                "OHOS_SDK=SDK/native sh build/build_onnxruntime.sh minimal onnxruntime out",
                "OHOS_SDK=SDK/native sh build/build_runner.sh out",
                "sh run_on_device.sh KEY out",
                "sanderling bench PKG --on hdc:KEY --runner out",
            ),
            notes=_NOTES,
        )


def _write_template(folder: Path, version: str, device: str) -> dict[str, str]:
    root = resources.files("sanderling.workshop.targets.openharmony").joinpath("template")
    for name in _TEMPLATE:
        source: Traversable = root.joinpath(name)
        text = source.read_text("utf-8").replace("@VERSION@", version).replace("@ARCH@", device)
        target = folder / name
        target.parent.mkdir(exist_ok=True)
        target.write_text(text, encoding="utf-8")
        if target.suffix == ".sh":
            target.chmod(0o755)
    return dict(_TEMPLATE)


def _write_model(request: ExportRequest, variant: Variant) -> dict[str, str]:
    folder = request.folder / "model"
    folder.mkdir()
    source, file = request.package.file(variant.file), folder / f"{Path(variant.file).stem}.ort"
    device = "amd64" if request.device == "x86_64" else "arm64"
    write_ort(source, file, device, variant.optimization)
    list_operators([file], folder / OPERATORS)
    files = {file.name: f"variant '{variant.id}', optimised for {request.device}", OPERATORS: "operators it needs"}
    files |= write_golden(request.package, variant.id, file.name, folder)
    return {f"model/{name}": what for name, what in files.items()}


def _proofs(request: ExportRequest, variant: Variant, version: str) -> tuple[Proof, ...]:
    on, folder = f"ONNX Runtime {version} on {platform.machine()}", request.folder
    file = next((folder / "model").glob("*.ort"))
    with closing(engine("onnxruntime").load(file, EngineOptions(threads=1))) as executable:
        proofs = [golden_proof(executable, request.package, variant.id, on=on)]
    if compiler() is None:
        reason = "this machine has no C++ compiler; apt install g++"
        request.progress.event(Event(kind="sample-not-compiled", subject="runner", reason=reason))
        return tuple(proofs)
    found = run_here(folder / "runner", folder / "model")
    worst = max(output["relative_error"] for output in found["outputs"])
    what = f"{len(request.package.golden())} golden calls by the C++ sample, relative error"
    proofs.append(
        Proof(what, f"ONNX Runtime {found['onnxruntime']} on {platform.machine()}", worst, None, found["passed"])
    )
    return tuple(proofs)


TARGET = OpenHarmony()
