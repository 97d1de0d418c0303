"""Rockchip's rknn-toolkit2: graphs as its NPUs run them, in the toolkit's simulator on this processor.

The toolkit needs older versions of NumPy, ONNX and protobuf than we do, writes into the folder that it runs in, and
ends the whole process on what it does not like. So it always works in a worker process: with this interpreter where it
has the toolkit, else with that of an environment of its own (``ENVIRONMENT``). This file serves both ends.

Nets have fixed shapes: a graph with a dynamic first axis is built with a batch of 1 and run row by row, where no row
reads another. Float nodes are computed in fp16, as the NPU does, so a graph is taken for that arithmetic only. INT8
comes from our Q/DQ graphs, whose scales the toolkit keeps. The simulator runs no exported net, so nothing is cached.
``optimization``, ``lean`` and ``threads`` change nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sanderling.core.errors import EngineError, ModelError, SanderlingError, first_line
from sanderling.core.precision import Precision
from sanderling.core.tensor import Array, Feeds, TensorSpec
from sanderling.model.rows import check_rows, has_rows, with_rows
from sanderling.run.copies import CopyCount, copied, result_arrays, row, row_count
from sanderling.run.engines.base import (
    Availability,
    Compute,
    DeviceInfo,
    DeviceKind,
    EngineOptions,
    Executable,
    Fidelity,
    Placement,
    choose_device,
)
from sanderling.run.environments import Environment, import_path

if TYPE_CHECKING:
    import onnx

    from sanderling.run.isolated import Worker

ENVIRONMENT = Environment(
    name="rknn",
    requirements=(
        "numpy==1.26.4",
        "onnx==1.18.0",
        "onnxruntime==1.26.0",
        "protobuf==4.25.4",
        "opencv-python-headless==4.11.0.86",
        "torch==2.13.0",
        "setuptools==80.9.0",  # from 81 on without pkg_resources, which the toolkit imports
        "ruamel.yaml==0.19.1",
        "scipy==1.17.1",
        "tqdm==4.70.1",
        "fast-histogram==0.14",
        "psutil==7.2.2",
        "pydantic==2.14.4",
    ),
    alone=("rknn-toolkit2==2.5.0",),  # asks for torch up to 2.4 and for OpenCV with its windows, and needs neither
    imports=("rknn.api", "onnx", "psutil", "pydantic"),
    size_bytes=1_600_000_000,
)
_CHIPS = ("rk3588", "rk3576", "rk3568", "rk3566", "rk3562", "rv1126b")  # the others take no float graphs
_SCALED, _MIDDLES = ("QuantizeLinear", "DequantizeLinear"), {"uint8": 128, "int8": 0}
_DTYPES = ("float32", "int32", "int64", "bool")
_LOAD_S, _RUN_S = 1800.0, 1800.0
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LAYER = re.compile(
    r"^D RKNN: \[[\d:.]+\] \d+\s+(?P<kind>\w+)\s+(?P<dtype>\w+)\s+(?P<place>[CGN]PU)\s.*\s(?P<name>\S+)$"
)
_ENDS = ("InputOperator", "OutputOperator")  # rows of the table that hold data
_NO_KERNEL = re.compile(r"No lowering found for: (?P<name>[^,]+), node type = (?P<kind>\w+)")
_NODE = re.compile(r'In Node, \("(?P<name>[^"]*)", (?P<kind>\w+), .*?Error (?P<reason>.+)')
_RAISED = re.compile(r"^[\w.]*(Error|Exception|Fail|InvalidGraph|NotImplemented): (?P<reason>.+)")
_ERROR = re.compile(r"^E (RKNN: \[[\d:.]+\] |\w+: )?(?P<reason>.+)")
_HARMLESS = re.compile(r"Unkown op target: 0|rknn-toolkit2 version|Traceback|Please feedback")


class Rknn:
    """Builds ONNX graphs for Rockchip's NPUs and runs them in the toolkit's simulator."""

    name = "rknn"

    def availability(self) -> Availability:
        """Whether the toolkit is here: in this interpreter, or in an environment of its own."""
        version = _version_here()
        if version:
            return Availability(True, version=version)
        if ENVIRONMENT.python is not None:
            return Availability(True, version=ENVIRONMENT.alone[0].partition("==")[2])
        size = f"about {ENVIRONMENT.size_bytes / 1e9:.1f} GB"
        return Availability(False, hint=f"sanderling devices --install {self.name} ({size}, in the cache folder)")

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The chips that the simulator stands for."""
        return tuple(
            DeviceInfo(
                engine=self.name,
                device=chip,
                kind=DeviceKind.NPU,
                fidelity=Fidelity.SIMULATOR,
                description=f"Rockchip {chip.upper()}, simulated on this processor",
                memory_bytes=None,
                precisions=(Precision.FP32, Precision.FP16, Precision.INT8),
                computes=(Compute.FP16,),
            )
            for chip in _CHIPS
        )

    def load(self, model: Path | bytes, options: EngineOptions) -> Executable:
        """Build a graph for a chip, and run it once: the simulator finds some faults only then.

        Raises:
            OptionError: an unknown device, or other arithmetic than fp16.
            ModelError: the graph is invalid, or the toolkit or the chip does not take it.
            EngineError: building failed for another reason, or the toolkit's process ended.
        """
        from sanderling.run.worker import IN_WORKER

        device = choose_device(self.devices(), options)
        if _version_here() and os.environ.get(IN_WORKER):
            return _build(model, device)
        return _load_elsewhere(model, options)


