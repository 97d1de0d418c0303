"""LiteRT: Google's engine for phones and small boards, once TensorFlow Lite, on the CPU.

LiteRT reads no ONNX, and its converters bring TensorFlow or torch along: ``sanderling.run.litert`` writes the TFLite
model itself, for fixed shapes. A graph with dynamic axes is written again for each new set of input shapes; the latest
few are kept. An INT8 variant's codes stay codes, so that XNNPACK, LiteRT's library of fast kernels, runs them in int8;
what it does not take runs in LiteRT's own kernels, on the same processor.

LiteRT rewrites a graph always in its own way, so ``optimization`` and ``lean`` change nothing. It uses one thread
unless told otherwise. An interpreter serves one call at a time: threads that call together take turns.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sanderling.core.errors import EngineError, ModelError, first_line
from sanderling.core.files import sha256_of
from sanderling.core.precision import Precision
from sanderling.core.tensor import Array, Feeds, TensorSpec
from sanderling.run.copies import CopyCount, check_shape, contiguous, usual
from sanderling.run.engines.base import (
    Availability,
    DeviceInfo,
    DeviceKind,
    EngineOptions,
    Placement,
    choose_device,
    cpu_device,
)
from sanderling.run.litert.convert import Converted, convert, sources_sha256
from sanderling.run.litert.graph import ContradictionError
from sanderling.run.sealed import seal, unsealed

if TYPE_CHECKING:
    import onnx

_DTYPES = ("float32", "int64", "int32", "int8", "uint8", "bool")
_KEPT_SHAPES = 4  # each holds the weights once more
_FAILED_NODE = re.compile(r"Node number (\d+) \((\w+)\)")
_BETWEEN_COMPLAINTS = re.compile(
    r"\S+\.(?:cc|h):\d+:? ?|Node number \d+ \(\w+\) failed to (?:prepare|invoke)\.?|(?<=[a-z])\.(?=[a-z])|\n"
)
_GREETING = b"Created TensorFlow Lite XNNPACK delegate for CPU"
_CREATING = threading.Lock()
_greeted = threading.Event()


class LiteRt:
    """Runs ONNX graphs with LiteRT, written as TFLite models."""

    name = "litert"

    def availability(self) -> Availability:
        """Whether the package is installed."""
        try:
            return Availability(True, version=metadata.version("ai-edge-litert"))
        except metadata.PackageNotFoundError:
            return Availability(False, hint="pip install ai-edge-litert")

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The processor that this process runs on."""
        return (cpu_device(self.name, (Precision.FP32, Precision.INT8)),)

    def load(self, model: Path | bytes, options: EngineOptions) -> LiteRtExecutable:
        """Write the graph as TFLite, or take it from ``options.cache`` when it was written before.

        Dynamic axes are taken as 1, and the graph is written again at the first call with other sizes.

        Raises:
            OptionError: an unknown device, or arithmetic that it does not offer.
            ModelError: the graph is invalid, or has an operator without an exact form in TFLite.
            EngineError: loading failed for another reason.
        """
        device = choose_device(self.devices(), options)
        graph = _read(model)
        compiler = _Compiler(graph, options)
        try:
            first = compiler.session(compiler.first_shapes)
        except ContradictionError as error:
            if not graph.is_dynamic:
                raise ModelError(f"litert does not take {graph.called}: {error}") from error
            first = None  # sizes of 1 do not fit this graph; others may
        except ModelError as error:
            raise ModelError(f"litert does not take {graph.called}: {error}") from error
        if not graph.is_dynamic:
            graph.proto.Clear()  # it holds the weights once more, and other shapes cannot come
        detail = first.described if first else "written at the first call, as sizes of 1 do not fit its dynamic axes"
        return LiteRtExecutable(compiler, first, Placement(device.device, {DeviceKind.CPU: 1.0}, detail=detail))


