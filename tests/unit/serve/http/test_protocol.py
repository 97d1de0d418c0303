from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from sanderling.run.pool import Pool
from sanderling.serve.data_plane import DataPlane
from sanderling.serve.http.protocol import Connection
from sanderling.serve.http.routes import make_app
from sanderling.serve.http.server import HttpServer
from sanderling.serve.log import Log
from sanderling.serve.services import Services
from sanderling.serve.settings import Limits, Settings
from tests.models import random_arrays
from tests.serving import binary_body, get, post
from tests.unit.serve.packages import classifier_package

IMAGE = random_arrays({"image": (1, 3, 8, 8)}, seed=3)["image"]


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False
        self.reading = True

    def write(self, data) -> None:
        self.written += bytes(data)

    def writelines(self, parts) -> None:
        self.written += b"".join(map(bytes, parts))

    def is_closing(self) -> bool:
        return self.closed

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    abort = close

    def get_extra_info(self, _: str) -> object:
        return None


@pytest.fixture(scope="module")
def services(tmp_path_factory):
    package = classifier_package(tmp_path_factory.mktemp("package") / "tiny.sdl")
    with Pool() as pool:
        plane = DataPlane(pool)
        plane.add(pool.load(package.path), name="tiny")
        settings = Settings((package.path,), limits=Limits(body_bytes=20_000, header_bytes=1000, headers=20))
        yield Services(settings, plane, Log(), is_started=True)


def on_connection(services: Services, steps: Callable[[Connection, Transport], Awaitable[None]]) -> None:
    """Run a test in an event loop, on a connection without a socket."""

    async def run() -> None:
        server = HttpServer(services, make_app(services))
        connection, transport = Connection(server), Transport()
        connection.connection_made(transport)
        await steps(connection, transport)

    asyncio.run(run())


def feed(connection: Connection, data: bytes) -> None:
    """Bytes come, as many at a time as the connection takes."""
    while data:
        room = connection.get_buffer(-1)
        size = min(len(room), len(data))
        room[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]


async def answers(transport: Transport, count: int) -> list[tuple[int, bytes]]:
    """Status and body of as many answers."""
    for _ in range(5000):
        found, rest = [], transport.written
        while b"\r\n\r\n" in rest:
            head, _, rest = rest.partition(b"\r\n\r\n")
            status, length = int(head.split()[1]), 0
            for line in head.split(b"\r\n"):
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            if len(rest) < length:
                break
            found.append((status, rest[:length]))
            rest = rest[length:]
        if len(found) >= count:
            assert rest == b""
            return found
        await asyncio.sleep(0.001)
    raise AssertionError(f"only {transport.written!r} came")


def infer_request(**headers: object) -> bytes:
    body, length = binary_body("image", IMAGE[:, :, :2])
    return post("/v2/models/tiny/infer", body, Inference_Header_Content_Length=length, **headers)


def test_a_request_may_come_in_any_two_pieces(services):
    """One with a tensor that has too few bytes: it is answered without the model, at once."""
    request = infer_request()

    async def steps(connection, transport):
        for at in range(1, len(request)):
            transport.written = b""
            feed(connection, request[:at])
            assert transport.written == b""
            feed(connection, request[at:])
            ((status, body),) = await answers(transport, 1)
            assert (status, b"axis 2 must be 8" in body) == (400, True)

    on_connection(services, steps)


def test_a_chunked_request_may_come_in_any_two_pieces(services):
    body, length = binary_body("image", IMAGE[:, :, :1])
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:10], body[10:])) + b"0\r\n\r\n"
    request = (
        f"POST /v2/models/tiny/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"
        f"Inference-Header-Content-Length: {length}\r\n\r\n"
    ).encode() + chunks

    async def steps(connection, transport):
        for at in range(1, len(request)):
            transport.written = b""
            feed(connection, request[:at])
            feed(connection, request[at:])
            ((status, body),) = await answers(transport, 1)
            assert (status, b"axis 2 must be 8" in body) == (400, True)

    on_connection(services, steps)


