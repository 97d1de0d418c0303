"""Clients of the soak, each in a process of its own, so that it can be killed in the middle of a request."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from sanderling.core.tensor import Array

KINDS = ("http", "grpc", "memory")
WIDTH = 3
_MOST_ROWS = 3
_BASE = 512  # a number takes three columns, each small enough for 16 bits to hold it and a half exactly
_ADDED = np.float32(0.5)
_ROW_BYTES = WIDTH * 4
_TIMEOUT_S = 60.0
SENT, ANSWERED, WRONG, REFUSED = range(4)
Infer = Callable[[Array, Array], tuple[Array, Array]]


@dataclass
class Client:
    """A client that runs.

    Attributes:
        counts: requests that it sent, that were answered, answered wrongly, and refused; kept when it is killed.
        is_over: asks it to end after its request.
        region: name of its shared memory; empty where it has none.
    """

    kind: str
    process: Any
    counts: Any
    is_over: Any
    region: str

    def kill(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.join()

    def stop(self) -> None:
        """Let it end."""
        self.is_over.set()
        self.process.join(_TIMEOUT_S)
        if self.process.is_alive():
            self.kill()

    @property
    def has_failed(self) -> bool:
        """Whether it ended by a fault of its own."""
        return self.process.exitcode not in (0, None, -signal.SIGKILL)


def start(kind: str, number: int, ports: dict[str, int]) -> Client:
    """Start a client.

    Args:
        kind: of ``KINDS``.
        number: that no other client has had.
        ports: of the server.
    """
    context = multiprocessing.get_context("spawn")
    counts, is_over = context.Array("q", 4, lock=False), context.Event()
    region = f"sanderling-soak-{number}" if kind == "memory" else ""
    process = context.Process(target=_run, args=(kind, number, ports, region, counts, is_over), daemon=True)
    process.start()
    return Client(kind, process, counts, is_over, region)


def _run(kind: str, number: int, ports: dict[str, int], region: str, counts: Any, is_over: Any) -> None:  # noqa: ANN401
    """Ask one request after the other, and compare each answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    chooser = random.Random(number)
    maker = {"http": _http, "grpc": _grpc, "memory": _memory}[kind]
    infer = maker(ports, region)
    for request in itertools.count(number * 1_000_000):
        if is_over.is_set():
            return
        a = numbered(request, chooser.randint(1, _MOST_ROWS))
        b = np.full_like(a, _ADDED)
        counts[SENT] += 1
        try:
            total, difference = infer(a, b)
        except InferenceServerException as error:
            counts[REFUSED] += 1
            print(f"{kind}: {error}", flush=True)
            continue
        counts[ANSWERED] += 1
        if not (np.array_equal(total, a + b) and np.array_equal(difference, a - b)):
            counts[WRONG] += 1


def numbered(number: int, rows: int) -> Array:
    """Rows that show whose they are, and their place."""
    a = np.empty((rows, WIDTH), np.float32)
    a[:, 0], a[:, 1] = number % _BASE, number // _BASE % _BASE
    a[:, 2] = (number // _BASE**2 + np.arange(rows)) % _BASE
    return a


def _http(ports: dict[str, int], region: str) -> Infer:  # noqa: ARG001
    client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{ports['http']}", network_timeout=_TIMEOUT_S)
    return _infer_with(client, tritonclient.http)


def _grpc(ports: dict[str, int], region: str) -> Infer:  # noqa: ARG001
    return _infer_with(tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{ports['grpc']}"), tritonclient.grpc)


def _infer_with(client: Any, module: Any) -> Infer:  # noqa: ANN401 - Triton's clients have no types
    def infer(a: Array, b: Array) -> tuple[Array, Array]:
        inputs = []
        for name, array in (("a", a), ("b", b)):
            tensor = module.InferInput(name, list(array.shape), "FP32")
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        answer = client.infer("sums", inputs)
        return answer.as_numpy("sum"), answer.as_numpy("difference")

    return infer


def _memory(ports: dict[str, int], region: str) -> Infer:
    """Inputs and outputs in shared memory, with a place of its own for each."""
    client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{ports['http']}", network_timeout=_TIMEOUT_S)
    size = _MOST_ROWS * _ROW_BYTES
    memory = SharedMemory(region, create=True, size=4 * size)
    client.register_system_shared_memory(region, f"/{region}", 4 * size)
    places = {name: index * size for index, name in enumerate(("a", "b", "sum", "difference"))}

    def infer(a: Array, b: Array) -> tuple[Array, Array]:
        content = memory.buf
        assert content is not None
        inputs, outputs = [], []
        for name, array in (("a", a), ("b", b)):
            content[places[name] : places[name] + array.nbytes] = array.tobytes()
            tensor = tritonclient.http.InferInput(name, list(array.shape), "FP32")
            tensor.set_shared_memory(region, array.nbytes, offset=places[name])
            inputs.append(tensor)
        for name in ("sum", "difference"):
            output = tritonclient.http.InferRequestedOutput(name)
            output.set_shared_memory(region, a.nbytes, offset=places[name])
            outputs.append(output)
        client.infer("sums", inputs, outputs=outputs)
        total, difference = (
            np.frombuffer(bytes(content[places[name] : places[name] + a.nbytes]), np.float32).reshape(a.shape)
            for name in ("sum", "difference")
        )
        return total, difference

    return infer


def give_back(region: str, port: int) -> None:
    """Take a region that its client left behind away, from the server and from the system."""
    if not region:
        return
    client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{port}")
    client.unregister_system_shared_memory(region)
    client.close()
    with suppress(FileNotFoundError):
        memory = SharedMemory(region)
        memory.close()
        memory.unlink()
