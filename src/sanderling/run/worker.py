"""A process of its own for an engine: `python -m sanderling.run.worker`.

It serves one parent over standard input and output. A native crash, a hang or leaked memory of an engine stays here; an
engine whose package needs other versions of NumPy or ONNX runs in the Python of its own environment.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sanderling.core.errors import SanderlingError
from sanderling.core.tensor import Array
from sanderling.run import wire
from sanderling.run.engines import engine
from sanderling.run.engines.base import Compute, EngineOptions, Executable, Optimization
from sanderling.run.exchange import COPIES
from sanderling.run.shared_memory import Block, Place, Unshared, describe

IN_WORKER = "SANDERLING_WORKER"  # set in the environment of every worker
_LOOK_S = 1.0
Load = Callable[[dict[str, Any]], Executable]
Message = tuple[dict[str, Any], dict[str, Array]]


def load_by_engine(header: dict[str, Any]) -> Executable:
    """Load a graph with the engine, from the file and with the options that a message names."""
    return engine(header["engine"]).load(Path(header["model"]), options_from(header["options"]))


def serve(source: int, sink: int, load: Load = load_by_engine) -> None:
    """Answer messages until the parent is gone."""
    loaded: dict[int, Loaded] = {}
    while True:
        try:
            header, arrays = wire.receive(source)
        except wire.Closed:
            return
        try:
            answer, outputs = _answer(header, arrays, loaded, load)
        except SanderlingError as error:
            answer, outputs = {"error": type(error).__name__, "message": str(error)}, {}
        except Exception as error:  # noqa: BLE001 - whatever an engine raises must reach the parent
            answer, outputs = {"error": "EngineError", "message": f"{type(error).__name__}: {error}"}, {}
        wire.send(sink, answer, outputs)


class Loaded:
    """A graph, and the memory that it shares with the parent once that offers some."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self._blocks: dict[str, Block] = {}
        self._room: dict[str, Place] = {}

    def share(self, header: dict[str, Any]) -> Message:
        """Attach the block that a message offers; the answer says why where that fails."""
        name = header["block"]
        self._blocks.pop(name, None)
        try:
            self._blocks[name] = Block.attach(header["path"], int(header["size_bytes"]))
        except Unshared as error:
            return {"unshared": str(error)}, {}
        if name == COPIES:
            self._room = {output: Place(*map(int, place)) for output, place in header["room"].items()}
        return {}, {}

    def run(self, header: dict[str, Any], arrays: dict[str, Array]) -> Message:
        """Execute once, on arrays of the message, or on those in shared memory that it names."""
        before = self.executable.copied_bytes
        if "inputs" not in header:
            results = self.executable.run(arrays)
            return {"copied_bytes": self.executable.copied_bytes - before}, results
        feeds = self._arrays(header["inputs"])
        if "outputs" in header:
            self.executable.run(feeds, self._arrays(header["outputs"]))
            return {"copied_bytes": self.executable.copied_bytes - before}, {}
        results = self.executable.run(feeds)
        return self._put(results, self.executable.copied_bytes - before)

    def _arrays(self, told: list[dict[str, Any]]) -> dict[str, Array]:
        strange = next((item["block"] for item in told if item["block"] not in self._blocks), None)
        if strange is not None:
            raise ValueError(f"a message names memory '{strange}', which is not attached")
        return {item["name"]: self._blocks[item["block"]].array(item) for item in told}

    def _put(self, results: dict[str, Array], copied_bytes: int) -> Message:
        """Results that have room in shared memory are told, the others are sent."""
        told, sent = [], {}
        for name, array in results.items():
            place = self._room.get(name)
            if place is None or array.nbytes > place.capacity_bytes or array.dtype.hasobject:
                sent[name] = array
                continue
            told.append(describe(name, array, place, COPIES))
            np.copyto(self._blocks[COPIES].array(told[-1]), array)
            copied_bytes += array.nbytes
        return {"outputs": told, "copied_bytes": copied_bytes}, sent


def _answer(header: dict[str, Any], arrays: dict[str, Array], loaded: dict[int, Loaded], load: Load) -> Message:
    command, key = header["command"], int(header["key"])
    if command == "load":
        loaded[key] = Loaded(load(header))
        return _described(loaded[key].executable), {}
    if command == "share":
        return loaded[key].share(header)
    if command == "run":
        return loaded[key].run(header, arrays)
    if command == "time":
        return {"samples_ms": _timed(loaded[key].executable, arrays, header)}, {}
    if command == "close":
        loaded.pop(key).executable.close()
        return {}, {}
    raise ValueError(f"unknown command '{command}'")


def _described(executable: Executable) -> dict[str, Any]:
    placement = executable.placement
    return {
        "inputs": [spec.model_dump() for spec in executable.inputs],
        "outputs": [spec.model_dump() for spec in executable.outputs],
        "placement": {
            "device": placement.device,
            "kinds": placement.kinds,
            "macs": placement.macs,
            "fell_back": placement.fell_back,
            "detail": placement.detail,
        },
    }


def _timed(executable: Executable, feeds: dict[str, Array], header: dict[str, Any]) -> list[float]:
    """Time calls inside this process, so that the pipe is not measured."""
    call = partial(executable.run, feeds)
    warm_s = time.perf_counter() + float(header["warmup_s"])
    for _ in range(int(header["warmup"])):
        call()
    while time.perf_counter() < warm_s:
        call()
    samples = []
    for _ in range(int(header["repeats"])):
        start = time.perf_counter()
        call()
        samples.append((time.perf_counter() - start) * 1e3)
    return samples


def options_to(options: EngineOptions) -> dict[str, Any]:
    """Options as JSON values."""
    return {
        "device": options.device,
        "threads": options.threads,
        "optimization": options.optimization,
        "compute": options.compute,
        "lean": options.lean,
        "spin": options.spin,
        "cache": str(options.cache) if options.cache else None,
    }


def options_from(value: dict[str, Any]) -> EngineOptions:
    """Options from JSON values."""
    return EngineOptions(
        device=value["device"],
        threads=value["threads"],
        optimization=Optimization(value["optimization"]),
        compute=Compute(value["compute"]),
        lean=value["lean"],
        spin=value["spin"],
        cache=Path(value["cache"]) if value["cache"] else None,
    )


def main(load: Load = load_by_engine) -> None:
    """Serve the parent; what libraries print goes to standard error instead of into the messages."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    sink = os.dup(1)
    os.dup2(2, 1)
    serve(0, sink, load)


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, though native code may hang."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


if __name__ == "__main__":
    main()
