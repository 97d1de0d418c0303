"""MindSpore Lite: the runtime that HarmonyOS has on board, here on the CPU of an x86-64 Linux.

It comes from the libraries of the PyPI wheel `mindspore-lite` and a bridge that is compiled against them, see
``run/mindspore_lite``. A graph is lowered (``model/lowering.py``), converted to ``.ms``, and loaded in a worker process
of its own. The converter makes wrong graphs without a word, and the runtime returns memory that nobody wrote: so what
was converted must first compute what ONNX Runtime computes of random inputs, and shapes are inferred before a run with
new ones. The runtime optimises a graph always and fully, so ``optimization`` changes nothing; it is loaded once for
every set of input shapes, and ``lean`` keeps only the last. Integers of 64 bits are held in 32.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sanderling.core.errors import EngineError, ModelError, SanderlingError, first_line
from sanderling.core.precision import Precision
from sanderling.core.statistics import relative_error
from sanderling.core.tensor import Array, Feeds, TensorSpec, random_feeds
from sanderling.run.copies import CopyCount, write_results
from sanderling.run.engines import known_engine
from sanderling.run.engines.base import (
    Availability,
    DeviceInfo,
    EngineOptions,
    Executable,
    Optimization,
    Placement,
    choose_device,
    cpu_device,
)
from sanderling.run.isolated import IsolatedExecutable, Worker
from sanderling.run.mindspore_lite import library
from sanderling.run.sealed import SEAL_BYTES, is_intact, seal

if TYPE_CHECKING:
    import onnx

    from sanderling.model.shapes import Shape

ENVIRONMENT = library.Libraries()
_DTYPES = ("float32", "int32", "int64")
_WORKER = "sanderling.run.mindspore_lite.worker"
_TOLERANCE = 1e-3  # relative, of what was converted: wrong graphs were off by a third; rounding adds up to 1e-4
_ROWS = (1, 3)  # that a dynamic first axis is tried with
_SIZES = (8, 32, 224)  # that other dynamic axes are tried with, until ONNX Runtime takes one
_KEPT = 4  # sets of input shapes for which a graph stays loaded


class MindSpore:
    """Runs float ONNX graphs with MindSpore Lite, converted to ``.ms``."""

    name = "mindspore"

    def availability(self) -> Availability:
        """Whether the libraries were fetched, and the bridge is compiled or can be."""
        state = library.state()
        return Availability(state.usable, library.VERSION if state.usable else "", state.hint)

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The processor."""
        cpu = cpu_device(self.name, (Precision.FP32,))
        return (cpu,)

    def load(self, model: Path | bytes, options: EngineOptions) -> MindSporeExecutable:
        """Convert a graph, or take it from ``options.cache`` when it was converted before.

        Raises:
            OptionError: an unknown device, or arithmetic that it does not offer.
            ModelError: the graph is invalid, is no FP32 variant, or what becomes of it computes something else.
            EngineError: conversion or loading failed for another reason.
        """
        device = choose_device(self.devices(), options)
        graph = _read(model)
        entry = options.cache and options.cache / f"mindspore-{_key(graph)}.ms"
        if entry and is_intact(entry):
            return _loaded(graph, entry, SEAL_BYTES, device, options)
        with tempfile.TemporaryDirectory(prefix="sanderling-mindspore-") as scratch:
            converted = Path(scratch) / "model.ms"
            _convert(graph, converted)
            executable = _loaded(graph, converted, 0, device, options)
            try:
                _prove(executable, graph)
            except BaseException:
                executable.close()
                raise
            if entry:
                executable.add_note(seal(converted, entry))
        return executable


