"""Qualcomm's NPU (Hexagon, HTP) through the plugin for ONNX Runtime, or its emulation where there is none.

Only graphs with QuantizeLinear and DequantizeLinear around every operator are taken. The emulation would compute float
nodes in float32, which the NPU does not have: they are refused by name. Falling back to the processor is off in every
session.

The NPU runs fixed shapes: a graph is compiled once for each set of input shapes, with one row when it is loaded, and
for others when they first come. What is compiled is kept with its hash, as the plugin was seen to load a context with
altered bytes.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ctypes import CDLL
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sanderling.core.errors import EngineError, ModelError, first_line
from sanderling.core.precision import Precision
from sanderling.core.tensor import Array, Feeds, TensorSpec
from sanderling.run.copies import CopyCount, contiguous
from sanderling.run.engines.base import (
    Availability,
    DeviceInfo,
    DeviceKind,
    EngineOptions,
    Fidelity,
    Optimization,
    Placement,
    choose_device,
)
from sanderling.run.engines.onnxruntime_ import run_bound, run_failure
from sanderling.run.sealed import seal, unsealed

if TYPE_CHECKING:
    import onnx

_PROVIDER = "QNNExecutionProvider"
_DEVICE = "npu:htp"
_MOST_SHAPES = 4  # compiled graphs that are held at a time
_FATAL_ONLY = 4  # errors come back as exceptions, and are not printed as well
_MODEL_ERRORS = ("Fail", "InvalidArgument", "InvalidGraph", "NotImplemented")
_FELL_BACK = "fallback to CPU EP has been explicitly disabled"
_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_KEEP_ORDER = ("Clip", "Flatten", "Identity", "MaxPool", "Relu", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_SETTINGS_AS_INPUTS = ("Clip", "Pad", "Resize")  # operators whose inputs after the first hold no data
_LOADING = threading.Lock()
_BACKENDS: dict[str, CDLL] = {}  # by path
_Attributes = Mapping[str, Any]
_WRONG: dict[str, Callable[[_Attributes], bool]] = {  # operators that were seen to give wrong numbers, and when
    "AveragePool": lambda attributes: bool(attributes.get("ceil_mode")),
    "CumSum": lambda _: True,
    "LogSoftmax": lambda _: True,
    "Resize": lambda attributes: (
        attributes.get("mode", b"nearest") == b"nearest"
        and (attributes.get("coordinate_transformation_mode"), attributes.get("nearest_mode"))
        != (b"asymmetric", b"floor")
    ),
}

Shapes = tuple[tuple[int, ...], ...]


class Qnn:
    """Runs INT8 graphs on the NPU, or on its emulation, and nowhere else."""

    name = "qnn"

    def availability(self) -> Availability:
        """Whether the plugin is installed."""
        try:
            return Availability(True, version=metadata.version("onnxruntime-qnn"))
        except metadata.PackageNotFoundError:
            return Availability(False, hint="pip install onnxruntime-qnn")

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The NPU where the plugin finds one, else its emulation on this processor."""
        found = _plugin_device()
        hardware = _is_hardware(found)
        processor = platform.processor() or platform.machine()
        description = found.device.metadata.get("Description", "") if hardware else f"emulated on {processor}"
        return (
            DeviceInfo(
                engine=self.name,
                device=_DEVICE,
                kind=DeviceKind.NPU,
                fidelity=Fidelity.HARDWARE if hardware else Fidelity.SIMULATOR,
                description=f"{found.ep_vendor} HTP {description}".strip(),
                memory_bytes=None,
                precisions=(Precision.INT8,),
            ),
        )

    def load(self, model: Path | bytes, options: EngineOptions) -> QnnExecutable:
        """Compile a graph for one row, or take it from ``options.cache`` when it was compiled before.

        Raises:
            OptionError: an unknown device, or arithmetic that it does not offer.
            ModelError: the graph is invalid, computes in float, or has an operator that the NPU does not take.
            EngineError: compilation failed for another reason.
        """
        device = choose_device(self.devices(), options)
        compiler = _Compiler(_read(model), device, options)
        shapes = tuple(spec.concrete_shape() for spec in compiler.graph.inputs)
        session, note = compiler.session(shapes)
        detail = f"{_PROVIDER}: {_assigned(session)}, {device.description}{note}"
        return QnnExecutable(compiler, {shapes: session}, Placement(device.device, {device.kind: 1.0}, detail=detail))


