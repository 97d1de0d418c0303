from __future__ import annotations

import pytest

from sanderling.serve.errors import HeadersTooLargeError, RequestError
from sanderling.serve.http.head import parse_head
from sanderling.serve.settings import Limits

LIMITS = Limits(headers=5)


def head(line: str, *headers: str):
    return parse_head("\r\n".join([line, *headers, "", ""]).encode(), LIMITS)


def test_a_head_is_read():
    found = head("POST /v2/models/a/infer?x=1 HTTP/1.1", "Host: h", "Content-LENGTH: 12", "Expect: 100-Continue")
    assert (found.method, found.path, found.query, found.version) == ("POST", b"/v2/models/a/infer", b"x=1", "1.1")
    assert found.headers[1] == (b"content-length", b"12")
    assert (found.length, found.chunked, found.keep_alive, found.expects_continue) == (12, False, True, True)


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/v2/models/a/infer", ("a", "")),
        ("/v2/models/a/versions/3/infer", ("a", "3")),
        ("/v2/models/a%20b/infer", ("a b", "")),
        ("/v2/models/%2e%2e%2fetc/infer", ("../etc", "")),
        ("/v2/models/a/b/infer", None),
        ("/v2/models//infer", None),
        ("/v2/models/a/ready", None),
    ],
)
def test_model_and_version_are_found_in_the_target(path, target):
    assert head(f"POST {path} HTTP/1.1").model == target
    assert head(f"GET {path} HTTP/1.1").model is None


@pytest.mark.parametrize(
    ("version", "header", "keep"),
    [
        ("1.1", "A: b", True),
        ("1.1", "Connection: close", False),
        ("1.0", "A: b", False),
        ("1.0", "Connection: keep-alive", True),
    ],
)
def test_connections_stay_as_the_client_says(version, header, keep):
    assert head(f"GET / HTTP/{version}", header).keep_alive is keep


@pytest.mark.parametrize(
    "lines",
    [
        ["nonsense"],
        ["GET / HTTP/1.1", "no colon"],
        ["GET / HTTP/1.1", "Content-Length: -1"],
        ["GET / HTTP/1.1", "Content-Length: 1e3"],
        ["GET / HTTP/1.1", "Content-Length: 99999999999999999999999"],
        ["POST / HTTP/1.1", "Content-Length: 3", "Content-Length: 4"],
        ["POST / HTTP/1.1", "Content-Length: 3", "Transfer-Encoding: chunked"],
        ["POST / HTTP/1.1", "Transfer-Encoding: gzip, chunked"],
        ["POST / HTTP/1.1", "Transfer-Encoding: chunked, identity"],
        ["GET / HTTP/1.1", "A: b\x00c"],
        ["PRI * HTTP/2.0"],
    ],
)
def test_what_is_no_proper_head_is_refused(lines):
    with pytest.raises(RequestError):
        head(*lines)


def test_too_many_headers_are_refused_with_both_numbers():
    with pytest.raises(HeadersTooLargeError, match="has 6 headers: at most 5"):
        head("GET / HTTP/1.1", *(f"A{index}: b" for index in range(6)))


def test_an_offer_of_another_protocol_is_not_taken_up():
    assert head("GET / HTTP/1.1", "Connection: Upgrade", "Upgrade: h2c").method == "GET"


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "9" * 19])
def test_a_header_that_is_no_whole_number_is_refused(value):
    with pytest.raises(RequestError, match="Inference-Header-Content-Length is"):
        head("GET / HTTP/1.1", f"Inference-Header-Content-Length: {value}").whole(b"inference-header-content-length")