class MindSporeExecutable:
    """One graph in a worker process of its own."""

    def __init__(self, loaded: IsolatedExecutable, worker: Worker, graph: _Graph, placement: Placement) -> None:
        self.inputs = graph.inputs
        self.outputs = graph.outputs
        self.placement = placement
        self._loaded = loaded
        self._worker = worker
        self._fed = tuple(spec.name for spec in loaded.inputs)
        self._shapes_of = graph.shapes_of
        self._closed = False
        self._copied = CopyCount()

    @property
    def copied_bytes(self) -> int:
        """Bytes copied on the way to the worker, in it, and on the way back: the runtime has memory of its own."""
        return self._loaded.copied_bytes + self._copied.total

    def run(self, feeds: Feeds, outputs: Feeds | None = None) -> dict[str, Array]:
        """Execute once.

        Raises:
            EngineError: execution failed, the worker crashed or hung, or the graph is closed.
        """
        if self._closed:
            raise EngineError("mindspore: the graph is closed; load the package again")
        try:
            shapes = self._shapes_of(tuple(feeds[spec.name].shape for spec in self.inputs))
            empty = next((spec for spec in self.inputs if not feeds[spec.name].size), None)
            if empty is not None:
                raise EngineError(f"input '{empty.name}' has shape {feeds[empty.name].shape}: it holds nothing to run")
            results = self._loaded.run({name: feeds[name] for name in self._fed})
        except SanderlingError as error:
            raise EngineError(f"mindspore failed while executing: {error}") from error
        made = {spec.name: self._checked(results[spec.name], spec, shapes) for spec in self.outputs}
        return made if outputs is None else write_results(made, outputs, "mindspore", self._copied)

    def _checked(self, array: Array, spec: TensorSpec, shapes: dict[str, Shape]) -> Array:
        """An output in the graph's dtype, if it has the shape that the graph gives it."""
        from sanderling.model.shapes import fits

        wanted = shapes.get(spec.name)
        if wanted == () and array.shape == (1,):  # the runtime has no scalars
            array = array.reshape(())
        if wanted is not None and not fits(array.shape, wanted):
            raise EngineError(f"mindspore returns '{spec.name}' of shape {array.shape}: the graph makes {list(wanted)}")
        if array.dtype.name == spec.dtype:
            return array
        self._copied.add(array.nbytes)
        return array.astype(spec.dtype)

    def add_note(self, note: str) -> None:
        """Add to what the placement tells."""
        told = self.placement
        self.placement = Placement(told.device, told.kinds, told.fell_back, told.detail + note)

    def close(self) -> None:
        """End the worker; a second call does nothing."""
        self._closed = True
        self._worker.close()


@dataclass(frozen=True)
class _Graph:
    """An ONNX graph that MindSpore may take.

    Attributes:
        shapes_of: from the shapes of all inputs to those of the outputs; ModelError where they contradict each other.
        called: what messages call it.
    """

    proto: onnx.ModelProto
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    shapes_of: Callable[[tuple[tuple[int, ...], ...]], dict[str, Shape]]
    called: str


def _read(model: Path | bytes) -> _Graph:
    """Read a graph with its weights, and check what can be known before it is lowered.

    Raises:
        ModelError: the graph is invalid, or is no FP32 variant.
    """
    import onnx

    from sanderling.model.graph import input_specs, output_specs
    from sanderling.model.shapes import shape_check

    called = str(model) if isinstance(model, Path) else "the model"
    try:
        proto = onnx.load(model, format="protobuf") if isinstance(model, Path) else onnx.load_from_string(model)
        onnx.checker.check_model(proto)
    except Exception as error:
        raise ModelError(f"mindspore does not take {called}: {first_line(error)}") from error
    initializers = {tensor.name for tensor in proto.graph.initializer}
    fed = [value for value in proto.graph.input if value.name not in initializers]
    del proto.graph.input[:]
    proto.graph.input.extend(fed)
    try:
        inputs, outputs = input_specs(proto), output_specs(proto)
        _check_float32(proto, (*inputs, *outputs))
    except ModelError as error:
        raise ModelError(f"mindspore does not take {called}: {error}") from error
    return _Graph(proto, inputs, outputs, shape_check(proto), called)


def _check_float32(proto: onnx.ModelProto, specs: Sequence[TensorSpec]) -> None:
    from sanderling.model.graph import all_nodes

    for spec in specs:
        if spec.dtype not in _DTYPES:
            raise ModelError(f"'{spec.name}' is {spec.dtype}, and only {', '.join(_DTYPES)} go in and out")
    for node in all_nodes(proto.graph):
        if "Quantize" in node.op_type or node.op_type.startswith("QLinear") or node.op_type.endswith("Integer"):
            raise ModelError(f"operator {node.op_type}: its converter makes no INT8 of it; take the FP32 variant")
    for tensor in proto.graph.initializer:
        if tensor.data_type in (tensor.FLOAT16, tensor.BFLOAT16):
            raise ModelError(f"weight '{tensor.name}' is 16-bit: take the FP32 variant")


def _convert(graph: _Graph, target: Path) -> None:
    """Lower a graph, and write it as ``.ms``."""
    from sanderling.model.lowering import lower
    from sanderling.run.mindspore_lite.converter import convert

    try:
        lowered = lower(graph.proto, "mindspore")
        if not lowered.graph.node:
            raise ModelError("nothing in it is computed")
        try:
            convert(lowered, target)
        except ModelError as error:
            raise ModelError(f"{_culprit(str(error), lowered)}{error}") from error
    except ModelError as error:
        raise ModelError(f"mindspore does not take {graph.called}: {error}") from error