class QnnExecutable:
    """One graph, compiled for the shapes that came last."""

    def __init__(self, compiler: _Compiler, sessions: Mapping[Shapes, Any], placement: Placement) -> None:
        self._compiler: _Compiler | None = compiler
        self._sessions = OrderedDict(sessions)
        self._lock = threading.Lock()
        self.placement = placement
        self.inputs = compiler.graph.inputs
        self.outputs = compiler.graph.outputs
        self._output_names = [spec.name for spec in self.outputs]
        self._copied = CopyCount()

    @property
    def copied_bytes(self) -> int:
        """Bytes of inputs that had to be made contiguous; the plugin is given the memory of all others."""
        return self._copied.total

    def run(self, feeds: Feeds, outputs: Feeds | None = None) -> dict[str, Array]:
        """Execute once; shapes that did not come before are compiled for first.

        Raises:
            EngineError: compilation or execution failed, an output does not fit its array, or the graph is closed.
        """
        session = self._session(tuple(feeds[spec.name].shape for spec in self.inputs))
        feeds = contiguous(feeds, self._copied)
        try:
            if outputs is not None:
                return run_bound(session, feeds, outputs, self._output_names, self._copied)
            results = session.run(self._output_names, feeds)
        except Exception as error:
            raise EngineError(f"qnn failed while executing: {run_failure(error)}") from error
        return {name: np.asarray(result) for name, result in zip(self._output_names, results, strict=True)}

    def _session(self, shapes: Shapes) -> Any:  # noqa: ANN401 - the runtime is untyped
        with self._lock:
            if self._compiler is None:
                raise EngineError("qnn: the graph is closed; load the package again")
            if shapes not in self._sessions:
                self._sessions[shapes] = self._compiled(self._compiler, shapes)
            self._sessions.move_to_end(shapes)
            if len(self._sessions) > _MOST_SHAPES:
                self._sessions.popitem(last=False)
            return self._sessions[shapes]

    def _compiled(self, compiler: _Compiler, shapes: Shapes) -> Any:  # noqa: ANN401 - the runtime is untyped
        if any(0 in shape for shape in shapes):
            raise EngineError(f"qnn runs no empty inputs: got shapes {shapes}, expected at least one row")
        try:
            session, _ = compiler.session(shapes)
        except ModelError as error:
            raise EngineError(f"qnn cannot run inputs of shapes {shapes}: {error}") from error
        _assigned(session)
        return session

    def close(self) -> None:
        """Drop the compiled graphs."""
        with self._lock:
            self._compiler = None
            self._sessions.clear()


@dataclass(frozen=True)
class _Graph:
    """A graph as the NPU takes it, but for its dynamic axes; ``called`` is what messages call it."""

    proto: onnx.ModelProto
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    called: str


@dataclass(frozen=True)
class _Compiler:
    """Makes sessions of a graph."""

    graph: _Graph
    device: DeviceInfo
    options: EngineOptions

    def session(self, shapes: Shapes) -> tuple[Any, str]:
        """A session for inputs of these shapes, and a note where it could not be cached.

        Raises:
            ModelError: the NPU does not take the graph.
            EngineError: compilation failed for another reason.
        """
        data = _with_shapes(self.graph.proto, shapes).SerializeToString(deterministic=True)
        entry = self._cache_entry(data)
        if entry is None:
            return self._compile(data, {}), ""
        kept = _from_cache(entry, self.options)
        if kept is not None:
            return kept, ""
        with tempfile.TemporaryDirectory(prefix="sanderling-qnn-") as scratch:
            context = Path(scratch) / "context.onnx"
            settings = {"ep.context_enable": "1", "ep.context_embed_mode": "1", "ep.context_file_path": str(context)}
            session = self._compile(data, settings)
            return session, seal(context, entry)

    def _compile(self, data: bytes, settings: Mapping[str, str]) -> Any:  # noqa: ANN401 - the runtime is untyped
        try:
            return _session(data, self.options, settings)
        except Exception as error:
            if _FELL_BACK in str(error):
                raise self._refusal(_left_over(data, self.options)) from error
            if type(error).__name__ in _MODEL_ERRORS:
                raise self._refusal(first_line(error)) from error
            raise EngineError(f"qnn could not compile {self.graph.called}: {first_line(error)}") from error

    def _refusal(self, reason: str) -> ModelError:
        return ModelError(f"qnn does not take {self.graph.called}: {reason}")

    def _cache_entry(self, data: bytes) -> Path | None:
        if self.options.cache is None:
            return None
        described = (
            hashlib.sha256(data).hexdigest(),
            metadata.version("onnxruntime-qnn"),
            metadata.version("onnxruntime"),
            self.device.description,
            self.options.optimization,
            sorted(_provider_settings().items()),
        )
        return self.options.cache / f"qnn-{hashlib.sha256(repr(described).encode()).hexdigest()[:32]}.context"


