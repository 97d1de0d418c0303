"""OpenVINO: Intel's engine for its CPUs, GPUs and NPUs; its CPU plugin runs on any x86-64 or Arm processor.

Four of its ways are not ours. It computes float nodes in bf16 where the CPU can: here they are computed as the
graph says unless other arithmetic is asked for. It reports every import to its maker: here it is imported without its
reporter. It trusts its compile cache: here a compiled graph is kept with its hash, as OpenVINO was seen to load a
blob with altered weights and return wrong numbers. And with one thread it forgets that shapes inside a graph
contradicted each other, and returns memory that nobody wrote: here shapes are checked before. So they are where results
are written to the caller's arrays, as it leaves one that is too small as it was, without a word. It optimises a graph
always and fully, so ``optimization`` and ``lean`` change nothing.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import psutil
from pydantic import BaseModel

from sanderling.core.errors import EngineError, ModelError, SanderlingError, first_line
from sanderling.core.files import sha256_of
from sanderling.core.precision import Precision
from sanderling.core.tensor import Array, Feeds, TensorSpec
from sanderling.run.copies import CopyCount, check_shape, copied, usual, write_results
from sanderling.run.engines.base import (
    Availability,
    Compute,
    DeviceInfo,
    DeviceKind,
    EngineOptions,
    Fidelity,
    Placement,
    choose_device,
)
from sanderling.run.sealed import SEAL_BYTES, seal

if TYPE_CHECKING:
    import onnx

_CAPABILITIES = {Compute.EXACT: "FP32", Compute.BF16: "BF16", Compute.FP16: "FP16"}
_PRECISION_HINTS = {Compute.EXACT: "f32", Compute.BF16: "bf16", Compute.FP16: "f16"}
_DTYPES = {
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "bf16": "bfloat16",
    "boolean": "bool",
    "string": "str",
}
_NOT_COMPUTED = ("Const", "Input", "Output")  # nodes of a compiled graph that hold data
_NOISE = re.compile(r"^(Exception from |Check '|FrontEnd API failed|Model wasn't fully|Summary:|To facilitate)")
_UNSUPPORTED = re.compile(r"No conversion rule found for operations: (.+)")
_REFUSED = re.compile(r"unsupported|not supported|not implemented|cannot create", re.IGNORECASE)
_FIXED_BYTES = SEAL_BYTES + 8  # a cache file's seal, and where its compiled graph starts
_ALIGNED_BYTES = 64
_IMPORTING = threading.Lock()

Shapes = tuple[tuple[int, ...], ...]


class OpenVino:
    """Runs ONNX graphs with OpenVINO, on the device asked for and no other."""

    name = "openvino"

    def availability(self) -> Availability:
        """Whether the package is installed."""
        try:
            return Availability(True, version=metadata.version("openvino"))
        except metadata.PackageNotFoundError:
            return Availability(False, hint="pip install openvino")

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The processor, and the GPUs and NPUs whose drivers are here."""
        return tuple(_device(self.name, plugin) for plugin in openvino_core().available_devices)

    def load(self, model: Path | bytes, options: EngineOptions) -> OpenVinoExecutable:
        """Compile a graph, or take it from ``options.cache`` when it was compiled before.

        Raises:
            OptionError: an unknown device, or arithmetic that it does not offer.
            ModelError: the graph is invalid or has an operator that OpenVINO does not take.
            EngineError: compilation failed, or the graph would not run where and as asked.
        """
        device = choose_device(self.devices(), options)
        plugin = next(name for name in openvino_core().available_devices if _public_name(name) == device.device)
        target = _Target(plugin, _settings(device, options))
        entry = _cache_entry(model, target, options.cache)
        loaded = _from_cache(entry, model, target) if entry is not None else None
        note = ""
        if loaded is None:
            graph = _read(model)
            loaded = _Loaded(_compiled(graph, target), graph)
            note = _to_cache(entry, loaded) if entry is not None else ""
        return OpenVinoExecutable(loaded, _placement(loaded.compiled, device, target, note))