class LiteRtExecutable:
    """A graph with its interpreters, one for each set of input shapes."""

    def __init__(self, compiler: _Compiler, first: _Session | None, placement: Placement) -> None:
        self._compiler: _Compiler | None = compiler
        self._sessions: OrderedDict[tuple[tuple[int, ...], ...], _Session] = OrderedDict()
        self._choosing = threading.Lock()
        self.placement = placement
        self.inputs = compiler.graph.inputs
        self.outputs = compiler.graph.outputs
        self._copied = CopyCount()
        if first is not None:
            self._sessions[first.shapes] = first

    @property
    def copied_bytes(self) -> int:
        """All bytes that went in and out: an interpreter has memory of its own."""
        return self._copied.total

    def run(self, feeds: Feeds, outputs: Feeds | None = None) -> dict[str, Array]:
        """Execute once.

        Raises:
            EngineError: execution failed, the graph does not fit these shapes, or it is closed.
        """
        session = self._session(tuple(feeds[spec.name].shape for spec in self.inputs))
        feeds = contiguous(feeds, self._copied)
        into = [outputs[spec.name] for spec in self.outputs] if outputs is not None else None
        if into is not None:
            for spec, made, array in zip(self.outputs, session.made, into, strict=True):
                check_shape(spec.name, made, array, "litert")
        try:
            results = session.run([usual(feeds[spec.name]) for spec in self.inputs], into)
        except (RuntimeError, ValueError) as error:
            raise EngineError(f"litert failed while executing: {_reason(error)}") from error
        self._copied.add(sum(array.nbytes for array in (*feeds.values(), *results)))
        return {spec.name: array for spec, array in zip(self.outputs, results, strict=True)}

    def _session(self, shapes: tuple[tuple[int, ...], ...]) -> _Session:
        with self._choosing:
            compiler = self._compiler
            if compiler is None:
                raise EngineError("litert: the graph is closed; load the package again")
            session = self._sessions.get(shapes)
            if session is None and not compiler.graph.is_dynamic:
                raise EngineError(f"litert runs the graph with input shapes {compiler.first_shapes}: got {shapes}")
            if session is None:
                session = _written_late(compiler, shapes)
                self._sessions[shapes] = session
                while len(self._sessions) > _KEPT_SHAPES:
                    self._sessions.popitem(last=False)
            self._sessions.move_to_end(shapes)
            return session

    def close(self) -> None:
        """Drop the graph and its interpreters; each is freed when its running call is over."""
        self._compiler = None
        with self._choosing:
            self._sessions.clear()


@dataclass(frozen=True, eq=False)
class _Graph:
    """An ONNX graph as it was read: not yet checked, and without the weights that lie beside it.

    Attributes:
        folder: of the file, where its external data is; None for bytes.
        sha256: of the graph and of its external data.
        called: what messages call it.
    """

    proto: onnx.ModelProto
    folder: Path | None
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    sha256: str
    called: str

    @property
    def is_dynamic(self) -> bool:
        """Whether shapes differ from call to call."""
        return any(spec.dynamic_axes for spec in self.inputs)

    def load_weights(self) -> None:
        """Read external data, and check the whole graph; needed only where it is written as TFLite.

        Raises:
            ModelError: the data is missing, or the graph is invalid.
        """
        import onnx

        try:
            if self.folder is not None:
                onnx.load_external_data_for_model(self.proto, str(self.folder))
            onnx.checker.check_model(self.proto)
        except Exception as error:
            raise ModelError(first_line(error)) from error