@functools.cache
def _plugin_device() -> Any:  # noqa: ANN401 - the runtime is untyped
    """Register the plugin with ONNX Runtime, once in a process, and choose the NPU among what it offers.

    Raises:
        EngineError: the plugin cannot be registered, or offers no device.
    """
    import onnxruntime
    import onnxruntime_qnn

    with _LOADING:
        try:
            if not _offered():
                onnxruntime.register_execution_provider_library(_PROVIDER, onnxruntime_qnn.get_library_path())
        except Exception as error:
            raise EngineError(
                f"qnn: ONNX Runtime {onnxruntime.__version__} cannot register the plugin: {first_line(error)}"
            ) from error
    found = sorted(_offered(), key=_is_hardware)
    if not found:
        raise EngineError(f"qnn: ONNX Runtime {onnxruntime.__version__} registered the plugin, but it offers no device")
    return found[-1]


def _offered() -> list[Any]:
    import onnxruntime

    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == _PROVIDER]


def _is_hardware(device: Any) -> bool:  # noqa: ANN401 - the runtime is untyped
    return str(device.device.type).endswith("NPU")


@contextmanager
def _backend_loaded(path: str) -> Iterator[None]:
    """The NPU's library is loaded, and stays. Meanwhile, where it was not, standard output goes to standard error.

    The emulation greets there: when it is loaded, and it may again when the first session starts its threads.
    """
    if path in _BACKENDS:
        yield
        return
    with _LOADING, _stdout_to_stderr():
        _BACKENDS[path] = CDLL(path)
        yield


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _provider_settings() -> dict[str, str]:
    import onnxruntime_qnn

    return {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "offload_graph_io_quantization": "0"}


def _session(data: bytes, options: EngineOptions, settings: Mapping[str, str], *, strict: bool = True) -> Any:  # noqa: ANN401
    import onnxruntime

    levels = {
        Optimization.NONE: onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
        Optimization.BASIC: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        Optimization.ALL: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    }
    provider = _provider_settings()
    chosen = onnxruntime.SessionOptions()
    chosen.graph_optimization_level = levels[options.optimization]
    chosen.intra_op_num_threads = options.threads
    chosen.log_severity_level = _FATAL_ONLY
    chosen.add_session_config_entry("session.disable_cpu_ep_fallback", "1" if strict else "0")
    chosen.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for key, value in settings.items():
        chosen.add_session_config_entry(key, value)
    chosen.add_provider_for_devices([_plugin_device()], provider)
    with _backend_loaded(provider["backend_path"]):
        return onnxruntime.InferenceSession(data, chosen, enable_fallback=0)


def _assigned(session: Any) -> str:  # noqa: ANN401 - the runtime is untyped
    """What runs on the NPU.

    Raises:
        EngineError: some nodes are elsewhere, though falling back is switched off.
    """
    groups = session.get_provider_graph_assignment_info()
    elsewhere = sorted({group.ep_name for group in groups} - {_PROVIDER})
    if elsewhere:
        raise EngineError(f"qnn runs nodes on {elsewhere}: only {_PROVIDER} was asked for")
    operators = [node.op_type for group in groups for node in group.get_nodes()]
    return "a graph compiled before" if operators == ["EPContext"] else f"{len(operators)} nodes"


