"""Load for a server of the Open Inference Protocol over HTTP, and what each request costs the server's processor.

    python -m benchmarks.serve.load 127.0.0.1:8000 MODEL --pid PID [--concurrency 1,8,32] [--seconds 3]

Writes one JSON object: requests a second, latency, and milliseconds of the server's processor time a request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import time
import urllib.request
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import psutil
import uvloop

from sanderling.core.statistics import percentiles


class _Client(asyncio.BufferedProtocol):
    """Sends one request again as soon as it is answered."""

    def __init__(self, request: bytes, latencies_ms: list[float], *, end_s: float) -> None:
        self._request, self._latencies_ms, self._end_s = request, latencies_ms, end_s
        self._buffer = memoryview(bytearray(1 << 20))
        self._filled = 0
        self._since_s = 0.0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._send()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        head, separator, _ = bytes(self._buffer[: min(self._filled, 4096)]).partition(b"\r\n\r\n")
        if not separator:
            return
        length = int(head.lower().split(b"\r\ncontent-length: ")[1].split(b"\r\n")[0])
        if self._filled < len(head) + 4 + length:
            return
        assert head.startswith(b"HTTP/1.1 200"), bytes(self._buffer[: self._filled])
        self._latencies_ms.append((time.perf_counter() - self._since_s) * 1e3)
        self._filled = 0
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if not self.done.done():
            self.done.set_result(None)

    def _send(self) -> None:
        self._since_s = time.perf_counter()
        if self._since_s > self._end_s:
            self._transport.close()
        else:
            self._transport.write(self._request)


async def measure(host: str, port: int, requests: Sequence[bytes], *, seconds: float) -> list[float]:
    """Latencies of all requests within ``seconds``, of one client for each of ``requests``."""
    latencies_ms: list[float] = []
    loop = asyncio.get_running_loop()
    end_s = time.perf_counter() + seconds
    pairs = [
        await loop.create_connection(partial(_Client, request, latencies_ms, end_s=end_s), host, port)
        for request in requests
    ]
    await asyncio.gather(*(client.done for _, client in pairs))
    return latencies_ms


def infer_request(host: str, model: str, described: dict[str, Any]) -> bytes:
    """One binary request with a random row for every input."""
    generator = np.random.default_rng(0)
    inputs, tails = [], []
    for tensor in described["inputs"]:
        shape = [max(size, 1) for size in tensor["shape"]]
        values = generator.standard_normal(math.prod(shape), np.float32).tobytes()
        inputs.append({**tensor, "shape": shape, "parameters": {"binary_data_size": len(values)}})
        tails.append(values)
    header = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = header + b"".join(tails)
    lines = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n"
    return f"{lines}Inference-Header-Content-Length: {len(header)}\r\n\r\n".encode() + body


def cpu_s(pid: int) -> float:
    """Processor time of a process and its children so far, user and system."""
    total = 0.0
    parent = psutil.Process(pid)
    for process in (parent, *parent.children(recursive=True)):
        times = process.cpu_times()
        total += times.user + times.system
    return total


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("model")
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    host, _, port = options.address.partition(":")
    with urllib.request.urlopen(f"http://{options.address}/v2/models/{options.model}") as answer:
        described = json.load(answer)
    request = infer_request(host, options.model, described)
    results = []
    for concurrency in map(int, options.concurrency.split(",")):
        uvloop.run(measure(host, int(port), [request] * concurrency, seconds=0.5))
        before_s, since_s = cpu_s(options.pid), time.perf_counter()
        latencies_ms = uvloop.run(measure(host, int(port), [request] * concurrency, seconds=options.seconds))
        used_s, passed_s = cpu_s(options.pid) - before_s, time.perf_counter() - since_s
        results.append(
            {
                "concurrency": concurrency,
                "requests_per_s": len(latencies_ms) / passed_s,
                "server_cpu_ms": used_s * 1e3 / len(latencies_ms),
                "latency_ms": percentiles(latencies_ms),
            }
        )
    print(json.dumps({"model": options.model, "request_bytes": len(request), "results": results}, indent=1))


if __name__ == "__main__":
    main()