class _Compiler:
    """Writes a graph for given shapes, and makes its interpreter."""

    def __init__(self, graph: _Graph, options: EngineOptions) -> None:
        self.graph = graph
        self.first_shapes = tuple(spec.concrete_shape() for spec in graph.inputs)
        self._threads = options.threads or None
        self._cache = options.cache
        self._whole = False

    def session(self, shapes: tuple[tuple[int, ...], ...]) -> _Session:
        """The interpreter for these shapes of the inputs.

        Raises:
            ContradictionError: the graph does not fit these shapes.
            ModelError: an operator has no exact form in TFLite, or no kernel for its types.
            EngineError: an interpreter could not be made.
        """
        entry = self._entry(shapes)
        kept = unsealed(entry) if entry else None
        if kept is not None:
            return _Session(_interpreter(kept, self._threads), shapes, "")
        if not self._whole:
            self.graph.load_weights()
            self._whole = True
        named = {spec.name: shape for spec, shape in zip(self.graph.inputs, shapes, strict=True)}
        converted = convert(self.graph.proto, named)
        try:
            interpreter = _interpreter(converted.data, self._threads)
        except (RuntimeError, ValueError) as error:
            raise _interpreter_error(error, converted) from error
        return _Session(interpreter, shapes, seal(converted.data, entry) if entry else "")

    def _entry(self, shapes: tuple[tuple[int, ...], ...]) -> Path | None:
        """File for this graph, these shapes, this LiteRT and this writer; threads change nothing in it."""
        if self._cache is None:
            return None
        described = (self.graph.sha256, metadata.version("ai-edge-litert"), sources_sha256(), shapes)
        return self._cache / f"litert-{hashlib.sha256(repr(described).encode()).hexdigest()[:32]}.tflite"


class _Session:
    """One interpreter, for one set of shapes."""

    def __init__(self, interpreter: Any, shapes: tuple[tuple[int, ...], ...], note: str) -> None:  # noqa: ANN401
        self.shapes = shapes
        self.described = _described(interpreter) + note
        self._interpreter = interpreter
        self._inputs = [entry["index"] for entry in interpreter.get_input_details()]
        outputs = interpreter.get_output_details()
        self._outputs = [entry["index"] for entry in outputs]
        self.made = [tuple(map(int, entry["shape"])) for entry in outputs]
        self._running = threading.Lock()

    def run(self, arrays: Sequence[Array], into: Sequence[Array] | None = None) -> list[Array]:
        """Execute once; arrays are copied in, and out: to new ones, or to those of ``into``."""
        interpreter = self._interpreter
        with self._running:
            for index, array in zip(self._inputs, arrays, strict=True):
                interpreter.set_tensor(index, array)
            interpreter.invoke()
            if into is None:
                return [np.asarray(interpreter.get_tensor(index)) for index in self._outputs]
            for index, array in zip(self._outputs, into, strict=True):
                np.copyto(array, interpreter.tensor(index)())
            return list(into)


def _read(model: Path | bytes) -> _Graph:
    """Read a graph, and check what can be known before it is written.

    Raises:
        ModelError: it is no ONNX, or has inputs, outputs or weights of another dtype than LiteRT takes.
    """
    import onnx

    from sanderling.model.graph import input_specs, output_specs

    called = str(model) if isinstance(model, Path) else "the model"
    folder = model.parent if isinstance(model, Path) else None
    try:
        data = model.read_bytes() if isinstance(model, Path) else model
        proto = onnx.load_from_string(data)
        inputs, outputs = input_specs(proto), output_specs(proto)
        digest = hashlib.sha256(data)
        for file in _external_files(proto, folder):
            digest.update(sha256_of(file).encode())
    except Exception as error:
        raise ModelError(f"litert does not take {called}: {first_line(error)}") from error
    for tensor in proto.graph.initializer:
        if tensor.data_type in (tensor.FLOAT16, tensor.BFLOAT16):
            raise ModelError(
                f"litert does not take {called}: weight '{tensor.name}' is 16-bit; take the FP32 or the INT8 variant"
            )
    for spec in (*inputs, *outputs):
        if spec.dtype not in _DTYPES:
            known = ", ".join(_DTYPES)
            raise ModelError(f"litert does not take {called}: '{spec.name}' is {spec.dtype}, and only {known} are run")
    return _Graph(proto, folder, inputs, outputs, digest.hexdigest(), called)


