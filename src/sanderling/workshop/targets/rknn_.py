"""The target `rknn`: nets for Rockchip's NPUs, built by its toolkit and proved in the toolkit's simulator."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from sanderling.core.errors import EngineError, ModelError, OptionError, SanderlingError
from sanderling.core.precision import Precision
from sanderling.core.progress import Progress
from sanderling.core.tensor import Array, Feeds
from sanderling.measure.samples import SampleReader, Samples
from sanderling.model.graph import all_nodes, opset_of, read_graph, write_graph
from sanderling.model.lowering import lower
from sanderling.model.manifest import Variant
from sanderling.model.package import Package
from sanderling.model.rows import with_rows
from sanderling.run.engines import engine, known_engine
from sanderling.run.engines.base import Compute, EngineOptions, Executable, Optimization
from sanderling.run.engines.rknn_ import CHIPS, as_ours, toolkit_python
from sanderling.run.isolated import IsolatedExecutable, Worker
from sanderling.run.rknn.toolkit import LayerError
from sanderling.workshop.targets.base import Exported, ExportRequest, Proof, Refusal, Tool, chosen_variant
from sanderling.workshop.targets.fixed_rows import FixedRows, batch_of, dynamic_refusals, repeated
from sanderling.workshop.targets.proving import agreement_proof, engine_refusals, golden_proof, refusal_of
from sanderling.workshop.targets.rknn_layers import compare, cosine, opened, worst

_ALGORITHMS = ("normal", "kl_divergence")  # mmse does not end within half an hour
_SWITCH = ("on", "off")
_NEWEST_OPSET = 19
_COMPOSED = ("Gelu", "Mish", "ReduceL1", "ReduceL2")
_BUILD_S, _RUN_S = 1800.0, 300.0
_CALIBRATED_COSINE = 0.95
_AGREEMENT_PERCENT, _CALIBRATED_PERCENT = "98", "90"
_DEVICE_COSINE = {"float": 0.999, "int8": 0.98}
_MOST_SAMPLES = 200
_SCRIPT, _GOLDEN, _EXPECTED, _LAYERS = "run_on_device.py", "golden.npz", "golden.json", "layers.json"


class RknnNet:
    """Writes `.rknn` in fp16 or INT8."""

    name = "rknn"
    summary = "Rockchip's .rknn in fp16 or INT8, run in the toolkit's simulator"
    devices = CHIPS
    options: Mapping[str, str] = {
        "batch": "size of a dynamic batch; 1 by default",
        "calibration": "folder of pictures, CSV or .npz: the toolkit quantises --variant fp32 with it",
        "algorithm": "with calibration: normal (default) or kl_divergence",
        "evaluation": "folder of pictures, CSV or .npz: first classes must agree with ONNX Runtime's",
        "agreement": "with evaluation: least percent; 98 by default, 90 with calibration",
        "layers": "on: analyse every layer (default); off",
    }

    def tools(self) -> Sequence[Tool]:
        """The toolkit, here or in its own environment."""
        state = known_engine("rknn").availability()
        return (Tool("rknn-toolkit2", state.installed, state.version, state.hint),)

    def variants(self, package: Package, wanted: str | None) -> tuple[str, ...]:
        """The variant that was asked for, or the chosen one."""
        return chosen_variant(package, wanted)

    def check(self, model: onnx.ModelProto, device: str) -> tuple[Refusal, ...]:
        """What the toolkit cannot build for the chip: it is asked, with a batch of 1."""
        dynamic = dynamic_refusals(model, device)
        if not all(refusal.automatic for refusal in dynamic):
            return dynamic
        try:
            lowered = _lowered(with_rows(model, 1))
        except ModelError as error:
            return (refusal_of(error, model), *dynamic)
        options = EngineOptions(device=device, compute=Compute.FP16)
        return (*_rewrites(model, lowered), *engine_refusals("rknn", lowered, options), *dynamic)

    def export(self, request: ExportRequest) -> Exported:
        """Build, write, and run the golden vectors on what was built."""
        variant = request.package.variant(*self.variants(request.package, request.variant))
        plan = _plan(request, variant)
        engine("rknn")
        with _toolkit() as worker, tempfile.TemporaryDirectory(prefix="sanderling-rknn-") as scratch:
            job = _Job(worker, plan, Path(scratch))
            request.progress.stage(f"build for {plan.chip}")
            with closing(job.build()) as net:
                request.progress.stage("run golden vectors", len(request.package.golden()))
                proofs = _proofs(FixedRows(_Slow(net), plan.rows), request, plan)
            request.progress.stage("analyse layers")
            layers = job.layers() if plan.analysed else ()
        _write_device_files(request.package, plan, request.folder)
        return _exported(plan, proofs, layers, request.folder)


def _lowered(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph without what the toolkit has no kernels for, and in an opset that it reads; as it is where it has none.

    Raises:
        ModelError: a node came after that opset.
    """
    if opset_of(model) <= _NEWEST_OPSET and all(node.op_type not in _COMPOSED for node in all_nodes(model.graph)):
        return model
    return lower(model, "rknn")