def _left_over(data: bytes, options: EngineOptions) -> str:
    """Name what the NPU leaves to the processor, from a session that may fall back and is never run."""
    groups = _session(data, options, {}, strict=False).get_provider_graph_assignment_info()
    left = [node for group in groups if group.ep_name != _PROVIDER for node in group.get_nodes()]
    told = [node for node in left if node.op_type not in (_QUANTIZE, _DEQUANTIZE)] or left
    named = ", ".join(f"{node.op_type} ('{node.name}')" for node in told[:3])
    more = f" and {len(told) - 3} more" if len(told) > 3 else ""
    return f"operator {named}{more} does not run on the NPU"


def _read(model: Path | bytes) -> _Graph:
    """Read a graph with its weights, bring it into the form that the NPU takes, and check that nothing is float.

    Raises:
        ModelError: the graph is invalid, or computes in anything but eight bits.
    """
    import onnx

    from sanderling.model.graph import input_specs, lifted, output_specs

    called = str(model) if isinstance(model, Path) else "the model"
    try:
        proto = onnx.load(model, format="protobuf") if isinstance(model, Path) else onnx.load_from_string(model)
        onnx.checker.check_model(proto)
        if any(node.op_type == "Constant" for node in proto.graph.node):
            proto = lifted(proto)
        inputs, outputs = input_specs(proto), output_specs(proto)
        for spec in (*inputs, *outputs):
            if spec.dtype != "float32":
                raise ModelError(f"'{spec.name}' is {spec.dtype}, and only float32 goes in and out")
        _round_first(proto)
        _check_integer(proto)
        _check_trusted(proto)
    except Exception as error:
        raise ModelError(f"qnn does not take {called}: {first_line(error)}") from error
    return _Graph(proto, inputs, outputs, called)


def _round_first(proto: onnx.ModelProto) -> None:
    """Rewrite ``x → Relu → Quantize`` to ``x → Quantize → Dequantize → Relu → Quantize``, all of one scale, in place.

    The NPU needs integers on both sides of an operator, and an exporter rounds only after the last of several. This
    changes no result: rounding keeps order and leaves what it has rounded as it is, so it may come before an operator
    that bounds, chooses or moves values as well as after; but for one scale a channel, as channels may move.
    """
    import onnx

    from sanderling.model.graph import element_count

    single = {tensor.name for tensor in proto.graph.initializer if element_count(tensor) == 1}
    readers, dequantized = _readers(proto), _dequantized(proto)
    returned = {value.name for value in proto.graph.output}
    added: dict[str, tuple[onnx.NodeProto, onnx.NodeProto]] = {}
    for node in reversed(proto.graph.node):
        if node.op_type not in _KEEP_ORDER or len(node.output) > 1 or node.input[0] in dequantized:
            continue
        after = readers.get(node.output[0], [])
        if len(after) == 1 and _rounds(after[0], single) and node.output[0] not in returned:
            pair = _rounding(node.input[0], node.output[0], after[0])
            added[node.output[0]] = pair
            others = [reader for reader in readers[node.input[0]] if reader.output[0] != node.output[0]]
            readers[node.input[0]] = [*others, pair[0]]
            node.input[0] = pair[1].output[0]
    nodes = [part for node in proto.graph.node for part in (*added.get(node.output[0], ()), node)]
    rewritten = onnx.GraphProto()  # copies, as the nodes die with the list that they are taken from
    rewritten.node.extend(nodes)
    del proto.graph.node[:]
    proto.graph.node.extend(rewritten.node)


def _rounds(node: onnx.NodeProto, single: set[str]) -> bool:
    """Whether a node quantises with one scale for the whole tensor."""
    return node.op_type == _QUANTIZE and node.input[1] in single


def _rounding(source: str, target: str, like: onnx.NodeProto) -> tuple[onnx.NodeProto, onnx.NodeProto]:
    """QuantizeLinear of ``source`` with the scale and zero point of ``like``, and its DequantizeLinear."""
    import onnx

    name = f"{source}_before_{target}"
    quantize = onnx.helper.make_node(_QUANTIZE, [source, *like.input[1:]], [f"{name}_integer"], f"{name}_quantize")
    quantize.attribute.extend(like.attribute)
    quantize.domain = like.domain
    steps = [quantize.output[0], *like.input[1:]]
    return quantize, onnx.helper.make_node(_DEQUANTIZE, steps, [name], f"{name}_dequantize", domain=like.domain)


