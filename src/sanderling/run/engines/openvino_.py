"""OpenVINO: Intel's engine for its CPUs, GPUs and NPUs; its CPU plugin runs on any x86-64 or Arm processor.

Four of its ways are not ours. It computes float nodes in bf16 where the CPU can: here they are computed as the
graph says unless other arithmetic is asked for. It reports every import to its maker: here it is imported without its
reporter. It trusts its compile cache: here a compiled graph is kept with its hash, as OpenVINO was seen to load a
blob with altered weights and return wrong numbers. And with one thread it forgets that shapes inside a graph
contradicted each other, and returns memory that nobody wrote: here shapes are checked before. It optimises a graph
always and fully, so ``optimization`` and ``lean`` change nothing.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psutil

from sanderling.core.errors import EngineError, ModelError, OutputError, first_line
from sanderling.core.files import replacing, sha256_of
from sanderling.core.precision import Precision
from sanderling.core.tensor import Array, Feeds, TensorSpec
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
_DIGEST_BYTES = 32  # of the SHA-256 that a cache file begins with
_IMPORTING = threading.Lock()


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
        return tuple(_device(self.name, plugin) for plugin in _core().available_devices)

    def load(self, model: Path | bytes, options: EngineOptions) -> OpenVinoExecutable:
        """Compile a graph, or take it from ``options.cache`` when it was compiled before.

        Raises:
            OptionError: an unknown device, or arithmetic that it does not offer.
            ModelError: the graph is invalid or has an operator that OpenVINO does not take.
            EngineError: compilation failed, or the graph would not run where and as asked.
        """
        device = choose_device(self.devices(), options)
        plugin = next(name for name in _core().available_devices if _public_name(name) == device.device)
        graph = _read(model)
        target = _Target(plugin, _settings(device, options))
        note = ""
        compiled = None
        entry = _cache_entry(graph, target, options.cache)
        if entry is not None:
            compiled = _from_cache(entry, target)
        if compiled is None:
            compiled = _compiled(graph, target)
            note = _to_cache(entry, compiled) if entry is not None else ""
        placement = _placement(compiled, device, target, note)
        return OpenVinoExecutable(compiled, graph, placement)


class OpenVinoExecutable:
    """One compiled graph; every call has an infer request of its own, and requests are used again."""

    def __init__(self, compiled: Any, graph: _Graph, placement: Placement) -> None:  # noqa: ANN401 - untyped
        self._compiled = compiled
        self._idle: deque[Any] = deque()
        self.placement = placement
        self.inputs = graph.inputs
        self.outputs = graph.outputs
        self._fed = _fed_inputs(compiled, graph)
        self._check_shapes = _shape_check(graph, self._fed) if _forgets_shapes(compiled, graph) else None
        self._positions = _output_positions(compiled, graph)

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Execute once.

        Raises:
            EngineError: execution failed, or the graph is closed.
        """
        compiled = self._compiled
        if compiled is None:
            raise EngineError("openvino: the graph is closed; load the package again")
        try:
            if self._check_shapes:
                self._check_shapes(tuple(feeds[name].shape for name in self._fed))
            request = self._request(compiled)
            results = request.infer({name: feeds[name] for name in self._fed}, share_inputs=True)  # outputs are copies
        except Exception as error:
            raise EngineError(f"openvino failed while executing: {_reason(error)}") from error
        self._idle.append(request)
        if self._compiled is None:  # closed meanwhile
            self._idle.clear()
        return {name: results[position] for name, position in self._positions.items()}

    def _request(self, compiled: Any) -> Any:  # noqa: ANN401 - the runtime is untyped
        try:
            return self._idle.pop()
        except IndexError:
            return compiled.create_infer_request()

    def close(self) -> None:
        """Drop the compiled graph and its requests."""
        self._compiled = None
        self._idle.clear()


@dataclass(frozen=True)
class _Graph:
    """What is read from the ONNX graph, as OpenVINO forgets names of axes and inputs that nothing uses."""

    source: Path | bytes
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    sha256: str  # of the graph and of its external data


@dataclass(frozen=True)
class _Target:
    """OpenVINO's name of a device, and how to compile for it."""

    plugin: str
    settings: Mapping[str, str]