def _rewrites(model: onnx.ModelProto, lowered: onnx.ModelProto) -> tuple[Refusal, ...]:
    """What the toolkit refuses of a graph and not of the lowered one."""
    found = []
    if opset_of(model) > opset_of(lowered):
        reason = f"opset {opset_of(model)}, and the toolkit reads up to {_NEWEST_OPSET}"
        rewrite = f"the same graph in opset {_NEWEST_OPSET}"
        found.append(Refusal("opset", (model.graph.name,), reason, rewrite, automatic=True))
    for operator in _COMPOSED:
        nodes = tuple(node.name or node.output[0] for node in model.graph.node if node.op_type == operator)
        if nodes and all(node.op_type != operator for node in lowered.graph.node):
            reason, rewrite = "the toolkit has no kernel for it", "written with simpler operators"
            found.append(Refusal(operator, nodes, reason, rewrite, automatic=True))
    return tuple(found)


@dataclass(frozen=True)
class _Plan:
    """What is built of what.

    Attributes:
        model: with a batch of ``rows``.
        rows: that a dynamic batch got; None where it has a size of its own.
        samples: that the toolkit quantises with; None where codes or floats stay.
        call: one golden call with ``rows`` rows, for the analysis.
    """

    chip: str
    variant: Variant
    model: onnx.ModelProto
    rows: int | None
    file: Path
    samples: Samples | None
    algorithm: str
    evaluation: Samples | None
    agreement_percent: float
    analysed: bool
    call: dict[str, Array]

    @property
    def is_qdq(self) -> bool:
        return self.samples is None and any(node.op_type == "QuantizeLinear" for node in self.model.graph.node)

    @property
    def form(self) -> str:
        """What the net's numbers are."""
        if self.samples is not None:
            return f"INT8, quantised by the toolkit ({self.algorithm}) from {len(self.samples)} samples"
        return "INT8 with the variant's own codes and scales" if self.is_qdq else "fp16"


def _plan(request: ExportRequest, variant: Variant) -> _Plan:
    """Read options and data before long work.

    Raises:
        OptionError: a value that is unknown, or that excludes another.
    """
    options, package = request.options, request.package
    algorithm, layers = _one_of(options, "algorithm", _ALGORITHMS), _one_of(options, "layers", _SWITCH)
    if "algorithm" in options and "calibration" not in options:
        raise OptionError("target 'rknn', --option algorithm: it needs --option calibration=DIR|CSV|FILE.npz")
    if "calibration" in options and variant.precision is not Precision.FP32:
        raise OptionError(
            f"target 'rknn', --option calibration: the toolkit quantises float only, and variant '{variant.id}' is "
            f"{variant.precision}; add --variant fp32, or leave the option out to keep this variant's own codes"
        )
    if "agreement" in options and "evaluation" not in options:
        raise OptionError("target 'rknn', --option agreement: it needs --option evaluation=DIR|CSV|FILE.npz")
    graph = read_graph(package.file(variant.file))
    rows = batch_of(request, graph)
    model = _lowered(graph if rows is None else with_rows(graph, rows))
    quantised = "int8" if "calibration" in options else variant.id
    call = package.golden().call(0)
    return _Plan(
        chip=request.device,
        variant=variant,
        model=model,
        rows=rows,
        file=request.folder / f"{package.manifest.name}.{quantised}.{request.device}.rknn",
        samples=_samples(options, "calibration", package, request.progress, most=_MOST_SAMPLES),
        algorithm=algorithm,
        evaluation=_samples(options, "evaluation", package, request.progress),
        agreement_percent=_percent(options, _CALIBRATED_PERCENT if "calibration" in options else _AGREEMENT_PERCENT),
        analysed=layers == "on",
        call={name: repeated(array, rows) for name, array in call.items()},
    )


