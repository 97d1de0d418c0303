"""A server in a thread of the test, and clients that speak to it byte by byte."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import uvloop

from sanderling.serve.server import Server
from sanderling.serve.settings import Settings
from sanderling.serve.tensors import datatype_of

TIMEOUT_S = 20.0


@contextmanager
def running(settings: Settings, *, wait: bool = True) -> Iterator[Server]:
    """A server that takes requests; without ``wait`` one that starts."""
    started = threading.Event()
    kept: list[Any] = [None, None]

    async def serve() -> None:
        stop = asyncio.Event()
        server = Server(settings)
        kept[:] = [server, lambda: loop.call_soon_threadsafe(stop.set)]
        if not wait:
            started.set()
        await server.start()
        started.set()
        await stop.wait()
        await server.stop()

    loop = uvloop.new_event_loop()
    failure: list[BaseException] = []

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        except BaseException as error:  # noqa: BLE001
            failure.append(error)
        finally:
            started.set()
            loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(TIMEOUT_S)
    try:
        if failure:
            raise failure[0]
        yield kept[0]
    finally:
        if kept[1] is not None and not failure:
            kept[1]()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


@dataclass(frozen=True)
class Answer:
    """An answer of HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Its body."""
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """Its message, in the protocol's form."""
        content = self.json
        assert list(content) == ["error"]
        return content["error"]


class RawClient:
    """One connection, by a socket."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._file = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def read(self) -> Answer:
        """The next answer, with a body of a known length or in chunks."""
        line = self._file.readline()
        assert line.startswith(b"HTTP/1.1 "), line
        headers: dict[str, str] = {}
        while (header := self._file.readline().rstrip(b"\r\n")) != b"":
            name, _, value = header.decode().partition(": ")
            headers[name.lower()] = value
        status = int(line.split()[1])
        if status < 200:
            return Answer(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while (size := int(self._file.readline(), 16)) > 0:
                body += self._file.read(size)
                assert self._file.readline() == b"\r\n"
            assert self._file.readline() == b"\r\n"
            return Answer(status, headers, body)
        return Answer(status, headers, self._file.read(int(headers.get("content-length", 0))))

    def ask(self, data: bytes) -> Answer:
        """Send a request and read its answer."""
        self.send(data)
        return self.read()

    def is_closed(self) -> bool:
        """Whether the server closes the connection without another byte."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self.socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ask(port: int, data: bytes) -> Answer:
    """One request by a connection of its own."""
    with RawClient(port) as client:
        return client.ask(data)


def get(path: str) -> bytes:
    """A request without a body."""
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def post(path: str, body: bytes = b"", **headers: object) -> bytes:
    """A request with a body; underscores of header names become hyphens."""
    lines = {
        "Host": "x",
        "Content-Length": len(body),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def binary_body(name: str, array: np.ndarray, **fields: Any) -> tuple[bytes, int]:
    """The body of an inference request with one tensor as bytes, and the length of its JSON."""
    tensor = {
        "name": name,
        "shape": list(array.shape),
        "datatype": datatype_of(array.dtype.name),
        "parameters": {"binary_data_size": array.nbytes},
    }
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}, **fields}).encode()
    return header + array.tobytes(), len(header)


def infer(model: str, name: str, array: np.ndarray, **fields: Any) -> bytes:
    """A whole inference request with one tensor as bytes."""
    body, length = binary_body(name, array, **fields)
    return post(f"/v2/models/{model}/infer", body, Inference_Header_Content_Length=length)


def read_binary(answer: Answer) -> dict[str, np.ndarray]:
    """float32 outputs of an answer, by name."""
    length = int(answer.headers["inference-header-content-length"])
    header, at = json.loads(answer.body[:length]), length
    arrays = {}
    for output in header["outputs"]:
        size = output["parameters"]["binary_data_size"]
        arrays[output["name"]] = np.frombuffer(answer.body[at : at + size], np.float32).reshape(output["shape"])
        at += size
    assert at == len(answer.body)
    return arrays
