"""Executables that live in a worker process.

Tensors go through memory that both processes share (``run/shared_memory.py``), and over the pipe where there is none.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from sanderling.core import errors
from sanderling.core.errors import EngineError, SanderlingError, TensorError
from sanderling.core.tensor import Array, Feeds, TensorSpec
from sanderling.run import wire
from sanderling.run.copies import CopyCount, write_results
from sanderling.run.engines.base import DeviceKind, EngineOptions, Placement
from sanderling.run.shared_memory import Arena, Place, Unshared, described, layout_for, offered
from sanderling.run.worker import IN_WORKER, options_to

LOAD_TIMEOUT_S = 120.0
RUN_TIMEOUT_S = 60.0


class Worker:
    """One worker process, started on first use and again after a crash. Usable from several threads, in turn.

    Args:
        python: its interpreter; this one by default.
        path: where another interpreter finds Sanderling, and nothing else of ours, see ``environments.import_path``.
        module: that serves, with ``run/worker.py``.
        share: memory for tensors; without, they all go over the pipe.
    """

    def __init__(
        self,
        *,
        python: str = sys.executable,
        path: Path | None = None,
        module: str = "sanderling.run.worker",
        share: bool = True,
    ) -> None:
        self.shares = share
        self._command = [python, "-m", module]
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._keys = itertools.count()

    def load(
        self, engine: str, model: Path, options: EngineOptions, *, timeout_s: float = LOAD_TIMEOUT_S
    ) -> IsolatedExecutable:
        """Load a graph in the worker.

        Raises:
            ModelError: the engine does not take the graph.
            EngineError: the worker crashed or did not answer in time; the next call starts another.
        """
        header = {"engine": engine, "model": str(model), "options": options_to(options)}
        return self.load_as(header, timeout_s=timeout_s)

    def load_as(self, header: dict[str, Any], *, timeout_s: float = LOAD_TIMEOUT_S) -> IsolatedExecutable:
        """Load what ``header`` describes to the module that serves; errors as of ``load``."""
        key = next(self._keys)
        answer, _ = self.call(key, {**header, "command": "load"}, {}, timeout_s=timeout_s)
        assert self._process is not None
        return IsolatedExecutable(self, key, self._process.pid, answer)

    def call(
        self, key: int, header: dict[str, Any], arrays: Feeds, *, timeout_s: float
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        """Send one message and wait for its answer."""
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                wire.send(process.stdin.fileno(), {**header, "key": key}, arrays, timeout_s=timeout_s)
                answer, outputs = wire.receive(process.stdout.fileno(), timeout_s=timeout_s)
            except wire.TimedOut as error:
                self._end()
                raise EngineError(f"the engine's process gave no answer for {timeout_s:g} s and was ended") from error
            except wire.Closed as error:
                raise EngineError(f"the engine's process {self._end()}") from error
            except BaseException:  # an interrupt leaves half a message in the pipe
                self._end()
                raise
        if "error" in answer:
            raise _error(answer)
        return answer, outputs

    @property
    def pid(self) -> int | None:
        """Process id of the running worker, or None."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env=self._variables(),
            )
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
        return self._process

    def _variables(self) -> dict[str, str]:
        variables = {**os.environ, IN_WORKER: "1"}
        if self._path is not None:
            variables.pop("PYTHONHOME", None)
            variables["PYTHONPATH"] = str(self._path)
        return variables

    def _end(self) -> str:
        """End the process and say how it ended."""
        process, self._process = self._process, None
        if process is None:
            return "is not running"
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        try:
            code = process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return "was ended"
        return f"crashed with {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class IsolatedExecutable:
    """A graph in a worker; it keeps the contract of ``Executable``.

    Attributes:
        transport: how tensors reach the worker: ``shared memory``, or ``pipe`` with the reason.
    """

    def __init__(self, worker: Worker, key: int, pid: int, described: dict[str, Any]) -> None:
        self.inputs = tuple(TensorSpec.model_validate(spec) for spec in described["inputs"])
        self.outputs = tuple(TensorSpec.model_validate(spec) for spec in described["outputs"])
        placement = described["placement"]
        self.placement = Placement(
            device=placement["device"],
            kinds=_by_kind(placement["kinds"]),
            macs=_by_kind(placement["macs"]) if placement["macs"] is not None else None,
            fell_back=tuple(placement["fell_back"]),
            detail=placement["detail"],
        )
        self.transport = "shared memory" if worker.shares else "pipe: as was asked for"
        self._worker, self._key, self._pid = worker, key, pid
        self._closed = False
        self._arena: Arena | None = None
        self._turn = threading.Lock()  # the arena serves one call at a time
        self._result_bytes: dict[str, int] = {}  # the most that each output took
        self._lent = False
        self._copied = CopyCount()

    @property
    def alive(self) -> bool:
        """Whether the process that holds the graph still runs."""
        return not self._closed and self._worker.pid == self._pid

    @property
    def copied_bytes(self) -> int:
        """Bytes copied on the way to the worker, in it, and on the way back; each counts once for the pipe."""
        return self._copied.total

    def buffers(self, batch: int = 1) -> dict[str, Array]:
        """Arrays for the inputs, in shared memory: what is written there is not copied by ``run``.

        They have ``batch`` rows where the first axis is dynamic, and 1 along any other dynamic axis. They are the same
        memory every time, and serve one call at a time. A request or a run for more than was ever asked for moves the
        memory: buffers given before are then copied as any other array. Without shared memory, all of them are.

        Raises:
            TensorError: an input or output is of strings.
            EngineError: the worker is gone, or the executable is closed.
        """
        with self._turn:
            arena = self._arena_for(_sizes(self.inputs, batch), _sizes(self.outputs, batch))
            self._lent = True
            return _arrays(self.inputs, batch, arena, arena.layout.inputs if arena else {})

    def output_buffers(self, batch: int = 1) -> dict[str, Array]:
        """Arrays for the outputs, for ``run`` to write to without a copy; otherwise as ``buffers``."""
        with self._turn:
            arena = self._arena_for(_sizes(self.inputs, batch), _sizes(self.outputs, batch))
            self._lent = True
            return _arrays(self.outputs, batch, arena, arena.layout.outputs if arena else {})

    def run(self, feeds: Feeds, outputs: Feeds | None = None, *, timeout_s: float = RUN_TIMEOUT_S) -> dict[str, Array]:
        """Execute once.

        Raises:
            EngineError: execution failed, the worker crashed or hung, or the executable is closed.
        """
        with self._turn:
            sizes = {name: array.nbytes for name, array in feeds.items()}
            arena = self._arena_for(sizes, self._room_for(outputs), timeout_s)
            if arena is None:
                return self._run_by_pipe(feeds, outputs, timeout_s)
            return self._run_shared(arena, feeds, outputs, timeout_s)

    def _room_for(self, outputs: Feeds | None) -> dict[str, int]:
        """Bytes that each output needs in the arena; results that are copied move no buffers that were given out."""
        if outputs is not None:
            return {name: array.nbytes for name, array in outputs.items()}
        return {} if self._lent else self._result_bytes

    def _run_by_pipe(self, feeds: Feeds, outputs: Feeds | None, timeout_s: float) -> dict[str, Array]:
        answer, results = self._call({"command": "run"}, feeds, timeout_s)
        sent = sum(array.nbytes for array in (*feeds.values(), *results.values()))
        self._copied.add(sent + int(answer["copied_bytes"]))
        return self._given(results, outputs)

    def _run_shared(self, arena: Arena, feeds: Feeds, outputs: Feeds | None, timeout_s: float) -> dict[str, Array]:
        self._copied.add(arena.put(feeds))
        header = {"command": "run", "inputs": described(feeds, arena.layout.inputs)}
        if outputs is not None:
            header["outputs"] = described(outputs, arena.layout.outputs)
        answer, results = self._call(header, {}, timeout_s)
        self._copied.add(int(answer["copied_bytes"]))
        if outputs is not None:
            self._copied.add(arena.take(outputs))
            return {spec.name: outputs[spec.name] for spec in self.outputs}
        try:
            results |= {item["name"]: arena.block.array(item).copy() for item in answer["outputs"]}
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(f"the engine's process gave an answer that makes no sense: {error}") from error
        self._copied.add(sum(array.nbytes for array in results.values()))
        for name, array in results.items():
            self._result_bytes[name] = max(array.nbytes, self._result_bytes.get(name, 0))
        return self._given(results, None)

    def _given(self, results: dict[str, Array], outputs: Feeds | None) -> dict[str, Array]:
        """Results in the graph's order, in the caller's arrays where there are some."""
        ordered = {spec.name: results[spec.name] for spec in self.outputs}
        return ordered if outputs is None else write_results(ordered, outputs, "the engine", self._copied)

    def _arena_for(
        self, inputs: dict[str, int], outputs: dict[str, int], timeout_s: float = RUN_TIMEOUT_S
    ) -> Arena | None:
        """An arena with room for tensors of these sizes, larger than the last one where needed; None for the pipe."""
        arena = self._arena
        if not self.transport.startswith("shared") or (arena is not None and arena.layout.holds(inputs, outputs)):
            return arena
        known = [{}, {}] if arena is None else [arena.layout.inputs, arena.layout.outputs]
        kept = [{name: place.capacity_bytes for name, place in places.items()} for places in known]
        layout = layout_for(_largest(kept[0], inputs), _largest(kept[1], outputs))
        try:
            with offered(layout.size_bytes) as (block, path):
                room = {name: (place.offset, place.capacity_bytes) for name, place in layout.outputs.items()}
                header = {"command": "share", "path": path, "size_bytes": layout.size_bytes, "room": room}
                answer, _ = self._call(header, {}, timeout_s)
            if "unshared" in answer:
                raise Unshared(answer["unshared"])
        except Unshared as error:
            self.transport = f"pipe: {error}"
            self._arena = None
            return None
        self._arena = Arena(block, layout)
        return self._arena

    def time(self, feeds: Feeds, *, warmup: int, repeats: int, timeout_s: float = RUN_TIMEOUT_S) -> list[float]:
        """Milliseconds of ``repeats`` calls, taken inside the worker."""
        header = {"command": "time", "warmup": warmup, "repeats": repeats}
        answer, _ = self._call(header, feeds, timeout_s)
        return list(map(float, answer["samples_ms"]))

    def close(self) -> None:
        """Drop the graph in the worker; a second call does nothing."""
        if not self._closed and self._worker.pid == self._pid:
            self._call({"command": "close"}, {}, RUN_TIMEOUT_S)
        self._closed = True
        self._arena = None

    def _call(self, header: dict[str, Any], feeds: Feeds, timeout_s: float) -> tuple[dict[str, Any], dict[str, Array]]:
        if self._closed:
            raise EngineError("the graph is closed; load the package again")
        if self._worker.pid != self._pid:
            raise EngineError("the engine's process that held this graph is gone; load the package again")
        try:
            return self._worker.call(self._key, header, feeds, timeout_s=timeout_s)
        finally:
            if not self.alive:
                self._arena = None