class OpenVinoExecutable:
    """One compiled graph; every call has an infer request of its own, and requests are used again."""

    def __init__(self, loaded: _Loaded, placement: Placement) -> None:
        compiled, graph = loaded.compiled, loaded.graph
        self._loaded: _Loaded | None = loaded
        self._idle: deque[_Request] = deque()
        self._copied = CopyCount()
        self.placement = placement
        self.inputs = graph.inputs
        self.outputs = graph.outputs
        self._fed = _fed_inputs(compiled, graph)
        self._infer_shapes = _shape_inference(graph, tuple(self._fed))
        self._forgets_shapes = _forgets_shapes(compiled, graph)
        self._positions = _output_positions(compiled, graph)
        self._is_fixed = all(port.partial_shape.is_static for port in compiled.outputs)

    @property
    def copied_bytes(self) -> int:
        """Bytes of inputs that are read-only or not contiguous, and of results that were not written to ``outputs``, or
        could not be, as only their values decide their shape.
        """
        return self._copied.total

    def run(self, feeds: Feeds, outputs: Feeds | None = None) -> dict[str, Array]:
        """Execute once.

        Raises:
            EngineError: execution failed, an output does not fit its array, or the graph is closed.
        """
        loaded = self._loaded  # held until the call ends, with the memory that its weights may be in
        if loaded is None:
            raise EngineError("openvino: the graph is closed; load the package again")
        try:
            bound = outputs if outputs is not None and self._can_bind(feeds, outputs) else None
            if self._forgets_shapes:
                self._infer_shapes(self._shapes_of(feeds))
            request = self._request(loaded.compiled)
            results = request.infer(self._readable(feeds), bound)
        except SanderlingError:
            raise
        except Exception as error:
            raise EngineError(f"openvino failed while executing: {_reason(error)}") from error
        self._idle.append(request)
        if self._loaded is None:  # closed meanwhile
            self._idle.clear()
        if bound is None:
            self._copied.add(sum(array.nbytes for array in results.values()))
        if outputs is None or bound is not None:
            return results
        return write_results(results, outputs, "openvino", self._copied)

    def _request(self, compiled: Any) -> _Request:  # noqa: ANN401 - the runtime is untyped
        try:
            return self._idle.pop()
        except IndexError:
            return _Request(compiled.create_infer_request(), self._positions)

    def _shapes_of(self, feeds: Feeds) -> Shapes:
        return tuple(feeds[name].shape for name in self._fed)

    def _can_bind(self, feeds: Feeds, outputs: Feeds) -> bool:
        """Whether it is certain that the results have the shapes of ``outputs``.

        Raises:
            EngineError: it is certain that they have not.
        """
        if self._is_fixed:
            return True
        made = self._infer_shapes(self._shapes_of(feeds))
        for name, position in self._positions.items():
            shape = made[position]
            if shape is not None:
                check_shape(name, shape, outputs[name], "openvino")
        return None not in made

    def _readable(self, feeds: Feeds) -> list[tuple[int, Array]]:
        """Inputs by position, as OpenVINO can read them in place; it wants to be able to write to them."""
        return [
            (position, array if array.flags.c_contiguous and array.flags.writeable else copied(array, self._copied))
            for position, array in ((position, feeds[name]) for name, position in self._fed.items())
        ]

    def close(self) -> None:
        """Drop the compiled graph and its requests."""
        self._loaded = None
        self._idle.clear()


class _Request:
    """An infer request with output tensors of its own, which it gets back after each run on the caller's arrays."""

    def __init__(self, request: Any, positions: Mapping[str, int]) -> None:  # noqa: ANN401 - the runtime is untyped
        from openvino import Tensor

        self._request = request
        self._positions = positions
        self._tensor = Tensor
        self._own = [request.get_output_tensor(position) for position in positions.values()]

    def infer(self, inputs: Sequence[tuple[int, Array]], outputs: Feeds | None) -> dict[str, Array]:
        """Execute once; ``inputs`` must live until the end. Without ``outputs``, the results are copies."""
        request = self._request
        for position, array in inputs:
            request.set_input_tensor(position, self._tensor_of(array))
        if outputs is None:
            found = request.infer()
            return {name: found[position] for name, position in self._positions.items()}
        for name, position in self._positions.items():
            request.set_output_tensor(position, self._tensor_of(outputs[name]))
        request.infer(share_outputs=True)
        for position, tensor in zip(self._positions.values(), self._own, strict=True):
            request.set_output_tensor(position, tensor)
        return {name: outputs[name] for name in self._positions}

    def _tensor_of(self, array: Array) -> Any:  # noqa: ANN401 - the runtime is untyped
        """A tensor in the array's memory; strings are copied."""
        return self._tensor(usual(array), shared_memory=array.dtype.kind not in "UO")


