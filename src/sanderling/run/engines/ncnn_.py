"""ncnn: Tencent's engine for phones and small boards, on the CPU and on GPUs through Vulkan.

ncnn reads no ONNX: pnnx, a program of the same house, converts a graph in a temporary folder. ncnn keeps no batch axis,
so a graph with a dynamic first axis is run row by row and the rows are stacked. That is right only where no row reads
another; a graph for which this cannot be shown is refused. Only float32 goes in and out, and only FP32 variants are
taken: pnnx makes no INT8 net of QuantizeLinear and DequantizeLinear.

pnnx always optimises the graph; ``optimization`` below ALL, and ``lean``, switch off Winograd convolution, which
rounds differently and keeps a second copy of the weights.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from ctypes import CDLL
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sanderling.core.errors import EngineError, ModelError, OutputError, first_line
from sanderling.core.files import replacing, sha256_of
from sanderling.core.precision import Precision
from sanderling.core.tensor import Array, Feeds, TensorSpec
from sanderling.model.rows import check_rows, has_rows, inferred_shapes, reads_first_axis, with_rows
from sanderling.run.commands import run_command
from sanderling.run.copies import CopyCount, contiguous, result_arrays, row, row_count
from sanderling.run.engines.base import (
    Availability,
    Compute,
    DeviceInfo,
    DeviceKind,
    EngineOptions,
    Fidelity,
    Optimization,
    Placement,
    choose_device,
    cpu_device,
)

if TYPE_CHECKING:
    import onnx

_CPU = "cpu"
_OLDEST = 20261020  # earlier programs say otherwise which axes they drop
_NO_BATCH = 233  # ncnn's own number for "this tensor has no batch axis"
_MOST_AXES = 4  # of a tensor in ncnn, batch not counted
_CONVERT_S = 600
_STANDARD_ERROR = 2
_SOFTWARE = re.compile("llvmpipe|lavapipe|swiftshader", re.IGNORECASE)
_GPU_IS_CPU = 3  # ncnn's number for a Vulkan device that is a processor
_COMPLAINTS = re.compile(r"^todo |not supported|unsupported|CreateSession failed|read_proto_from_binary failed")
_PARAM, _BIN, _NET = "model.ncnn.param", "model.ncnn.bin", "net.json"


class Ncnn:
    """Runs float ONNX graphs with ncnn, converted by pnnx."""

    name = "ncnn"

    def availability(self) -> Availability:
        """Whether both packages are installed, new enough: pnnx converts, ncnn runs."""
        try:
            runs, converts = metadata.version("ncnn"), metadata.version("pnnx")
        except metadata.PackageNotFoundError:
            return Availability(False, hint="pip install ncnn pnnx")
        if min(_date(runs), _date(converts)) < _OLDEST:
            hint = f"pip install --upgrade ncnn pnnx (found {runs} and {converts}, both need {_OLDEST})"
            return Availability(False, hint=hint)
        return Availability(True, version=f"{runs}+pnnx.{converts}")

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The processor, and every GPU that Vulkan reaches."""
        return (_cpu(self.name), *_gpus(self.name))

    def load(self, model: Path | bytes, options: EngineOptions) -> NcnnExecutable:
        """Convert a graph, or take it from ``options.cache`` when it was converted before.

        Raises:
            OptionError: an unknown device, or arithmetic that it does not offer.
            ModelError: the graph is invalid, is no FP32 variant, or pnnx or ncnn does not take it.
            EngineError: conversion or loading failed for another reason.
        """
        known = (_cpu(self.name),) if options.device in ("", _CPU) else self.devices()
        device = choose_device(known, options)
        graph = _read(model)
        entry = options.cache and options.cache / f"ncnn-{_key(graph)}"
        net = _kept(entry) if entry else None
        if entry and net:
            return _executable(_load(entry, device, options), graph, net, device, note="")
        with tempfile.TemporaryDirectory(prefix="sanderling-ncnn-") as scratch:
            folder = Path(scratch)
            net = _convert(graph, folder)
            loaded = _load(folder, device, options)
            note = _keep(folder, net, entry) if entry else ""
        return _executable(loaded, graph, net, device, note=note)