class _Job:
    """The toolkit's process, and the files that go there and come back."""

    def __init__(self, worker: Worker, plan: _Plan, scratch: Path) -> None:
        self._worker, self._plan, self._scratch = worker, plan, scratch

    def build(self) -> IsolatedExecutable:
        """Build and write the net; it runs in the simulator."""
        analysed = self._plan.analysed and not self._plan.is_qdq
        return self._load(self._plan.model, rknn=str(self._plan.file), analysed=self._call() if analysed else [])

    def layers(self) -> tuple[LayerError, ...]:
        """How far each layer is from ONNX Runtime's: from float, or from the same Q/DQ graph."""
        plan = self._plan
        if not plan.is_qdq:
            found = json.loads((self._scratch / _LAYERS).read_text())
            return tuple(LayerError(**layer) for layer in found)
        model = opened(plan.model)
        exact = EngineOptions(threads=1, optimization=Optimization.NONE)
        with closing(engine().load(model.SerializeToString(), exact)) as reference:
            expected = reference.run(plan.call)
        with closing(self._load(model, rknn="", analysed=[])) as net:
            return compare(model, expected, net.run(plan.call, timeout_s=_RUN_S))

    def _load(self, model: onnx.ModelProto, *, rknn: str, analysed: list[str]) -> IsolatedExecutable:
        write_graph(model, self._scratch / "model.onnx")
        header: dict[str, Any] = {
            "model": str(self._scratch / "model.onnx"),
            "chip": self._plan.chip,
            "rknn": rknn,
            "samples": self._saved_samples(),
            "algorithm": self._plan.algorithm,
            "analysed": analysed,
            "layers": str(self._scratch / _LAYERS),
        }
        try:
            return self._worker.load_as(header, timeout_s=_BUILD_S)
        except SanderlingError as error:
            file = self._plan.variant.file
            raise type(error)(as_ours(error).replace(header["model"], file)) from error

    def _saved_samples(self) -> list[str]:
        """Calibration samples, a line each: the toolkit wants the files of all inputs on it."""
        samples = self._plan.samples
        if samples is None:
            return []
        lines = []
        for index in range(len(samples)):
            files: list[Path] = []
            for name, array in samples.one(index).items():
                files.append(self._scratch / f"sample-{index}-{len(files)}.npy")
                np.save(files[-1], repeated(array, self._plan.rows))
                assert name in self._plan.call
            lines.append(" ".join(map(str, files)))
        return lines

    def _call(self) -> list[str]:
        files: list[str] = []
        for array in self._plan.call.values():
            files.append(str(self._scratch / f"call-{len(files)}.npy"))
            np.save(files[-1], array)
        return files