@dataclass(frozen=True)
class _Graph:
    """What is read from the ONNX graph, as OpenVINO forgets names of axes and inputs that nothing uses."""

    source: Path | bytes
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    external: Mapping[str, str]  # file of external data to its SHA-256


class _Header(BaseModel):
    """What a cache file says before the compiled graph, so that the ONNX graph need not be parsed again."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    external: dict[str, str]


@dataclass(frozen=True)
class _Loaded:
    """A compiled graph; ``blob`` is what it was read from, which OpenVINO does not keep alive."""

    compiled: Any
    graph: _Graph
    blob: npt.NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class _Target:
    """OpenVINO's name of a device, and how to compile for it."""

    plugin: str
    settings: Mapping[str, str]


@functools.cache
def openvino_core() -> Any:  # noqa: ANN401 - the runtime is untyped
    """OpenVINO's core, imported without its reporter."""
    with _IMPORTING, _without_reporter():
        import openvino
    return openvino.Core()


@contextmanager
def _without_reporter() -> Iterator[None]:
    """Hide ``openvino_telemetry`` while OpenVINO is imported: OpenVINO then takes its own stub, which sends nothing.

    The documented opt-out is a file in the user's home, which is not ours to write.
    """
    kept = sys.modules.get("openvino_telemetry")
    sys.modules["openvino_telemetry"] = cast("Any", None)  # makes its import fail
    try:
        yield
    finally:
        sys.modules.pop("openvino_telemetry")
        if kept is not None:
            sys.modules["openvino_telemetry"] = kept


def _public_name(plugin: str) -> str:
    """``GPU`` and ``GPU.0`` are both ``gpu:0``: OpenVINO numbers GPUs only where there are several."""
    return "gpu:0" if plugin == "GPU" else plugin.lower().replace(".", ":")


def _device(engine: str, plugin: str) -> DeviceInfo:
    core = openvino_core()
    name = _public_name(plugin)
    kind = DeviceKind(name.partition(":")[0])
    offered = core.get_property(plugin, "OPTIMIZATION_CAPABILITIES")
    return DeviceInfo(
        engine=engine,
        device=name,
        kind=kind,
        fidelity=Fidelity.HARDWARE,
        description=str(core.get_property(plugin, "FULL_DEVICE_NAME")).strip() or plugin,
        memory_bytes=_memory_bytes(plugin, kind),
        precisions=tuple(Precision),
        computes=tuple(compute for compute, capability in _CAPABILITIES.items() if capability in offered),
    )


def _memory_bytes(plugin: str, kind: DeviceKind) -> int | None:
    if kind is DeviceKind.CPU:
        return int(psutil.virtual_memory().total)
    if "GPU_DEVICE_TOTAL_MEM_SIZE" in openvino_core().get_property(plugin, "SUPPORTED_PROPERTIES"):
        return int(openvino_core().get_property(plugin, "GPU_DEVICE_TOTAL_MEM_SIZE"))
    return None


def _settings(device: DeviceInfo, options: EngineOptions) -> dict[str, str]:
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "EXECUTION_MODE_HINT": "ACCURACY",  # else weights kept as int8 make float nodes quantise their inputs
        "INFERENCE_PRECISION_HINT": _PRECISION_HINTS[options.compute],
    }
    if options.threads and device.kind is DeviceKind.CPU:
        settings["INFERENCE_NUM_THREADS"] = str(options.threads)
    return settings


def _read(model: Path | bytes) -> _Graph:
    import onnx

    from sanderling.model.graph import input_specs, output_specs

    try:
        data = model.read_bytes() if isinstance(model, Path) else model
        proto = onnx.load_from_string(data)
    except Exception as error:
        raise ModelError(f"openvino does not take {_called(model)}: {first_line(error)}") from error
    if not proto.graph.output:
        raise ModelError(f"openvino does not take {_called(model)}: it is no ONNX graph, or is cut short")
    external = _hashes(model, _external_files(proto))
    return _Graph(model, input_specs(proto), output_specs(proto), external)


def _hashes(model: Path | bytes, locations: Iterable[str]) -> dict[str, str]:
    """SHA-256 of each file of external data beside the graph."""
    if not isinstance(model, Path):
        return {}
    files = {location: model.parent / location for location in locations}
    return {location: sha256_of(file) if file.is_file() else "missing" for location, file in files.items()}


