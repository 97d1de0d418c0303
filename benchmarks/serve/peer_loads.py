"""What clients send to each kind of end, and what comes back: the same scores from every server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from multiprocessing.shared_memory import SharedMemory

import grpc
import numpy as np

from benchmarks.serve.load import measure
from benchmarks.serve.peer_processes import Graph, Running, post
from sanderling.core.errors import UnavailableError
from sanderling.core.tensor import Array
from sanderling.serve.grpc_ import inference_pb2

_HOST = "127.0.0.1"
_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_BOUNDARY = b"frontier"
_RETRY_S, _TRY_S = 0.5, 30.0
_TOLERANCE = 1e-3


class Load:
    """Requests for one end of a server.

    Args:
        kind: of the end.
        server: that runs.
        graph: that it serves.
        rows: one for each client.
        memory: for inputs and outputs, where the end takes it.
    """

    def __init__(self, kind: str, server: Running, graph: Graph, rows: Array, memory: SharedMemory | None) -> None:
        self.kind = kind
        self._graph = graph
        self._port = server.ports["grpc" if kind == "grpc" else "http"]
        if kind == "memory":
            assert memory is not None
            _register(memory, self._port, rows, graph)
        maker = {"http": _http, "form": _form, "grpc": _grpc}.get(kind)
        self._requests = [
            maker(graph, row) if maker is not None else _in_memory(graph, index, row.nbytes)
            for index, row in enumerate(rows)
        ]
        self._memory = memory

    async def run(self, *, concurrency: int, seconds: float) -> list[float]:
        """Latencies of all requests within some seconds."""
        if self.kind == "grpc":
            return await _measure_grpc(self._port, self._requests[:concurrency], seconds=seconds)
        return await measure(_HOST, self._port, self._requests[:concurrency], seconds=seconds)

    async def check(self, expected: Array) -> None:
        """Wait until the server answers, with the scores that the graph has.

        Raises:
            UnavailableError: it does not.
        """
        end_s = time.monotonic() + _TRY_S
        while True:
            try:
                got = await self._scores(expected.nbytes)
                break
            except Exception as error:
                if time.monotonic() > end_s:
                    raise UnavailableError(f"no answer over {self.kind}: {type(error).__name__}: {error}") from error
                await asyncio.sleep(_RETRY_S)
        if not np.allclose(got, expected.reshape(-1), rtol=_TOLERANCE, atol=_TOLERANCE):
            raise UnavailableError(f"other scores than the graph's over {self.kind}")

    async def _scores(self, size: int) -> Array:
        if self.kind == "grpc":
            async with grpc.aio.insecure_channel(f"{_HOST}:{self._port}") as channel:
                answer = inference_pb2.ModelInferResponse.FromString(
                    await channel.unary_unary(_METHOD)(self._requests[0])
                )
            return np.frombuffer(answer.raw_output_contents[0], np.float32)
        reader, writer = await asyncio.open_connection(_HOST, self._port)
        writer.write(self._requests[0])
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise ValueError(head[:200])
        body = await reader.readexactly(int(head.lower().split(b"\r\ncontent-length: ")[1].split(b"\r\n")[0]))
        writer.close()
        if self.kind == "memory":
            assert self._memory is not None
            assert self._memory.buf is not None
            at = len(self._requests) * int(np.prod(self._graph.row_shape)) * 4
            return np.frombuffer(bytes(self._memory.buf[at : at + size]), np.float32)
        return np.frombuffer(body[-size:], np.float32)


async def _measure_grpc(port: int, requests: Sequence[bytes], *, seconds: float) -> list[float]:
    latencies_ms: list[float] = []
    end_s = time.perf_counter() + seconds

    async def call(request: bytes) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"{_HOST}:{port}", options) as channel:
            infer = channel.unary_unary(_METHOD)
            while (since_s := time.perf_counter()) < end_s:
                await infer(request)
                latencies_ms.append((time.perf_counter() - since_s) * 1e3)

    await asyncio.gather(*map(call, requests))
    return latencies_ms


def _http(graph: Graph, row: Array) -> bytes:
    tensor = {"name": graph.input, "datatype": "FP32", "shape": row.shape}
    inputs = [{**tensor, "parameters": {"binary_data_size": row.nbytes}}]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = head + row.tobytes()
    return _posted(f"/v2/models/{graph.name}/infer", body, f"Inference-Header-Content-Length: {len(head)}")


def _form(graph: Graph, row: Array) -> bytes:  # noqa: ARG001
    part = b'Content-Disposition: form-data; name="data"; filename="data"\r\n\r\n' + row.tobytes()
    body = b"--%b\r\n%b\r\n--%b--\r\n" % (_BOUNDARY, part, _BOUNDARY)
    return _posted("/predict", body, f"Content-Type: multipart/form-data; boundary={_BOUNDARY.decode()}")


def _grpc(graph: Graph, row: Array) -> bytes:
    message = inference_pb2.ModelInferRequest(model_name=graph.name, raw_input_contents=[row.tobytes()])
    message.inputs.add(name=graph.input, datatype="FP32", shape=row.shape)
    return bytes(message.SerializeToString())


def _in_memory(graph: Graph, index: int, row_bytes: int) -> bytes:
    """A request whose input and output have places of their own: all inputs first, then all outputs."""
    place: dict[str, object] = {"shared_memory_byte_size": row_bytes, "shared_memory_offset": index * row_bytes}
    tensor: dict[str, object] = {"name": graph.input, "datatype": "FP32", "shape": [1, *graph.row_shape]}
    size = graph.output_size * 4
    result: dict[str, object] = {"shared_memory_byte_size": size, "shared_memory_offset": index * size}
    body = {
        "inputs": [{**tensor, "parameters": {"shared_memory_region": "inputs", **place}}],
        "outputs": [{"name": graph.output, "parameters": {"shared_memory_region": "outputs", **result}}],
    }
    text = json.dumps(body).encode()
    return _posted(f"/v2/models/{graph.name}/infer", text, f"Inference-Header-Content-Length: {len(text)}")


def _register(memory: SharedMemory, port: int, rows: Array, graph: Graph) -> None:
    """Lend the server the memory: a region of inputs, written here, and one of outputs."""
    assert memory.buf is not None
    memory.buf[: rows.nbytes] = rows.tobytes()
    parts = {"inputs": (0, rows.nbytes), "outputs": (rows.nbytes, len(rows) * graph.output_size * 4)}
    for name, (offset, size) in parts.items():
        region = {"key": f"/{memory.name}", "offset": offset, "byte_size": size}
        post(f"http://{_HOST}:{port}/v2/systemsharedmemory/region/{name}/register", json.dumps(region).encode())


def _posted(path: str, body: bytes, header: str) -> bytes:
    lines = f"POST {path} HTTP/1.1\r\nHost: {_HOST}\r\nContent-Length: {len(body)}\r\n{header}\r\n\r\n"
    return lines.encode() + body