class NcnnExecutable:
    """One net. Every call has an extractor of its own."""

    def __init__(self, loaded: Any, graph: _Graph, net: _Net, placement: Placement) -> None:  # noqa: ANN401 - untyped
        import ncnn

        self._ncnn = ncnn
        self._loaded = loaded
        self._net = net
        self._by_row = graph.by_row
        self.placement = placement
        self.inputs = graph.inputs
        self.outputs = graph.outputs
        self._copied = CopyCount()

    @property
    def copied_bytes(self) -> int:
        """All bytes that went in and out: ncnn may write into its inputs, and lends its results for one call."""
        return self._copied.total

    def run(self, feeds: Feeds, outputs: Feeds | None = None) -> dict[str, Array]:
        """Execute once; row by row where the batch is dynamic.

        Raises:
            EngineError: execution failed, or the net is closed.
        """
        loaded = self._loaded  # kept alive until this call is over, whoever closes meanwhile
        if loaded is None:
            raise EngineError("ncnn: the net is closed; load the package again")
        feeds = contiguous(feeds, self._copied)
        count = row_count(feeds, self.inputs, "ncnn") if self._by_row else 1
        results = result_arrays(self.outputs, count, outputs, "ncnn")
        if not self._by_row:
            self._run_row(loaded, feeds, results)
            return results
        for index in range(count):
            self._run_row(loaded, row(feeds, index), row(results, index))
        return results

    def _run_row(self, loaded: Any, feeds: Feeds, results: Feeds) -> None:  # noqa: ANN401 - the runtime is untyped
        try:
            extractor = loaded.create_extractor()
            for index, (spec, axis) in enumerate(zip(self.inputs, self._net.input_axes, strict=True)):
                array = feeds[spec.name].reshape(spec.concrete_shape() or (1,))
                self._copied.add(array.nbytes)
                _check_code(extractor.input(f"in{index}", self._ncnn.Mat(array, batch_index=axis).clone()), spec)
            for index, (spec, axis) in enumerate(zip(self.outputs, self._net.output_axes, strict=True)):
                code, mat = extractor.extract(f"out{index}")
                _check_code(code, spec)
                results[spec.name][...] = mat.numpy(batch_index=axis).reshape(spec.concrete_shape())
                self._copied.add(results[spec.name].nbytes)
        except (RuntimeError, ValueError, MemoryError) as error:
            raise EngineError(f"ncnn failed while executing: {first_line(error)}") from error

    def close(self) -> None:
        """Drop the net; it is freed when the last running call is over."""
        self._loaded = None


@dataclass(frozen=True)
class _Graph:
    """An ONNX graph that ncnn may take.

    Attributes:
        by_row: its first axis is dynamic, and rows do not read each other.
        called: what messages call it.
    """

    proto: onnx.ModelProto
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    by_row: bool
    called: str


@dataclass(frozen=True)
class _Net:
    """What pnnx made: positions of the batch axes that ncnn drops, and hashes of the files."""

    input_axes: tuple[int, ...]
    output_axes: tuple[int, ...]
    param_sha256: str
    bin_sha256: str


def _date(version: str) -> int:
    """``1.0.20261020`` and ``20261020`` are both of that day."""
    found = re.search(r"\d{8}", version)
    return int(found[0]) if found else 0


def _cpu(engine: str) -> DeviceInfo:
    return cpu_device(engine, (Precision.FP32,), computes=(Compute.EXACT, Compute.BF16, Compute.FP16))


def _gpus(engine: str) -> Iterator[DeviceInfo]:
    try:
        CDLL("libvulkan.so.1")  # ncnn prints eight lines when it is missing
    except OSError:
        return
    import ncnn

    for index in range(_gpu_count()):
        info = ncnn.get_gpu_info(index)
        software = info.type() == _GPU_IS_CPU or _SOFTWARE.search(info.device_name())
        yield DeviceInfo(
            engine=engine,
            device=f"gpu:{index}",
            kind=DeviceKind.GPU,
            fidelity=Fidelity.SOFTWARE if software else Fidelity.HARDWARE,
            description=info.device_name(),
            memory_bytes=None,
            precisions=(Precision.FP32,),
            computes=(Compute.EXACT, Compute.FP16),
        )


@cache
def _gpu_count() -> int:
    """How many devices Vulkan has; ncnn describes each in four lines on standard error when it is first asked."""
    import ncnn

    try:
        kept = os.dup(_STANDARD_ERROR)
    except OSError:  # it is closed
        return int(ncnn.get_gpu_count())
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, _STANDARD_ERROR)
        return int(ncnn.get_gpu_count())
    finally:
        os.dup2(kept, _STANDARD_ERROR)
        os.close(kept)
        os.close(nowhere)


def _read(model: Path | bytes) -> _Graph:
    """Read a graph with its weights, and check what can be known before conversion.

    Raises:
        ModelError: the graph is invalid, is no FP32 variant, or has dynamic axes that ncnn does not take.
    """
    import onnx

    from sanderling.model.graph import input_specs, output_specs

    called = str(model) if isinstance(model, Path) else "the model"
    try:
        proto = onnx.load(model, format="protobuf") if isinstance(model, Path) else onnx.load_from_string(model)
        onnx.checker.check_model(proto)
    except Exception as error:
        raise ModelError(f"ncnn does not take {called}: {first_line(error)}") from error
    initializers = {tensor.name for tensor in proto.graph.initializer}
    listed = [value for value in proto.graph.input if value.name not in initializers]
    del proto.graph.input[:]
    proto.graph.input.extend(listed)
    inputs, outputs = input_specs(proto), output_specs(proto)
    try:
        _check_float32(proto, (*inputs, *outputs))
        by_row = has_rows(inputs, outputs)
        if by_row:
            check_rows(proto)
    except ModelError as error:
        raise ModelError(f"ncnn does not take {called}: {error}") from error
    return _Graph(proto, inputs, outputs, by_row, called)


