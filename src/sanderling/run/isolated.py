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
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sanderling.core import errors
from sanderling.core.closing import Closing
from sanderling.core.errors import EngineError, SanderlingError, TensorError
from sanderling.core.tensor import Array, Feeds, TensorSpec
from sanderling.run import wire
from sanderling.run.copies import CopyCount, write_results
from sanderling.run.engines.base import DeviceKind, EngineOptions, Placement
from sanderling.run.exchange import Exchange
from sanderling.run.shared_memory import Unshared
from sanderling.run.worker import IN_WORKER, options_to

LOAD_TIMEOUT_S = 120.0
RUN_TIMEOUT_S = 60.0
_PATIENCE_S = 0.2


class NotBegun(EngineError):  # noqa: N818 - what is special about it
    """The process ended before it was asked: the same call may be made again."""


class Worker(Closing):
    """One worker process, started on first use and again after a crash. Usable from several threads, in turn.

    Args:
        python: its interpreter; this one by default.
        path: where another interpreter finds Sanderling, and nothing else of ours, see ``environments.import_path``.
        module: that serves, with ``run/worker.py``.
        share: memory for tensors; without, they all go over the pipe.
        run_timeout_s: of a run that names no other, after which the process counts as hung and is ended.
        niceness: by which it yields to other processes; 0 for none. Only Linux has it.
    """

    def __init__(
        self,
        *,
        python: str = sys.executable,
        path: Path | None = None,
        module: str = "sanderling.run.worker",
        share: bool = True,
        run_timeout_s: float = RUN_TIMEOUT_S,
        niceness: int = 0,
    ) -> None:
        self._niceness = niceness
        self.shares = share
        self.run_timeout_s = run_timeout_s
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
        self, key: int, header: dict[str, Any], arrays: Feeds, *, timeout_s: float, pid: int | None = None
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        """Send one message and wait for its answer; only to the process ``pid``, if one is named."""
        with self._lock:
            if pid not in (None, self.pid):
                raise NotBegun("the engine's process that held this graph is gone; load the package again")
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
        """End the process, also while a call waits for its answer."""
        while not self._lock.acquire(timeout=_PATIENCE_S):
            process = self._process
            if process is not None:
                process.kill()  # whoever waits for it sees that, and lets go of the lock
        try:
            self._end()
        finally:
            self._lock.release()

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
            if self._niceness and sys.platform == "linux":
                with suppress(ProcessLookupError):  # it has ended already, which the next step tells
                    niceness = max(os.getpriority(os.PRIO_PROCESS, self._process.pid), self._niceness)
                    os.setpriority(os.PRIO_PROCESS, self._process.pid, niceness)
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
        self._exchange = Exchange() if worker.shares else None
        self._turn = threading.Lock()  # the exchange serves one call at a time
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
        memory every time, and serve one call at a time. A request for more rows than before moves the memory: buffers
        given before are then copied as any other array. Without shared memory, all of them are.

        Raises:
            TensorError: an input or output is of strings.
            EngineError: the worker is gone, or the executable is closed.
        """
        return self._lend(self.inputs, batch, are_inputs=True)

    def output_buffers(self, batch: int = 1) -> dict[str, Array]:
        """Arrays for the outputs, for ``run`` to write to without a copy; otherwise as ``buffers``."""
        return self._lend(self.outputs, batch, are_inputs=False)

    def run(self, feeds: Feeds, outputs: Feeds | None = None, *, timeout_s: float | None = None) -> dict[str, Array]:
        """Execute once.

        Raises:
            EngineError: execution failed, the worker crashed or hung, or the executable is closed.
        """
        timeout_s = self._worker.run_timeout_s if timeout_s is None else timeout_s
        with self._turn:
            if self._exchange is None:
                return self._run_by_pipe(feeds, outputs, timeout_s)
            try:
                header, copied = self._exchange.place(feeds, outputs, partial(self._attach, timeout_s))
            except Unshared as error:
                self._use_pipe(error)
                return self._run_by_pipe(feeds, outputs, timeout_s)
            self._copied.add(copied)
            return self._run_shared(self._exchange, header, outputs, timeout_s)

    def _run_by_pipe(self, feeds: Feeds, outputs: Feeds | None, timeout_s: float) -> dict[str, Array]:
        answer, results = self._call({"command": "run"}, feeds, timeout_s)
        sent = sum(array.nbytes for array in (*feeds.values(), *results.values()))
        self._copied.add(sent + int(answer["copied_bytes"]))
        ordered = {spec.name: results[spec.name] for spec in self.outputs}
        return ordered if outputs is None else write_results(ordered, outputs, "the engine", self._copied)

    def _run_shared(
        self, exchange: Exchange, header: dict[str, Any], outputs: Feeds | None, timeout_s: float
    ) -> dict[str, Array]:
        answer, sent = self._call({**header, "command": "run"}, {}, timeout_s)
        self._copied.add(int(answer["copied_bytes"]))
        if outputs is not None:
            self._copied.add(exchange.take(outputs))
            return {spec.name: outputs[spec.name] for spec in self.outputs}
        try:
            results = exchange.results(answer, sent)
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(f"the engine's process gave an answer that makes no sense: {error}") from error
        self._copied.add(sum(array.nbytes for array in results.values()))
        return {spec.name: results[spec.name] for spec in self.outputs}

    def _lend(self, specs: tuple[TensorSpec, ...], batch: int, *, are_inputs: bool) -> dict[str, Array]:
        needed, returned = _sizes(self.inputs, batch), _sizes(self.outputs, batch)
        shapes = {spec.name: (spec.dtype, spec.concrete_shape(batch)) for spec in specs}
        with self._turn:
            self._check_alive()
            try:
                if self._exchange is not None:
                    arena = self._exchange.lend(needed, returned, partial(self._attach, RUN_TIMEOUT_S))
                    places = arena.layout.inputs if are_inputs else arena.layout.outputs
                    return {name: arena.view(places[name], dtype, shape) for name, (dtype, shape) in shapes.items()}
            except Unshared as error:
                self._use_pipe(error)
        return {name: np.zeros(shape, dtype) for name, (dtype, shape) in shapes.items()}

    def _attach(self, timeout_s: float, block: dict[str, Any]) -> None:
        answer, _ = self._call({**block, "command": "share"}, {}, timeout_s)
        if "unshared" in answer:
            raise Unshared(answer["unshared"])

    def _use_pipe(self, reason: Unshared) -> None:
        self.transport, self._exchange = f"pipe: {reason}", None

    def time(
        self, feeds: Feeds, *, warmup: int, repeats: int, warmup_s: float = 0.0, timeout_s: float = RUN_TIMEOUT_S
    ) -> list[float]:
        """Milliseconds of ``repeats`` calls, taken inside the worker, after ``warmup`` calls and ``warmup_s``."""
        header = {"command": "time", "warmup": warmup, "warmup_s": warmup_s, "repeats": repeats}
        answer, _ = self._call(header, feeds, timeout_s)
        return list(map(float, answer["samples_ms"]))

    def close(self) -> None:
        """Drop the graph in the worker; a second call does nothing."""
        if not self._closed and self._worker.pid == self._pid:
            self._call({"command": "close"}, {}, RUN_TIMEOUT_S)
        self._closed = True
        self._exchange = None

    def _call(self, header: dict[str, Any], feeds: Feeds, timeout_s: float) -> tuple[dict[str, Any], dict[str, Array]]:
        self._check_alive()
        try:
            return self._worker.call(self._key, header, feeds, timeout_s=timeout_s, pid=self._pid)
        finally:
            if not self.alive:
                self._exchange = None

    def _check_alive(self) -> None:
        if self._closed:
            raise EngineError("the graph is closed; load the package again")
        if self._worker.pid != self._pid:
            self._exchange = None
            raise NotBegun("the engine's process that held this graph is gone; load the package again")


def _sizes(specs: tuple[TensorSpec, ...], batch: int) -> dict[str, int]:
    strings = next((spec for spec in specs if spec.dtype == "str"), None)
    if strings is not None:
        raise TensorError(f"'{strings.name}' is of strings, which have no buffer: give arrays of your own")
    return {spec.name: math.prod(spec.concrete_shape(batch)) * np.dtype(spec.dtype).itemsize for spec in specs}


def _by_kind(shares: dict[str, float]) -> dict[DeviceKind, float]:
    return {DeviceKind(kind): share for kind, share in shares.items()}


def _error(answer: dict[str, Any]) -> SanderlingError:
    """The worker's error as one of ours."""
    kind = getattr(errors, str(answer["error"]), EngineError)
    return kind(answer["message"]) if issubclass(kind, SanderlingError) else EngineError(answer["message"])
