"""The target `ort`: ONNX Runtime's own format, for builds that hold only what a model needs."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib import metadata
from pathlib import Path

import onnx

from sanderling.core.errors import OptionError
from sanderling.model.graph import opset_of
from sanderling.model.package import Package
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions
from sanderling.run.ort_format import list_operators, write_ort
from sanderling.run.ort_kernels import nodes_without_kernel
from sanderling.workshop.targets.base import Exported, ExportRequest, Refusal, Tool, chosen_variant
from sanderling.workshop.targets.proving import engine_refusals, golden_proof

_STYLES = ("fixed", "runtime")
_SWITCH = ("on", "off")
OPERATORS = "required_operators.config"


class Ort:
    """Writes `.ort` files, and the list of operators that a minimal build must have."""

    name = "ort"
    summary = "ONNX Runtime's .ort format for minimal builds, with the list of operators that they need"
    devices = ("arm64", "amd64")
    options: Mapping[str, str] = {
        "style": "fixed: all optimisations are in the file (default); runtime: some wait until it is loaded, for NNAPI",
        "types": "on: the list of operators also names their types, so that the build is smaller (default); off",
    }

    def tools(self) -> Sequence[Tool]:
        """ONNX Runtime, which is always here."""
        return (Tool("onnxruntime", found=True, version=metadata.version("onnxruntime")),)

    def variants(self, package: Package, wanted: str | None) -> tuple[str, ...]:
        """The variant that was asked for, or the chosen one."""
        return chosen_variant(package, wanted)

    def check(self, model: onnx.ModelProto, device: str) -> tuple[Refusal, ...]:  # noqa: ARG002 - both take the same
        """What ONNX Runtime has no kernel for."""
        return onnxruntime_refusals(model)

    def export(self, request: ExportRequest) -> Exported:
        """Optimise, write, list the operators, and run the golden vectors on the file."""
        style, types = _one_of(request, "style", _STYLES), _one_of(request, "types", _SWITCH) == "on"
        variant = request.package.variant(*self.variants(request.package, request.variant))
        file = request.folder / f"{Path(variant.file).stem}.ort"
        request.progress.stage("write .ort")
        source = request.package.file(variant.file)
        write_ort(source, file, request.device, variant.optimization, style)
        files = [file]
        if style == "runtime":  # operators before and after the optimisations that wait are both needed
            files.append(request.folder / "applied.ort")
            write_ort(source, files[1], request.device, variant.optimization)
        list_operators(files, request.folder / OPERATORS, types=types)
        for extra in files[1:]:
            extra.unlink()
        request.progress.stage("run golden vectors", len(request.package.golden()))
        version = metadata.version("onnxruntime")
        with closing(engine("onnxruntime").load(file, EngineOptions(threads=1))) as executable:
            on = f"ONNX Runtime {version} on {platform.machine()}"
            proof = golden_proof(executable, request.package, variant.id, on=on)
        return Exported(
            files={
                file.name: f"variant '{variant.id}', optimised for {request.device}",
                OPERATORS: "operators it needs",
            },
            tool=f"onnxruntime {version}",
            proofs=(proof,),
            remaining=(
                f"that a minimal build of ONNX Runtime {version} with this list loads the file on {request.device}",
                "latency and memory there",
            ),
            next_steps=_build_commands(version, types=types),
        )


def onnxruntime_refusals(model: onnx.ModelProto) -> tuple[Refusal, ...]:
    """What ONNX Runtime refuses: every node without a kernel where it refuses the graph, else what it says itself."""
    refused = engine_refusals("onnxruntime", model, EngineOptions(threads=1))
    missing = nodes_without_kernel(model) if refused else {}
    version, helps = metadata.version("onnxruntime"), "export the model with other operators, or in another opset"
    reason = f"ONNX Runtime {version} has no kernel for it in opset {opset_of(model)}"
    return tuple(Refusal(operator, nodes, reason, helps) for operator, nodes in missing.items()) or refused


def _one_of(request: ExportRequest, name: str, values: tuple[str, ...]) -> str:
    value = request.options.get(name, values[0])
    if value not in values:
        raise OptionError(f"target 'ort', --option {name}={value}: expected {' or '.join(values)}")
    return value


def _build_commands(version: str, *, types: bool) -> tuple[str, ...]:
    reduced = " --enable_reduced_operator_type_support" if types else ""
    build = "./onnxruntime/build.sh --config MinSizeRel --build_shared_lib --minimal_build --disable_ml_ops"
    return (
        f"git clone --branch v{version} --recursive https://github.com/microsoft/onnxruntime",
        f"{build} --include_ops_by_config $PWD/{OPERATORS}{reduced}",
    )


TARGET = Ort()