class RknnExecutable:
    """A net in the simulator, inside the toolkit's process."""

    def __init__(self, loaded: Any, graph: _Graph, placement: Placement) -> None:  # noqa: ANN401 - untyped
        self._loaded = loaded
        self._fed = graph.fed
        self._by_row = graph.by_row
        self._lock = threading.Lock()  # the simulator keeps the tensors of a call
        self.inputs = graph.inputs
        self.outputs = graph.outputs
        self.placement = placement
        self._copied = CopyCount()

    @property
    def copied_bytes(self) -> int:
        """All bytes that went in and out: the simulator keeps its tensors."""
        return self._copied.total

    def run(self, feeds: Feeds, outputs: Feeds | None = None) -> dict[str, Array]:
        """Execute once; row by row where the batch is dynamic.

        Raises:
            EngineError: execution failed, or the net is closed.
        """
        with self._lock:
            if self._loaded is None:
                raise EngineError("rknn: the net is closed; load the package again")
            count = row_count(feeds, self.inputs, "rknn") if self._by_row else 1
            results = result_arrays(self.outputs, count, outputs, "rknn")
            if not self._by_row:
                self._run_row(feeds, results)
                return results
            for index in range(count):
                self._run_row(row(feeds, index), row(results, index))
            return results

    def _run_row(self, feeds: Feeds, results: Feeds) -> None:
        arrays = [copied(feeds[name], self._copied) for name in self._fed]
        try:
            found = self._loaded.inference(inputs=arrays, data_format=["nchw"] * len(arrays))
        except Exception as error:
            raise EngineError(f"rknn failed while executing: {_raised(error)}") from error
        for spec, array in zip(self.outputs, self._checked(found), strict=True):
            results[spec.name][...] = array
            self._copied.add(array.nbytes)

    def _checked(self, found: Sequence[Array] | None) -> Sequence[Array]:
        """The simulator's outputs: it drops some, and changes others' dtype or shape, without a word."""
        got = [f"{array.dtype.name}{list(array.shape)}" for array in found or ()]
        wanted = [f"{spec.dtype}{list(spec.concrete_shape())}" for spec in self.outputs]
        if not found or got != wanted:
            raise EngineError(f"rknn failed while executing: the simulator returns {got or 'nothing'}, not {wanted}")
        return found

    def close(self) -> None:
        """Release the net; a second call does nothing."""
        with self._lock:
            loaded, self._loaded = self._loaded, None
            if loaded is not None:
                loaded.release()