def _check_float32(proto: onnx.ModelProto, specs: Sequence[TensorSpec]) -> None:
    from sanderling.model.graph import all_nodes

    for spec in specs:
        if spec.dtype != "float32":
            raise ModelError(f"'{spec.name}' is {spec.dtype}, and only float32 goes in and out")
    for node in all_nodes(proto.graph):
        if "Quantize" in node.op_type or node.op_type.startswith("QLinear") or node.op_type.endswith("Integer"):
            raise ModelError(f"operator {node.op_type}: pnnx makes no INT8 net; take the FP32 variant")
    for tensor in proto.graph.initializer:
        if tensor.data_type in (tensor.FLOAT16, tensor.BFLOAT16):
            raise ModelError(f"weight '{tensor.name}' is 16-bit: take the FP32 variant, and compute in fp16 or bf16")


def _convert(graph: _Graph, folder: Path) -> _Net:
    """Run pnnx in ``folder``, which keeps all that it writes.

    Raises:
        ModelError: pnnx or ncnn does not take the graph.
        EngineError: pnnx could not be run, or took too long.
    """
    proto = with_rows(graph.proto, 1)
    try:
        (folder / "model.onnx").write_bytes(proto.SerializeToString())
        variables = {**os.environ, "ORT_DISABLE_TELEMETRY": "1"}  # it has an ONNX Runtime inside
        command = [str(_pnnx()), "model.onnx", "fp16=0"]
        done = run_command(command, timeout_s=_CONVERT_S, folder=folder, variables=variables)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"ncnn: pnnx could not convert {graph.called}: {first_line(error)}") from error
    complaints = [line for line in done.stderr.splitlines() if _COMPLAINTS.search(line)]
    if complaints:
        told = "; ".join(line.strip() for line in complaints)
        raise ModelError(f"ncnn does not take {graph.called}: {first_line(EngineError(told))}")
    if done.returncode or not (folder / _PARAM).is_file():
        raise EngineError(f"ncnn: pnnx could not convert {graph.called}: it ended with status {done.returncode}")
    try:
        _check_layers(folder / _PARAM)
        return _described(graph, folder)
    except ModelError as error:
        raise ModelError(f"ncnn does not take {graph.called}: {error}") from error


def _pnnx() -> Path:
    """The program itself: importing its package would import torch, which it does not need."""
    spec = importlib.util.find_spec("pnnx")
    folder = Path(spec.origin).parent if spec and spec.origin else Path()
    return folder / ("pnnx.exe" if os.name == "nt" else "pnnx")


def _check_layers(param: Path) -> None:
    """Refuse a net with layers that ncnn does not have: pnnx leaves what it cannot convert as it was."""
    import ncnn

    layers = [line.split()[:2] for line in param.read_text().splitlines()[2:] if line.strip()]
    for kind, name in layers:
        if ncnn.layer_to_index(kind) < 0:
            raise ModelError(f"operator {kind} ('{name}') has no layer in ncnn")


def _described(graph: _Graph, folder: Path) -> _Net:
    """Read from pnnx's own example program which axes ncnn drops, and check inputs and outputs against the graph.

    Raises:
        ModelError: an input or output is missing or has another shape, or ncnn cannot hold it.
    """
    program = (folder / "model_ncnn.py").read_text()
    inputs = [int(axis) for axis in re.findall(r"ex\.input\(.*batch_index=(\d+)", program)]
    outputs = [int(axis) for axis in re.findall(r"out\.append\(.*batch_index=(\d+)", program)]
    declared = (folder / "model.pnnx.param").read_text().splitlines()
    found_in, found_out = _pnnx_shapes(declared, "pnnx.Input"), _pnnx_shapes(declared, "pnnx.Output")
    for specs, axes, found in ((graph.inputs, inputs, found_in), (graph.outputs, outputs, found_out)):
        wanted = [spec.concrete_shape() for spec in specs]
        if found != wanted or len(axes) != len(wanted):
            raise ModelError(f"pnnx makes inputs or outputs of shapes {found}: the graph has {wanted}")
        for shape, axis in zip(wanted, axes, strict=True):
            _check_shape(shape, axis)
    if any(axis != _NO_BATCH for axis in inputs):
        _check_single_row(graph)
    return _Net(tuple(inputs), tuple(outputs), sha256_of(folder / _PARAM), sha256_of(folder / _BIN))