def _external_files(proto: onnx.ModelProto) -> list[str]:
    from sanderling.model.graph import all_nodes

    attributes = [attribute for node in all_nodes(proto.graph) for attribute in node.attribute]
    tensors = [*proto.graph.initializer, *(attribute.t for attribute in attributes)]
    tensors += [tensor for attribute in attributes for tensor in attribute.g.initializer]
    return sorted({entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"})


def _compiled(graph: _Graph, target: _Target) -> Any:  # noqa: ANN401 - the runtime is untyped
    core = openvino_core()
    try:
        network = core.read_model(graph.source)
    except Exception as error:
        raise ModelError(f"openvino does not take {_called(graph.source)}: {_reason(error)}") from error
    try:
        return core.compile_model(network, target.plugin, dict(target.settings))
    except Exception as error:
        reason = _reason(error)
        if _REFUSED.search(reason):
            raise ModelError(f"openvino on {target.plugin} does not take {_called(graph.source)}: {reason}") from error
        raise EngineError(
            f"openvino could not compile {_called(graph.source)} for {target.plugin}: {reason}"
        ) from error


def _cache_entry(model: Path | bytes, target: _Target, cache: Path | None) -> Path | None:
    """File for this graph, engine, device and settings; None without a cache, or where the device cannot export."""
    core = openvino_core()
    offered = core.get_property(target.plugin, "OPTIMIZATION_CAPABILITIES")
    if cache is None or "EXPORT_IMPORT" not in offered or (isinstance(model, Path) and not model.is_file()):
        return None
    described = (
        sha256_of(model) if isinstance(model, Path) else hashlib.sha256(model).hexdigest(),
        metadata.version("openvino"),
        target.plugin,
        str(core.get_property(target.plugin, "FULL_DEVICE_NAME")),
        sorted(offered),
        sorted(target.settings.items()),
    )
    return cache / f"openvino-{hashlib.sha256(repr(described).encode()).hexdigest()[:32]}.blob"


def _from_cache(entry: Path, model: Path | bytes, target: _Target) -> _Loaded | None:
    """The compiled graph, or None when it is not there, damaged, of other external data, or refused by OpenVINO."""
    try:
        data = np.fromfile(entry, np.uint8)
        if hashlib.sha256(data[SEAL_BYTES:].data).digest() != data[:SEAL_BYTES].tobytes():
            return None
        start = int.from_bytes(data[SEAL_BYTES:_FIXED_BYTES].tobytes(), "little")
        header = _Header.model_validate_json(data[_FIXED_BYTES:start].tobytes())
        if _hashes(model, header.external) != header.external:
            return None
        compiled = _imported(data[start:], target)
    except (OSError, ValueError, RuntimeError):
        return None
    return _Loaded(compiled, _Graph(model, header.inputs, header.outputs, header.external), data)


def _imported(blob: npt.NDArray[np.uint8], target: _Target) -> Any:  # noqa: ANN401 - the runtime is untyped
    from openvino import Tensor

    return openvino_core().import_model(Tensor(blob, shared_memory=True), target.plugin, dict(target.settings))


def _to_cache(entry: Path, loaded: _Loaded) -> str:
    """Keep the compiled graph. A cache that cannot be written costs time only: the answer says why."""
    blob, graph = loaded.compiled.export_model(), loaded.graph
    header = _Header(inputs=graph.inputs, outputs=graph.outputs, external=dict(graph.external)).model_dump_json()
    told = header.encode()
    told += b" " * (-(_FIXED_BYTES + len(told)) % _ALIGNED_BYTES)
    start = (_FIXED_BYTES + len(told)).to_bytes(_FIXED_BYTES - SEAL_BYTES, "little")
    data = b"".join((start, told, blob if isinstance(blob, bytes) else blob.getbuffer()))
    return seal(data, entry)


def _placement(compiled: Any, device: DeviceInfo, target: _Target, note: str) -> Placement:  # noqa: ANN401 - untyped
    """What the compiled graph says of itself.

    Raises:
        EngineError: it would run elsewhere, or in other arithmetic, than asked.
    """
    executed = [str(name) for name in compiled.get_property("EXECUTION_DEVICES")]
    if [_public_name(name) for name in executed] != [device.device]:
        raise EngineError(f"openvino runs on {executed}: only {target.plugin} was asked for")
    asked = target.settings["INFERENCE_PRECISION_HINT"]
    used = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if used != asked:
        raise EngineError(f"openvino on {target.plugin} computes in {used}: {asked} was asked for")
    nodes = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    precisions = Counter(
        _info(node, "runtimePrecision") for node in nodes if _info(node, "layerType") not in _NOT_COMPUTED
    )
    counted = ", ".join(f"{count} in {precision}" for precision, count in precisions.most_common())
    return Placement(device.device, {device.kind: 1.0}, detail=f"{executed[0]}: nodes {counted or 'none'}{note}")


def _info(node: Any, key: str) -> str:  # noqa: ANN401 - the runtime is untyped
    return str(node[key].astype(str)) if key in node else "unknown"


def _forgets_shapes(compiled: Any, graph: _Graph) -> bool:  # noqa: ANN401 - the runtime is untyped
    """Whether shapes that contradict each other inside the graph would go unnoticed: on one processor or thread."""
    if not any(spec.dynamic_axes for spec in graph.inputs) or compiled.get_property("EXECUTION_DEVICES") != ["CPU"]:
        return False
    threads = int(compiled.get_property("INFERENCE_NUM_THREADS"))
    return min(threads, len(psutil.Process().cpu_affinity())) == 1


def _shape_inference(graph: _Graph, names: Sequence[str]) -> Callable[[Shapes], tuple[tuple[int, ...] | None, ...]]:
    """A function that infers the outputs' shapes from the inputs', once for each; it raises OpenVINO's error.

    None stands for a shape that the values of the inputs decide.
    """

    @functools.lru_cache(maxsize=256)
    def infer(shapes: Shapes) -> tuple[tuple[int, ...] | None, ...]:
        network = openvino_core().read_model(graph.source)  # not kept, as it holds the weights once more
        network.reshape({name: list(shape) for name, shape in zip(names, shapes, strict=True)})
        made = (port.partial_shape for port in network.outputs)
        return tuple(tuple(map(int, shape.to_shape())) if shape.is_static else None for shape in made)

    return infer


def _fed_inputs(compiled: Any, graph: _Graph) -> dict[str, int]:  # noqa: ANN401 - the runtime is untyped
    """Positions of the graph's inputs that OpenVINO kept: it drops those that nothing reads."""
    positions = {name: index for index, port in enumerate(compiled.inputs) for name in port.names}
    for spec in graph.inputs:
        if spec.name in positions:
            _check_dtype(compiled.inputs[positions[spec.name]], spec, graph)
    return {spec.name: positions[spec.name] for spec in graph.inputs if spec.name in positions}


def _output_positions(compiled: Any, graph: _Graph) -> dict[str, int]:  # noqa: ANN401 - the runtime is untyped
    """Where each output is; OpenVINO keeps the graph's order, and may know one tensor by several names."""
    ports = compiled.outputs
    if len(ports) != len(graph.outputs):
        raise EngineError(f"openvino returns {len(ports)} outputs: the graph has {len(graph.outputs)}")
    for port, spec in zip(ports, graph.outputs, strict=True):
        if spec.name not in port.names:
            raise EngineError(f"openvino returns {sorted(port.names)} in the place of the graph's '{spec.name}'")
        _check_dtype(port, spec, graph)
    return {spec.name: position for position, spec in enumerate(graph.outputs)}


def _check_dtype(port: Any, spec: TensorSpec, graph: _Graph) -> None:  # noqa: ANN401 - the runtime is untyped
    name = port.get_element_type().get_type_name()
    got = _DTYPES.get(name, name)
    if got != spec.dtype:
        raise ModelError(
            f"openvino does not take {_called(graph.source)}: '{spec.name}' is declared as {spec.dtype}, "
            f"but its nodes make it {got}"
        )


def _called(model: Path | bytes) -> str:
    return str(model) if isinstance(model, Path) else "the model"


def _reason(error: Exception) -> str:
    """What OpenVINO means, without the places in its own source that it names first."""
    text = str(error)
    unsupported = _UNSUPPORTED.search(text)
    if unsupported:
        return f"unsupported operator {unsupported[1].strip()}"
    told = [line.strip() for line in text.splitlines() if line.strip() and not _NOISE.match(line.strip())]
    return first_line(EngineError("; ".join(told) or text))


ENGINE = OpenVino()