class RemoteRknn:
    """A net in another process, whose errors say that it was the toolkit's."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401 - an IsolatedExecutable, imported late
        self._inner = inner
        self.inputs: tuple[TensorSpec, ...] = inner.inputs
        self.outputs: tuple[TensorSpec, ...] = inner.outputs
        self.placement: Placement = inner.placement

    @property
    def copied_bytes(self) -> int:
        """Bytes copied on the way to the other process and in it."""
        return int(self._inner.copied_bytes)

    def run(self, feeds: Feeds, outputs: Feeds | None = None) -> dict[str, Array]:
        """Execute once.

        Raises:
            EngineError: execution failed, the net is closed, or its process ended.
        """
        try:
            found: dict[str, Array] = self._inner.run(feeds, outputs, timeout_s=_RUN_S)
        except EngineError as error:
            raise EngineError(_as_ours(error)) from error
        return found

    def close(self) -> None:
        """Release the net; a second call does nothing."""
        self._inner.close()


@dataclass(frozen=True)
class _Graph:
    """An ONNX graph that the toolkit may take.

    Attributes:
        fed: inputs that something reads; the toolkit drops the others, and takes the rest by position.
        by_row: its first axis is dynamic, and rows do not read each other.
        called: what messages call it.
    """

    proto: onnx.ModelProto
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    fed: tuple[str, ...]
    by_row: bool
    called: str


def _version_here() -> str:
    """Version of the toolkit in this interpreter, or nothing. A folder called ``rknn`` is no sign of it."""
    try:
        return metadata.version("rknn-toolkit2")
    except metadata.PackageNotFoundError:
        return ""


def _load_elsewhere(model: Path | bytes, options: EngineOptions) -> RemoteRknn:
    here = bool(_version_here())
    python = Path(sys.executable) if here else ENVIRONMENT.python
    if python is None:
        raise EngineError("rknn: its environment is gone; make it with sanderling devices --install rknn")
    worker = _worker(str(python), None if here else import_path())
    with tempfile.TemporaryDirectory(prefix="sanderling-rknn-") as scratch:
        file = model.absolute() if isinstance(model, Path) else Path(scratch) / "model.onnx"
        if not isinstance(model, Path):
            file.write_bytes(model)
        try:
            return RemoteRknn(worker.load(Rknn.name, file, options, timeout_s=_LOAD_S))
        except SanderlingError as error:
            told = _as_ours(error).replace(str(file), _called(model))
            raise type(error)(told) from error


@functools.cache
def _worker(python: str, path: Path | None) -> Worker:
    """The toolkit's process, kept until ours ends: importing the toolkit takes seconds."""
    from sanderling.run.isolated import Worker

    return Worker(python=python, path=path)


def _as_ours(error: SanderlingError) -> str:
    text = str(error)
    return text if text.startswith(("rknn", "engine 'rknn'")) else f"rknn: {text}"


def _called(model: Path | bytes) -> str:
    return str(model) if isinstance(model, Path) else "the model"


def _build(model: Path | bytes, device: DeviceInfo) -> RknnExecutable:
    """Build in a folder of its own, inside the toolkit's process."""
    graph = _read(model)
    with tempfile.TemporaryDirectory(prefix="sanderling-rknn-") as scratch, _working_in(Path(scratch)) as log:
        loaded, failure = _run_toolkit(graph, device, Path(scratch))
        told = _read_log(log)
        if loaded is None:
            raise ModelError(f"rknn on {device.device} does not take {graph.called}: {_reason(told, failure)}")
        missing = [f"{found['kind']} ('{found['name']}')" for line in told if (found := _NO_KERNEL.search(line))]
        if missing:
            raise ModelError(
                f"rknn on {device.device} does not take {graph.called}: no kernel for operator {', '.join(missing)}, "
                "though the simulator has one"
            )
        executable = RknnExecutable(loaded, graph, _placement(told, device))
        try:
            executable.run({spec.name: np.zeros(spec.concrete_shape(), spec.dtype) for spec in graph.inputs})
        except EngineError as error:
            reason = str(error).partition("executing: ")[2]
            raise ModelError(f"rknn on {device.device} does not take {graph.called}: {reason}") from error
    return executable