def test_answers_come_in_the_order_of_requests(services):
    body, length = binary_body("image", IMAGE)
    good = post("/v2/models/tiny/infer", body, Inference_Header_Content_Length=length)
    bad = post("/v2/models/nope/infer", b"{}")

    async def steps(connection, transport):
        feed(connection, good + bad + get("/v2/health/live") + good + bad)
        found = await answers(transport, 5)
        assert [status for status, _ in found] == [200, 404, 200, 200, 404]
        assert found[0] == found[3]

    on_connection(services, steps)


def test_a_client_that_sends_ahead_without_end_is_read_no_further(services):
    async def steps(connection, transport):
        feed(connection, get("/v2/health/live"))
        feed(connection, get("/v2/health/live") * 100)
        assert not transport.reading
        await answers(transport, 101)
        assert transport.reading

    on_connection(services, steps)


def test_a_body_is_asked_for_when_the_client_waits_for_that(services):
    body, length = binary_body("image", IMAGE)
    request = post("/v2/models/tiny/infer", body, Inference_Header_Content_Length=length, Expect="100-continue")

    async def steps(connection, transport):
        feed(connection, request[: -len(body)])
        assert transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
        feed(connection, body)
        assert [status for status, _ in await answers(transport, 2)] == [100, 200]

    on_connection(services, steps)


def test_a_client_that_takes_no_answers_is_read_no_further(services):
    request = infer_request()

    async def steps(connection, transport):
        feed(connection, request[:50])
        connection.pause_writing()
        feed(connection, request[50:] + request * 20)
        assert transport.written == b""
        assert not transport.reading
        connection.resume_writing()
        assert [status for status, _ in await answers(transport, 21)] == [400] * 21
        assert transport.reading

    on_connection(services, steps)


def test_a_client_that_takes_no_answers_gets_no_more(services):
    async def steps(connection, transport):
        connection.pause_writing()
        feed(connection, infer_request() * 2)
        assert transport.written == b""
        connection.resume_writing()
        assert [status for status, _ in await answers(transport, 2)] == [400, 400]

    on_connection(services, steps)


@pytest.mark.parametrize(
    ("request_bytes", "status", "told"),
    [
        (b"nonsense\r\n\r\n", 400, "no HTTP request"),
        (post("/v2/models/tiny/infer", Content_Length=20_001), 413, "20001 bytes or more: at most 20000"),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 1000, 431, "at most 1000"),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 1000 + b"\r\n\r\n", 431, "at most 1000"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 21 + b"\r\n", 431, "21 headers: at most 20"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400, "proper chunks"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f00\r\n" + bytes(0xF00) + b"\r\n", None, ""),
    ],
)
def test_what_cannot_be_read_is_refused_and_the_connection_closed(services, request_bytes, status, told):
    async def steps(connection, transport):
        feed(connection, request_bytes)
        if status is None:  # fine so far
            assert transport.written == b""
            feed(connection, (b"f00\r\n" + bytes(0xF00) + b"\r\n") * 5)
        ((found, body),) = await answers(transport, 1)
        assert found == (status or 413)
        assert told in json.loads(body)["error"]
        assert transport.closed

    on_connection(services, steps)


def test_a_client_that_is_too_slow_is_told_so(services):
    async def steps(connection, transport):
        feed(connection, b"GET / HT")
        connection.overdue()
        ((status, body),) = await answers(transport, 1)
        assert (status, "did not come in time" in json.loads(body)["error"]) == (408, True)
        assert transport.closed

    on_connection(services, steps)


def test_an_idle_connection_is_closed_without_a_word(services):
    async def steps(connection, transport):
        connection.overdue()
        assert transport.closed
        assert transport.written == b""

    on_connection(services, steps)


def test_the_tensor_that_the_model_gets_lies_in_the_body_that_came(services):
    session = services.plane.model("tiny").session
    seen = []
    submit = session.submit

    def spy(feeds, *arguments, **options):
        seen.append(feeds["image"])
        return submit(feeds, *arguments, **options)

    body, length = binary_body("image", IMAGE)

    async def steps(connection, transport):
        session.submit = spy
        try:
            feed(connection, post("/v2/models/tiny/infer", body, Inference_Header_Content_Length=length))
            await answers(transport, 1)
        finally:
            del session.submit

    on_connection(services, steps)
    (array,) = seen
    assert array.base is not None
    assert array.ctypes.data % 16 == 0
    np.testing.assert_array_equal(array, IMAGE)
