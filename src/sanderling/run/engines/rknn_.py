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

import functools
import os
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sanderling.core.errors import EngineError, ModelError, SanderlingError
from sanderling.core.precision import Precision
from sanderling.core.tensor import Array, Feeds, TensorSpec
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
from sanderling.run.rknn.graphs import NetGraph, called_name, read_net
from sanderling.run.rknn.log import raised, working_in
from sanderling.run.rknn.toolkit import build_net

if TYPE_CHECKING:
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
CHIPS = ("rk3588", "rk3576", "rk3568", "rk3566", "rk3562", "rv1126b")  # the others take no float graphs
_LOAD_S, _RUN_S = 1800.0, 1800.0
_LAYER = re.compile(
    r"^D RKNN: \[[\d:.]+\] \d+\s+(?P<kind>\w+)\s+(?P<dtype>\w+)\s+(?P<place>[CGN]PU)\s.*\s(?P<name>\S+)$"
)
_ENDS = ("InputOperator", "OutputOperator")  # rows of the table that hold data


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
        return tuple(map(chip, CHIPS))

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

    def __init__(self, loaded: Any, graph: NetGraph, placement: Placement) -> None:  # noqa: ANN401 - untyped
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
            raise EngineError(f"rknn failed while executing: {raised(error)}") from error
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
            raise EngineError(as_ours(error)) from error
        return found

    def close(self) -> None:
        """Release the net; a second call does nothing."""
        self._inner.close()


def chip(name: str) -> DeviceInfo:
    """A chip that the simulator stands for."""
    return DeviceInfo(
        engine="rknn",
        device=name,
        kind=DeviceKind.NPU,
        fidelity=Fidelity.SIMULATOR,
        description=f"Rockchip {name.upper()}, simulated on this processor",
        memory_bytes=None,
        precisions=(Precision.FP32, Precision.FP16, Precision.INT8),
        computes=(Compute.FP16,),
    )


def _version_here() -> str:
    """Version of the toolkit in this interpreter, or nothing. A folder called ``rknn`` is no sign of it."""
    try:
        return metadata.version("rknn-toolkit2")
    except metadata.PackageNotFoundError:
        return ""


def toolkit_python() -> tuple[str, Path | None]:
    """Interpreter that has the toolkit, and where it finds Sanderling; None where it is this one.

    Raises:
        EngineError: there is none any more.
    """
    here = bool(_version_here())
    python = Path(sys.executable) if here else ENVIRONMENT.python
    if python is None:
        raise EngineError("rknn: its environment is gone; make it with sanderling devices --install rknn")
    return str(python), None if here else import_path()


def _load_elsewhere(model: Path | bytes, options: EngineOptions) -> RemoteRknn:
    worker = _worker(*toolkit_python())
    with tempfile.TemporaryDirectory(prefix="sanderling-rknn-") as scratch:
        file = model.absolute() if isinstance(model, Path) else Path(scratch) / "model.onnx"
        if not isinstance(model, Path):
            file.write_bytes(model)
        try:
            return RemoteRknn(worker.load(Rknn.name, file, options, timeout_s=_LOAD_S))
        except SanderlingError as error:
            told = as_ours(error).replace(str(file), called_name(model))
            raise type(error)(told) from error


@functools.cache
def _worker(python: str, path: Path | None) -> Worker:
    """The toolkit's process, kept until ours ends: importing the toolkit takes seconds."""
    from sanderling.run.isolated import Worker

    return Worker(python=python, path=path)


def as_ours(error: SanderlingError) -> str:
    """What the toolkit's process told, with the toolkit named."""
    text = str(error)
    return text if text.startswith(("rknn", "engine 'rknn'")) else f"rknn: {text}"


def _build(model: Path | bytes, device: DeviceInfo) -> RknnExecutable:
    """Build in a folder of its own, inside the toolkit's process."""
    graph = read_net(model)
    with tempfile.TemporaryDirectory(prefix="sanderling-rknn-") as scratch, working_in(Path(scratch)) as log:
        loaded, told = build_net(graph, device.device, Path(scratch), log)
        executable = RknnExecutable(loaded, graph, placement_of(told, device))
        try:
            executable.run({spec.name: np.zeros(spec.concrete_shape(), spec.dtype) for spec in graph.inputs})
        except EngineError as error:
            told_by_run = str(error).partition("executing: ")[2]
            raise ModelError(f"rknn on {device.device} does not take {graph.called}: {told_by_run}") from error
    return executable


def placement_of(told: Sequence[str], device: DeviceInfo) -> Placement:
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


ENGINE = Rknn()