def _read(model: Path | bytes) -> _Graph:
    """Read a graph with its weights, and check what can be known before it is built.

    Raises:
        ModelError: the graph is invalid, or has inputs, outputs or dynamic axes that the toolkit does not take.
    """
    import onnx

    from sanderling.model.graph import input_specs, output_specs, used_names

    called = _called(model)
    try:
        proto = onnx.load(model, format="protobuf") if isinstance(model, Path) else onnx.load_from_string(model)
        onnx.checker.check_model(proto)
    except Exception as error:
        raise ModelError(f"rknn does not take {called}: {_raised(error)}") from error
    inputs, outputs = input_specs(proto), output_specs(proto)
    used = used_names(proto.graph)
    fed = tuple(spec.name for spec in inputs if spec.name in used)
    kept = [value for value in proto.graph.input if value.name in fed]
    try:
        _check_ends(proto, inputs, outputs)
        by_row = has_rows(inputs, outputs)
        if by_row:
            check_rows(proto)
    except ModelError as error:
        raise ModelError(f"rknn does not take {called}: {error}") from error
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    return _Graph(_with_kept_codes(with_rows(proto, 1)), inputs, outputs, fed, by_row, called)


def _check_ends(proto: onnx.ModelProto, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Refuse inputs and outputs that the toolkit drops, mixes up or ends the process on."""
    for spec in (*inputs, *outputs):
        if spec.dtype not in _DTYPES:
            raise ModelError(f"'{spec.name}' is {spec.dtype}, and only {', '.join(_DTYPES)} goes in and out")
        if not spec.shape:
            raise ModelError(f"'{spec.name}' is a scalar, and only tensors with axes go in and out")
    moving = {spec.name for spec in inputs}
    computed = set()
    for node in proto.graph.node:
        if not moving.isdisjoint(node.input):
            moving.update(node.output)
            computed.update(node.output)
    for spec in outputs:
        if spec.name not in computed:
            raise ModelError(f"output '{spec.name}' is computed from no input, and the toolkit drops it")


def _with_kept_codes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Move 8-bit zero points out of the middle of their type, where the toolkit would change codes and steps.

    There it makes 127 steps of the 128 below the middle, and rounds all codes again. One lower it keeps them: weights
    move with their zero point, and what activations give up is the lowest code.
    """
    held = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type not in _SCALED or node.input[1] not in held:
            continue
        if len(node.input) < 3:  # the toolkit looks for one
            kind = _array(held[node.input[0]]).dtype if node.input[0] in held else np.dtype("uint8")
            zeros = np.zeros(_array(held[node.input[1]]).shape, kind)
            node.input.append(_held(proto, held, f"{node.input[1]}:zero:{kind}", zeros))
        if node.input[2] not in held:
            continue
        zero = _array(held[node.input[2]])
        middle = _MIDDLES.get(zero.dtype.name)
        if middle is None or np.any(zero != middle):
            continue
        if node.input[0] in held:
            codes = _array(held[node.input[0]])
            lower = np.maximum(codes, np.iinfo(codes.dtype).min + 1) - np.ones((), codes.dtype)
            node.input[0] = _held(proto, held, f"{node.input[0]}:lower", lower)
        node.input[2] = _held(proto, held, f"{node.input[2]}:lower", zero - np.ones((), zero.dtype))
    return proto


def _held(proto: onnx.ModelProto, held: dict[str, onnx.TensorProto], name: str, array: Array) -> str:
    """Name of an initialiser with these values, which several nodes may share."""
    if name not in held:
        import onnx

        held[name] = onnx.numpy_helper.from_array(array, name)
        proto.graph.initializer.append(held[name])
    return name


def _array(tensor: onnx.TensorProto) -> Array:
    from sanderling.model.graph import initializer_array

    return initializer_array(tensor)


@contextlib.contextmanager
def _working_in(folder: Path) -> Iterator[Path]:
    """Work in ``folder`` with all that is printed going to a file in it, that of native code too.

    The toolkit leaves files where it runs, and tells only in print where each layer goes.
    """
    log, place, temporary = folder / "log", Path.cwd(), tempfile.tempdir
    printed = [os.dup(descriptor) for descriptor in (1, 2)]
    _flush()
    try:
        with log.open("wb") as stream:
            for descriptor in (1, 2):
                os.dup2(stream.fileno(), descriptor)
        os.chdir(folder)
        tempfile.tempdir = str(folder)
        yield log
    finally:
        _flush()
        tempfile.tempdir = temporary
        os.chdir(place)
        for descriptor, kept in zip((1, 2), printed, strict=True):
            os.dup2(kept, descriptor)
            os.close(kept)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)  # the buffers of native code