def _sizes(specs: tuple[TensorSpec, ...], batch: int) -> dict[str, int]:
    strings = next((spec for spec in specs if spec.dtype == "str"), None)
    if strings is not None:
        raise TensorError(f"'{strings.name}' is of strings, which have no buffer: give arrays of your own")
    return {spec.name: math.prod(spec.concrete_shape(batch)) * np.dtype(spec.dtype).itemsize for spec in specs}


def _arrays(
    specs: tuple[TensorSpec, ...], batch: int, arena: Arena | None, places: Mapping[str, Place]
) -> dict[str, Array]:
    """Arrays at their places in an arena; ordinary ones without."""
    shapes = {spec.name: (spec.dtype, spec.concrete_shape(batch)) for spec in specs}
    if arena is None:
        return {name: np.zeros(shape, dtype) for name, (dtype, shape) in shapes.items()}
    return {name: arena.view(places[name], dtype, shape) for name, (dtype, shape) in shapes.items()}


def _largest(sizes: dict[str, int], others: dict[str, int]) -> dict[str, int]:
    return {name: max(sizes.get(name, 0), others.get(name, 0)) for name in sizes | others}


def _by_kind(shares: dict[str, float]) -> dict[DeviceKind, float]:
    return {DeviceKind(kind): share for kind, share in shares.items()}


def _error(answer: dict[str, Any]) -> SanderlingError:
    """The worker's error as one of ours."""
    kind = getattr(errors, str(answer["error"]), EngineError)
    return kind(answer["message"]) if issubclass(kind, SanderlingError) else EngineError(answer["message"])
