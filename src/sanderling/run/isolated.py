"""Executables that live in a worker process."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from sanderling.core import errors
from sanderling.core.errors import EngineError, SanderlingError
from sanderling.core.tensor import Array, Feeds, TensorSpec
from sanderling.run import wire
from sanderling.run.engines.base import DeviceKind, EngineOptions, Placement
from sanderling.run.worker import IN_WORKER, options_to

LOAD_TIMEOUT_S = 120.0
RUN_TIMEOUT_S = 60.0


class Worker:
    """One worker process, started on first use and again after a crash. Usable from several threads, in turn.

    Args:
        python: its interpreter; this one by default.
        path: where another interpreter finds Sanderling, and nothing else of ours, see ``environments.import_path``.
        module: that serves, with ``run/worker.py``.
    """

    def __init__(
        self, *, python: str = sys.executable, path: Path | None = None, module: str = "sanderling.run.worker"
    ) -> None:
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
    """A graph in a worker; it keeps the contract of ``Executable``."""

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
        self._worker, self._key, self._pid = worker, key, pid
        self._closed = False

    @property
    def alive(self) -> bool:
        """Whether the process that holds the graph still runs."""
        return not self._closed and self._worker.pid == self._pid

    def run(self, feeds: Feeds, *, timeout_s: float = RUN_TIMEOUT_S) -> dict[str, Array]:
        """Execute once.

        Raises:
            EngineError: execution failed, the worker crashed or hung, or the executable is closed.
        """
        _, outputs = self._call({"command": "run"}, feeds, timeout_s)
        return {spec.name: outputs[spec.name] for spec in self.outputs}

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

    def _call(self, header: dict[str, Any], feeds: Feeds, timeout_s: float) -> tuple[dict[str, Any], dict[str, Array]]:
        if self._closed:
            raise EngineError("the graph is closed; load the package again")
        if self._worker.pid != self._pid:
            raise EngineError("the engine's process that held this graph is gone; load the package again")
        return self._worker.call(self._key, header, feeds, timeout_s=timeout_s)


def _by_kind(shares: dict[str, float]) -> dict[DeviceKind, float]:
    return {DeviceKind(kind): share for kind, share in shares.items()}


def _error(answer: dict[str, Any]) -> SanderlingError:
    """The worker's error as one of ours."""
    kind = getattr(errors, str(answer["error"]), EngineError)
    return kind(answer["message"]) if issubclass(kind, SanderlingError) else EngineError(answer["message"])