def _read_log(log: Path) -> list[str]:
    _flush()
    return [_COLOUR.sub("", line).rstrip() for line in log.read_text(errors="replace").splitlines()]


def _run_toolkit(graph: _Graph, device: DeviceInfo, folder: Path) -> tuple[Any, str]:
    """Build a net and prepare the simulator; the net, or None and what was raised."""
    from rknn.api import RKNN

    (folder / "model.onnx").write_bytes(graph.proto.SerializeToString())
    loaded = RKNN(verbose=True)
    try:
        steps = (
            lambda: loaded.config(target_platform=device.device),
            lambda: loaded.load_onnx("model.onnx"),
            lambda: loaded.build(do_quantization=False),
            loaded.init_runtime,
        )
        if not any(step() for step in steps):
            return loaded, ""
        failure = ""
    except Exception as error:  # noqa: BLE001 - the toolkit raises whatever it meets; the caller tells it
        failure = _raised(error)
    loaded.release()
    return None, failure


def _placement(told: Sequence[str], device: DeviceInfo) -> Placement:
    """Where the toolkit's table of layers puts each of them.

    Raises:
        EngineError: it printed no table.
    """
    layers = [found for line in told if (found := _LAYER.match(line)) and found["kind"] not in _ENDS]
    if not layers:
        raise EngineError(f"rknn on {device.device}: the toolkit does not say where the graph's layers run")
    places = Counter(DeviceKind(layer["place"].lower()) for layer in layers)
    dtypes = Counter(layer["dtype"].lower() for layer in layers)
    fell_back = tuple(layer["name"] for layer in layers if layer["place"].lower() != device.kind)
    counted = ", ".join(f"{count} in {dtype}" for dtype, count in dtypes.most_common())
    kinds = {kind: count / len(layers) for kind, count in places.items()}
    detail = f"{device.description}: layers {counted}"
    return Placement(device.device, kinds, fell_back, detail, _macs(fell_back, device.kind))


def _macs(fell_back: Sequence[str], kind: DeviceKind) -> dict[DeviceKind, float] | None:
    """Share of multiply–accumulates; None when the chip's processor has some: layers are not the graph's nodes.

    The toolkit names a layer by its operator and output.
    """
    from sanderling.model.cost import COUNTED

    return None if any(name.partition(":")[0] in COUNTED for name in fell_back) else {kind: 1.0}


def _raised(error: Exception) -> str:
    """What an exception of the toolkit means: its text is a traceback."""
    return _reason([_COLOUR.sub("", line) for line in str(error).splitlines()], first_line(error))


def _reason(told: Sequence[str], otherwise: str) -> str:
    """The most telling of the printed lines."""
    for line in told:
        found = _NODE.search(line)
        if found:
            return first_line(EngineError(f"operator {found['kind']} ('{found['name']}'): {found['reason']}"))
    for pattern in (_RAISED, _ERROR):
        reasons = [found["reason"] for line in told if (found := pattern.match(line)) and not _HARMLESS.search(line)]
        if reasons:
            return first_line(EngineError(reasons[-1]))
    return otherwise or "the toolkit does not say why"


ENGINE = Rknn()