def _check_integer(proto: onnx.ModelProto) -> None:
    """Check that every operator reads what DequantizeLinear made, and writes what QuantizeLinear reads.

    Raises:
        ModelError: an operator does not; it is named, with the dtype that it would compute in.
    """
    floats, readers, dequantized = _float_tensors(proto), _readers(proto), _dequantized(proto)
    returned = {value.name for value in proto.graph.output}
    remedy = "quantise this operator too" if dequantized else "take the INT8 variant"
    for node in proto.graph.node:
        if node.op_type in (_QUANTIZE, _DEQUANTIZE):
            continue
        data = node.input[:1] if node.op_type in _SETTINGS_AS_INPUTS else node.input
        bare = [name for name in data if name in floats and name not in dequantized]
        bare += [
            name
            for name in node.output
            if name in floats
            and (name in returned or any(reader.op_type != _QUANTIZE for reader in readers.get(name, [])))
        ]
        for name in bare:
            raise ModelError(
                f"operator {node.op_type} ('{node.name}') computes '{name}' in {floats[name]}, and the "
                f"NPU computes only between {_DEQUANTIZE} and {_QUANTIZE}; {remedy}"
            )


def _check_trusted(proto: onnx.ModelProto) -> None:
    """Refuse what the plugin takes and computes wrong.

    Raises:
        ModelError: the graph has such an operator.
    """
    import onnx

    for node in proto.graph.node:
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type in _WRONG and _WRONG[node.op_type](attributes):
            told = {name: value.decode() if isinstance(value, bytes) else value for name, value in attributes.items()}
            raise ModelError(
                f"operator {node.op_type} ('{node.name}', {told}) is computed wrong by the NPU's plugin; "
                "replace it in the model, or take another engine"
            )


def _readers(proto: onnx.ModelProto) -> dict[str, list[onnx.NodeProto]]:
    found: dict[str, list[onnx.NodeProto]] = {}
    for node in proto.graph.node:
        for name in node.input:
            found.setdefault(name, []).append(node)
    return found


def _dequantized(proto: onnx.ModelProto) -> set[str]:
    return {name for node in proto.graph.node if node.op_type == _DEQUANTIZE for name in node.output}


def _float_tensors(proto: onnx.ModelProto) -> dict[str, str]:
    """Names of the tensors that are float, to their dtypes; what is not known is float."""
    import onnx

    inferred = onnx.shape_inference.infer_shapes(proto).graph
    dtypes = {tensor.name: tensor.data_type for tensor in inferred.initializer}
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        dtypes[value.name] = value.type.tensor_type.elem_type
    names = {name for node in proto.graph.node for name in (*node.input, *node.output) if name}
    told = {name: onnx.TensorProto.DataType.Name(dtypes.get(name) or onnx.TensorProto.FLOAT).lower() for name in names}
    floats = {"float": "float32", "double": "float64"}
    return {name: floats.get(dtype, dtype) for name, dtype in told.items() if "float" in dtype or dtype == "double"}


def _with_shapes(proto: onnx.ModelProto, shapes: Shapes) -> onnx.ModelProto:
    """A copy whose inputs have these shapes; shapes noted inside it are dropped, as they were for others."""
    import onnx

    from sanderling.model.graph import set_shape

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.value_info[:]
    initializers = {tensor.name for tensor in copy.graph.initializer}
    fed = [value for value in copy.graph.input if value.name not in initializers]
    for value, shape in zip(fed, shapes, strict=True):
        set_shape(value, shape)
    return copy


def _from_cache(entry: Path, options: EngineOptions) -> Any | None:  # noqa: ANN401 - the runtime is untyped
    """The compiled graph, or None when it is not there, damaged, or refused by the plugin."""
    context = unsealed(entry)
    if context is None:
        return None
    try:
        return _session(context, options, {})
    except Exception:  # noqa: BLE001 - whatever the plugin has against it, it is compiled again
        return None


ENGINE = Qnn()