@functools.cache
def _core() -> Any:  # noqa: ANN401 - the runtime is untyped
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
    core = _core()
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
        precisions=(Precision.FP32, Precision.FP16, Precision.INT8),
        computes=tuple(compute for compute, capability in _CAPABILITIES.items() if capability in offered),
    )


def _memory_bytes(plugin: str, kind: DeviceKind) -> int | None:
    if kind is DeviceKind.CPU:
        return int(psutil.virtual_memory().total)
    if "GPU_DEVICE_TOTAL_MEM_SIZE" in _core().get_property(plugin, "SUPPORTED_PROPERTIES"):
        return int(_core().get_property(plugin, "GPU_DEVICE_TOTAL_MEM_SIZE"))
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
    digest = hashlib.sha256(data)
    if isinstance(model, Path):
        for file in _external_files(proto, model.parent):
            digest.update(sha256_of(file).encode() if file.is_file() else b"missing")
    return _Graph(model, input_specs(proto), output_specs(proto), digest.hexdigest())


def _external_files(proto: onnx.ModelProto, folder: Path) -> list[Path]:
    from sanderling.model.graph import all_nodes

    attributes = [attribute for node in all_nodes(proto.graph) for attribute in node.attribute]
    tensors = [*proto.graph.initializer, *(attribute.t for attribute in attributes)]
    tensors += [tensor for attribute in attributes for tensor in attribute.g.initializer]
    locations = {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    return [folder / location for location in sorted(locations)]


def _compiled(graph: _Graph, target: _Target) -> Any:  # noqa: ANN401 - the runtime is untyped
    core = _core()
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


def _cache_entry(graph: _Graph, target: _Target, cache: Path | None) -> Path | None:
    """File for this graph, engine, device and settings; None without a cache, or where the device cannot export."""
    core = _core()
    offered = core.get_property(target.plugin, "OPTIMIZATION_CAPABILITIES")
    if cache is None or "EXPORT_IMPORT" not in offered:
        return None
    described = (
        graph.sha256,
        metadata.version("openvino"),
        target.plugin,
        str(core.get_property(target.plugin, "FULL_DEVICE_NAME")),
        sorted(offered),
        sorted(target.settings.items()),
    )
    return cache / f"openvino-{hashlib.sha256(repr(described).encode()).hexdigest()[:32]}.blob"


def _from_cache(entry: Path, target: _Target) -> Any | None:  # noqa: ANN401 - the runtime is untyped
    """The compiled graph, or None when it is not there, damaged, or refused by OpenVINO."""
    try:
        with entry.open("rb") as stream:
            digest, blob = stream.read(_DIGEST_BYTES), stream.read()
        if hashlib.sha256(blob).digest() != digest:
            return None
        return _core().import_model(blob, target.plugin, dict(target.settings))
    except (OSError, RuntimeError):
        return None


def _to_cache(entry: Path, compiled: Any) -> str:  # noqa: ANN401 - the runtime is untyped
    """Keep the compiled graph. A cache that cannot be written costs time only: the answer says why."""
    blob = compiled.export_model()
    data = blob if isinstance(blob, bytes) else blob.getvalue()
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with replacing(entry) as temporary, temporary.open("wb") as stream:
            stream.write(hashlib.sha256(data).digest())
            stream.write(data)
    except (OSError, OutputError) as error:
        return f"; not cached: {first_line(error)}"
    return ""


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


def _shape_check(graph: _Graph, names: Sequence[str]) -> Callable[[tuple[tuple[int, ...], ...]], None]:
    """A function that infers all shapes from those of the inputs, once for each; it raises OpenVINO's error."""

    @functools.lru_cache(maxsize=256)
    def check(shapes: tuple[tuple[int, ...], ...]) -> None:
        network = _core().read_model(graph.source)  # not kept, as it holds the weights once more
        network.reshape({name: list(shape) for name, shape in zip(names, shapes, strict=True)})

    return check


def _fed_inputs(compiled: Any, graph: _Graph) -> tuple[str, ...]:  # noqa: ANN401 - the runtime is untyped
    """The graph's inputs that OpenVINO kept: it drops those that nothing reads."""
    ports = {name: port for port in compiled.inputs for name in port.names}
    for spec in graph.inputs:
        if spec.name in ports:
            _check_dtype(ports[spec.name], spec, graph)
    return tuple(spec.name for spec in graph.inputs if spec.name in ports)


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