def _culprit(reason: str, lowered: onnx.ModelProto) -> str:
    """The first node whose operator the converter's reason names; it names no nodes itself."""
    for node in lowered.graph.node:
        if re.search(rf"\b{node.op_type}\b", reason):
            return f"operator {node.op_type} ('{node.name or node.output[0]}'): "
    return ""


def _loaded(graph: _Graph, file: Path, offset: int, device: DeviceInfo, options: EngineOptions) -> MindSporeExecutable:
    """Load a ``.ms`` in a new worker, and compare what the runtime says of it with the graph.

    Raises:
        ModelError: the runtime refuses it, or has other inputs or outputs.
        EngineError: the worker could not be started, crashed or hung.
    """
    worker = Worker(module=_WORKER)
    header = {
        "bridge": str(library.bridge()),
        "model": str(file),
        "offset": offset,
        "threads": options.threads,
        "kept": 1 if options.lean else _KEPT,
    }
    try:
        loaded = worker.load_as(header)
        _check_names(loaded, graph)
    except BaseException as error:
        worker.close()
        if isinstance(error, ModelError):
            raise ModelError(f"mindspore does not take {graph.called}: {error}") from error
        if isinstance(error, EngineError):
            raise EngineError(f"mindspore could not load {graph.called}: {error}") from error
        raise
    detail = f"{device.description}: {len(graph.proto.graph.node)} nodes"
    return MindSporeExecutable(loaded, worker, graph, Placement(device.device, {device.kind: 1.0}, detail=detail))


def _check_names(loaded: IsolatedExecutable, graph: _Graph) -> None:
    """Outputs must be the graph's; inputs may be fewer, as those that nothing reads were dropped."""
    known, wanted = {spec.name for spec in graph.inputs}, {spec.name for spec in graph.outputs}
    fed, made = {spec.name for spec in loaded.inputs}, {spec.name for spec in loaded.outputs}
    if not fed <= known or made != wanted:
        raise ModelError(
            f"it becomes a graph from {sorted(fed)} to {sorted(made)}: "
            f"the graph given is from {sorted(known)} to {sorted(wanted)}"
        )


def _prove(executable: MindSporeExecutable, graph: _Graph) -> None:
    """Compare with ONNX Runtime on random inputs, with several numbers of rows where they are dynamic.

    Raises:
        ModelError: outputs differ, or there is nothing to compare with.
    """
    try:
        reference = known_engine("onnxruntime").load(
            graph.proto.SerializeToString(), EngineOptions(optimization=Optimization.NONE)
        )
        try:
            for rows in _ROWS if any(spec.dynamic_axes for spec in graph.inputs) else _ROWS[:1]:
                _compare(executable, *_reference(reference, graph, rows))
        finally:
            reference.close()
    except ModelError as error:
        raise ModelError(f"mindspore does not take {graph.called}: {error}") from error


def _reference(reference: Executable, graph: _Graph, rows: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Random inputs that ONNX Runtime takes, and what it makes of them."""
    reason = ""
    for size in _SIZES:
        specs = [spec.model_copy(update={"shape": _sized(spec, rows, size)}) for spec in graph.inputs]
        feeds = random_feeds(specs, seed=rows)
        try:
            return feeds, reference.run(feeds)
        except EngineError as error:
            reason = str(error)
    raise ModelError(f"it cannot be compared with ONNX Runtime, as none of the sizes tried fits it ({reason})")


def _sized(spec: TensorSpec, rows: int, size: int) -> tuple[int, ...]:
    return tuple(
        fixed if isinstance(fixed, int) else (rows if axis == 0 else size) for axis, fixed in enumerate(spec.shape)
    )


def _compare(executable: MindSporeExecutable, feeds: Feeds, expected: dict[str, Array]) -> None:
    try:
        results = executable.run(feeds)
    except EngineError as error:
        raise ModelError(f"it converts, and does not run ({error})") from error
    for name, array in expected.items():
        error_found = relative_error(array, results[name])
        if error_found > _TOLERANCE:
            raise ModelError(
                f"its converter changes what it computes: '{name}' differs from ONNX Runtime's by {error_found:.1e} "
                f"of the largest, on random inputs; at most {_TOLERANCE:.0e} is taken"
            )


def _key(graph: _Graph) -> str:
    """Names what a conversion depends on: the graph with its weights, how it is lowered, and the converter."""
    from sanderling.model.lowering import fingerprint

    digest = hashlib.sha256(graph.proto.SerializeToString(deterministic=True))
    digest.update(f"{fingerprint()} {library.fingerprint()}".encode())
    return digest.hexdigest()[:32]


ENGINE = MindSpore()