def _external_files(proto: onnx.ModelProto, folder: Path | None) -> list[Path]:
    from onnx.external_data_helper import uses_external_data

    kept_outside = [tensor for tensor in proto.graph.initializer if uses_external_data(tensor)]
    if kept_outside and folder is None:
        raise ModelError("its weights are in a file beside it: load it from its path")
    locations = {entry.value for tensor in kept_outside for entry in tensor.external_data if entry.key == "location"}
    return [folder / location for location in sorted(locations)] if folder else []


def _written_late(compiler: _Compiler, shapes: tuple[tuple[int, ...], ...]) -> _Session:
    """An interpreter for shapes that came with a call, so that all that goes wrong is the call's error."""
    if any(0 in shape for shape in shapes):
        raise EngineError(f"litert does not run empty tensors: got shapes {shapes}")
    try:
        return compiler.session(shapes)
    except ModelError as error:
        raise EngineError(f"litert cannot run the graph with input shapes {shapes}: {error}") from error


def _interpreter(data: bytes, threads: int | None) -> Any:  # noqa: ANN401 - the runtime is untyped
    from ai_edge_litert.interpreter import Interpreter

    with _without_greeting():
        interpreter = Interpreter(model_content=data, num_threads=threads)
        interpreter.allocate_tensors()
    return interpreter


@contextmanager
def _without_greeting() -> Iterator[None]:
    """Keep a line off stderr that LiteRT's native code prints once in a process, and cannot be asked not to.

    Only until it was seen, stderr goes to a file; whatever else was printed meanwhile is printed afterwards.
    """
    if _greeted.is_set():
        yield
        return
    with _CREATING, tempfile.TemporaryFile() as caught:
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(caught.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            caught.seek(0)
            for line in caught.read().splitlines(keepends=True):
                if _GREETING in line:
                    _greeted.set()
                else:
                    os.write(2, line)


def _interpreter_error(error: Exception, converted: Converted) -> ModelError | EngineError:
    """A kernel that does not take its operands is the model's fault, by the name of the ONNX operator."""
    found = _FAILED_NODE.search(str(error))
    if found is None or int(found[1]) >= len(converted.origins):
        return EngineError(f"litert could not load the model that was written for it: {_reason(error)}")
    return ModelError(f"operator {converted.origins[int(found[1])]}: {_reason(error)}")


def _reason(error: Exception) -> str:
    """LiteRT's latest complaint, without places in its own source: it repeats those of earlier calls before."""
    complaints = [part.strip(" .") for part in _BETWEEN_COMPLAINTS.split(str(error)) if part.strip(" .")]
    return first_line(EngineError(complaints[-1] if complaints else str(error)))


def _described(interpreter: Any) -> str:  # noqa: ANN401 - the runtime is untyped
    """How many operators XNNPACK took, and which it left to LiteRT's own kernels."""
    details = interpreter._get_ops_details()  # nothing public tells
    delegates = [entry for entry in details if entry["op_name"] == "DELEGATE"]
    written = [entry for entry in details if entry["op_name"] != "DELEGATE"]
    makers = {int(index): entry for entry in written for index in entry["outputs"]}
    taken: set[int] = set()
    for delegate in delegates:
        given = {int(index) for index in delegate["inputs"]}
        open_ends = [int(index) for index in delegate["outputs"]]
        while open_ends:
            maker = makers.get(open_ends.pop())
            if maker is not None and maker["index"] not in taken:
                taken.add(maker["index"])
                open_ends += [int(index) for index in maker["inputs"] if int(index) not in given]
    left = Counter(entry["op_name"] for entry in written if entry["index"] not in taken)
    told = ", ".join(f"{count} {name}" for name, count in left.most_common())
    return f"XNNPACK: {len(taken)} of {len(written)} operators" + (f"; in LiteRT's own kernels: {told}" if told else "")


ENGINE = LiteRt()