def _pnnx_shapes(lines: list[str], kind: str) -> list[tuple[int, ...]]:
    """Shapes of all inputs or outputs, noted as ``#0=(1,3,8,8)f32``; a scalar has none."""
    noted = [re.search(r"#\w+=\(([\d,]+)\)", line) for line in lines if line.startswith(f"{kind} ")]
    return [tuple(int(size) for size in note[1].split(",")) if note else () for note in noted]


def _check_shape(shape: tuple[int, ...], axis: int) -> None:
    if axis != _NO_BATCH and shape[axis] != 1:
        raise ModelError(f"a batch of {shape[axis]}: ncnn takes one row; export it with a batch of 1 or a dynamic one")
    if len(shape) - (axis != _NO_BATCH) > _MOST_AXES:
        raise ModelError(f"shape {shape} has more than {_MOST_AXES} axes without the batch")


def _check_single_row(graph: _Graph) -> None:
    """pnnx drops the axis of size 1, and then converts a reduction along it to one along nothing."""
    shapes = inferred_shapes(graph.proto, 1)
    for node in graph.proto.graph.node:
        rank = len(shapes.get(node.input[0], ((), True))[0]) if node.input else 0
        if node.op_type.startswith("Reduce") and reads_first_axis(node, graph.proto, rank):
            raise ModelError(f"operator {node.op_type} ('{node.name}') reduces along the batch, which pnnx drops")


def _load(folder: Path, device: DeviceInfo, options: EngineOptions) -> Any:  # noqa: ANN401 - the runtime is untyped
    import ncnn

    net = ncnn.Net()
    settings = net.opt
    half, brain = options.compute is Compute.FP16, options.compute is Compute.BF16
    settings.use_fp16_packed = settings.use_fp16_storage = settings.use_fp16_arithmetic = half
    settings.use_bf16_packed = settings.use_bf16_storage = brain
    settings.use_winograd_convolution = options.optimization is Optimization.ALL and not options.lean
    settings.use_vulkan_compute = device.kind is DeviceKind.GPU
    if options.threads:
        settings.num_threads = options.threads
    if device.kind is DeviceKind.GPU:
        net.set_vulkan_device(int(device.device.partition(":")[2]))
    if net.load_param(str(folder / _PARAM)) or net.load_model(str(folder / _BIN)):
        raise EngineError(f"ncnn could not load the net that pnnx made, for {device.device}")
    return net


def _executable(loaded: Any, graph: _Graph, net: _Net, device: DeviceInfo, *, note: str) -> NcnnExecutable:  # noqa: ANN401
    """Join the parts; a layer without a Vulkan kernel runs on the CPU, and ncnn says so only when asked."""
    layers = loaded.layers()
    fell_back: tuple[str, ...] = ()
    if device.kind is DeviceKind.GPU:
        fell_back = tuple(layer.name for layer in layers if not layer.support_vulkan)
    on_cpu = len(fell_back) / len(layers)
    kinds = {device.kind: 1.0 - on_cpu} | ({DeviceKind.CPU: on_cpu} if fell_back else {})
    placement = Placement(device.device, kinds, fell_back, f"{device.description}: {len(layers)} layers{note}")
    return NcnnExecutable(loaded, graph, net, placement)


def _key(graph: _Graph) -> str:
    """Names what a conversion depends on: the graph with its weights, and both programs."""
    digest = hashlib.sha256(graph.proto.SerializeToString(deterministic=True))
    digest.update(f"{metadata.version('pnnx')} {metadata.version('ncnn')}".encode())
    return digest.hexdigest()[:32]


def _kept(entry: Path) -> _Net | None:
    """What was converted before, or None when it is not there or is damaged."""
    try:
        fields = json.loads((entry / _NET).read_bytes())
        axes = tuple(fields["input_axes"]), tuple(fields["output_axes"])
        net = _Net(*axes, fields["param_sha256"], fields["bin_sha256"])
        intact = (sha256_of(entry / _PARAM), sha256_of(entry / _BIN)) == (net.param_sha256, net.bin_sha256)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return net if intact else None


def _keep(folder: Path, net: _Net, entry: Path) -> str:
    """Copy a conversion to the cache. A cache that cannot be written costs time only: the answer says why."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with replacing(entry) as temporary:
            temporary.mkdir()
            shutil.copyfile(folder / _PARAM, temporary / _PARAM)
            shutil.copyfile(folder / _BIN, temporary / _BIN)
            (temporary / _NET).write_text(json.dumps(asdict(net)))
    except (OSError, OutputError) as error:
        return f"; not cached: {first_line(error)}"
    return ""


def _check_code(code: int, spec: TensorSpec) -> None:
    if code:
        raise EngineError(f"ncnn failed while executing: '{spec.name}' gave code {code}")


ENGINE = Ncnn()