class _Slow:
    """A net in the simulator, which takes its time."""

    def __init__(self, net: IsolatedExecutable) -> None:
        self._net = net

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Execute once."""
        try:
            return self._net.run(feeds, timeout_s=_RUN_S)
        except EngineError as error:
            raise EngineError(as_ours(error)) from error


def _toolkit() -> Worker:
    python, path = toolkit_python()
    return Worker(python=python, path=path, module="sanderling.run.rknn.worker")


def _proofs(net: FixedRows, request: ExportRequest, plan: _Plan) -> tuple[Proof, ...]:
    on = f"rknn-toolkit2 {engine('rknn').availability().version}'s simulator of {plan.chip}"
    if plan.samples is None:
        proofs = [golden_proof(net, request.package, plan.variant.id, on=on)]
    else:
        golden = request.package.golden()
        least = min(
            cosine(golden.outputs["fp32"][name][index], array)
            for index in range(len(golden))
            for name, array in net.run(golden.call(index)).items()
        )
        what = f"{len(golden)} golden calls, least cosine similarity with FP32"
        proofs = [Proof(what, on, least, _CALIBRATED_COSINE, passed=least >= _CALIBRATED_COSINE)]
    if plan.evaluation is not None:
        request.progress.stage("compare first classes", len(plan.evaluation))
        reference: Executable = engine().load(request.package.file(plan.variant.file), EngineOptions())
        with closing(reference):
            proofs.append(agreement_proof(net, reference, plan.evaluation, plan.agreement_percent, on=on))
    return tuple(proofs)


def _exported(plan: _Plan, proofs: tuple[Proof, ...], layers: Sequence[LayerError], folder: Path) -> Exported:
    version = engine("rknn").availability().version
    files = {
        plan.file.name: f"net for {plan.chip}, {plan.form}",
        _SCRIPT: "for the board: runs the golden vectors, times the net, writes benchmark.json",
        _GOLDEN: "inputs, and the outputs of ONNX Runtime",
        _EXPECTED: "names of the net, its inputs and outputs, and what is allowed",
    }
    notes = ["on the board, inputs of four axes are given as (N, H, W, C), in float; the runtime converts them"]
    if layers:
        (folder / _LAYERS).write_text(json.dumps([asdict(layer) for layer in layers], indent=1) + "\n")
        files[_LAYERS] = "cosine similarity of each layer in the simulator"
        against = "ONNX Runtime with the same codes" if plan.is_qdq else "float"
        told = ", ".join(f"{layer.kind} '{layer.name}' {_similarity(layer):.5f}" for layer in worst(layers))
        notes.append(f"of {len(layers)} layers, those least similar to {against}: {told}")
    return Exported(
        files=files,
        tool=f"rknn-toolkit2 {version}",
        proofs=proofs,
        remaining=(
            f"that the driver of a board with {plan.chip} takes nets of toolkit {version}, and computes the same",
            "latency, memory and temperature there",
        ),
        next_steps=(
            "scp -r . BOARD:net",
            f"ssh BOARD 'pip install rknn-toolkit-lite2=={version} numpy && python3 net/{_SCRIPT}'",
            "scp BOARD:net/benchmark.json .",
        ),
        notes=tuple(notes),
        details={"form": plan.form, "batch": len(next(iter(plan.call.values())))},
    )


def _similarity(layer: LayerError) -> float:
    return layer.entire if layer.single is None else layer.single


def _write_device_files(package: Package, plan: _Plan, folder: Path) -> None:
    """What the board needs to check itself."""
    golden = package.golden()
    outputs = golden.outputs[plan.variant.id]
    arrays = {f"input/{name}": _calls_repeated(array, plan.rows) for name, array in golden.inputs.items()}
    arrays |= {f"output/{name}": _calls_repeated(array, plan.rows) for name, array in outputs.items()}
    named: dict[str, Any] = dict(arrays)  # for the type of NumPy's own options
    np.savez_compressed(folder / _GOLDEN, **named)
    is_float = plan.samples is None and not plan.is_qdq
    expected = {
        "net": plan.file.name,
        "inputs": list(golden.inputs),
        "outputs": list(outputs),
        "cosine_limit": _DEVICE_COSINE["float" if is_float else "int8"],
    }
    (folder / _EXPECTED).write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")
    script = resources.files("sanderling.workshop.targets.device_scripts").joinpath("rknn_run.py")
    with resources.as_file(script) as source:
        shutil.copyfile(source, folder / _SCRIPT)


def _calls_repeated(array: Array, rows: int | None) -> Array:
    return np.stack([repeated(call, rows) for call in array])


def _samples(
    options: Mapping[str, str], name: str, package: Package, progress: Progress, *, most: int | None = None
) -> Samples | None:
    """Read the data that an option names; at most so many of them, evenly spread."""
    if name not in options:
        return None
    manifest = package.manifest
    found = SampleReader(manifest.inputs, manifest.preprocessing, manifest.labels, progress, manifest.sound).read(
        options[name]
    )
    if most is None or len(found) <= most:
        return found
    return found.pick(np.linspace(0, len(found) - 1, most).astype(np.int64))


def _percent(options: Mapping[str, str], default: str) -> float:
    text = options.get("agreement", default)
    if not text.replace(".", "", 1).isdecimal() or float(text) > 100:
        raise OptionError(f"target 'rknn', --option agreement={text}: expected a percentage, such as 98")
    return float(text)


def _one_of(options: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    value = options.get(name, values[0])
    if value not in values:
        raise OptionError(f"target 'rknn', --option {name}={value}: expected {' or '.join(values)}")
    return value


TARGET = RknnNet()
