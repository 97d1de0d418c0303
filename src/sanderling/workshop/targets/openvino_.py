"""The target `openvino`: OpenVINO's intermediate representation (IR), an `.xml` with its weights in a `.bin`."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from sanderling.core.errors import EngineError, OptionError, first_line
from sanderling.core.tensor import Array, Feeds
from sanderling.model.graph import read_graph, write_graph
from sanderling.model.package import Package
from sanderling.model.rows import with_rows
from sanderling.run.engines import engine, known_engine
from sanderling.run.engines.base import EngineOptions
from sanderling.run.engines.openvino_ import openvino_core
from sanderling.workshop.targets.base import Exported, ExportRequest, Proof, Refusal, Tool, chosen_variant
from sanderling.workshop.targets.fixed_rows import FixedRows, batch_of, dynamic_refusals
from sanderling.workshop.targets.proving import engine_refusals, golden_proof

_WEIGHTS = ("f32", "f16")
_EXACT = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_NUM_THREADS": "1"}


class OpenVinoIr:
    """Writes IR, and runs it on the CPU here."""

    name = "openvino"
    summary = "OpenVINO's IR for Intel's CPUs, GPUs and NPUs"
    devices = ("cpu", "gpu", "npu")
    options: Mapping[str, str] = {
        "weights": "f32: as in the graph (default); f16: float weights rounded, half the size",
        "batch": "size of a dynamic batch; it stays dynamic by default, and becomes 1 for npu",
    }

    def tools(self) -> Sequence[Tool]:
        """The `openvino` package."""
        state = known_engine("openvino").availability()
        return (Tool("openvino", state.installed, state.version, state.hint),)

    def variants(self, package: Package, wanted: str | None) -> tuple[str, ...]:
        """The variant that was asked for, or the chosen one."""
        return chosen_variant(package, wanted)

    def check(self, model: onnx.ModelProto, device: str) -> tuple[Refusal, ...]:
        """What OpenVINO does not read; an NPU takes fixed shapes only."""
        fixed = dynamic_refusals(model, "an NPU") if device == "npu" else ()
        return (*engine_refusals("openvino", model, EngineOptions(threads=1)), *fixed)

    def export(self, request: ExportRequest) -> Exported:
        """Convert, save, and run the golden vectors on the saved file."""
        weights = request.options.get("weights", _WEIGHTS[0])
        if weights not in _WEIGHTS:
            raise OptionError(f"target 'openvino', --option weights={weights}: expected {' or '.join(_WEIGHTS)}")
        variant = request.package.variant(*self.variants(request.package, request.variant))
        model = read_graph(request.package.file(variant.file))
        fixed = request.device == "npu" or "batch" in request.options
        rows = batch_of(request, model) if fixed else None
        file = request.folder / f"{Path(variant.file).stem}.xml"
        request.progress.stage("write IR")
        _convert(with_rows(model, rows) if rows else model, file, half=weights == "f16")
        request.progress.stage("run golden vectors", len(request.package.golden()))
        version = engine("openvino").availability().version
        return Exported(
            files={file.name: f"graph of variant '{variant.id}'", f"{file.stem}.bin": "its weights"},
            tool=f"openvino {version}",
            proofs=(_proof(file, request.package, variant.id, rows, f"OpenVINO {version} on {platform.machine()}"),),
            remaining=_remaining(request.device),
            next_steps=(f"benchmark_app -m {file.name} -d {request.device.upper()} -hint latency",),
        )


def _remaining(device: str) -> tuple[str, ...]:
    if device == "cpu":
        return ("latency and memory on the device's processor",)
    return (f"that it compiles for a {device.upper()} and computes the same there", "latency and memory there")


class _Ir:
    """A saved graph on the CPU, in the arithmetic that it says."""

    def __init__(self, file: Path) -> None:
        try:
            self._compiled = openvino_core().compile_model(str(file), "CPU", _EXACT)
        except Exception as error:
            raise EngineError(f"openvino does not run the {file.name} that it wrote: {first_line(error)}") from error

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Execute once."""
        try:
            results: Any = self._compiled(dict(feeds))
        except Exception as error:
            raise EngineError(f"openvino failed while executing: {first_line(error)}") from error
        return {name: array for port, array in results.items() for name in port.names}


def _convert(model: onnx.ModelProto, file: Path, *, half: bool) -> None:
    """Read a graph as OpenVINO does, and save it.

    Raises:
        EngineError: it could not.
    """
    core = openvino_core()  # before the package, as it keeps the package's reporter out
    import openvino

    source = file.with_suffix(".onnx")
    try:
        written = write_graph(model, source)
        openvino.save_model(core.read_model(source), file, compress_to_fp16=half)
    except Exception as error:
        raise EngineError(f"openvino could not write {file.name}: {first_line(error)}") from error
    source.unlink()
    if written:
        source.with_name(written).unlink()


def _proof(file: Path, package: Package, variant: str, rows: int | None, on: str) -> Proof:
    return golden_proof(FixedRows(_Ir(file), rows), package, variant, on=on)


TARGET = OpenVinoIr()
