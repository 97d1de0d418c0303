"""What comes from the network, made up by a fuzzer that sees which code each input reaches.

    python -m tests.fuzz.harness TARGET CORPUS… -max_total_time=60 -seed=1

Whatever comes, a reader gives what was sent or raises an error of ours. Options are libFuzzer's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import atheris

with atheris.instrument_imports(include=["sanderling.serve"]):
    from sanderling.core.errors import SanderlingError
    from sanderling.serve import long_json
    from sanderling.serve.grpc_.inference import Inference
    from sanderling.serve.http.body import ChunkedHead, unpack
    from sanderling.serve.http.head import parse_head
    from sanderling.serve.http.inference import read_request
    from sanderling.serve.settings import Limits
    from sanderling.serve.shared_memory import SharedMemoryRegistry
    from sanderling.serve.tensors import datatypes, decode_binary, decode_json, dtype_of, encode_binary, encode_json
    from tests.fuzz.seeds import IS_ALL_JSON, MARK, PREFIX

_REGISTRY = SharedMemoryRegistry()
_LIMITS = Limits()
_UNPACKED_BYTES = 2**16
_TOO_DEEP = "too deep"
_DEEP = 250
long_json._SLICE = 8  # so that short texts are read in several


def infer_request(data: bytes) -> None:
    """The body of an inference request over HTTP, a mark behind its JSON, and how far its told length is off."""
    kind, more = PREFIX.unpack_from(data)
    text, _, tail = data[PREFIX.size :].partition(MARK)
    length = None if kind == IS_ALL_JSON else len(text) + more
    request = read_request(memoryview(text + tail), length, _REGISTRY)
    for array in request.feeds.values():
        assert array.nbytes <= max(64 * len(data), 64)


def grpc_message(data: bytes) -> None:
    """A ``ModelInferRequest``."""
    inference = Inference(data)
    feeds = inference._feeds(_REGISTRY)
    assert len(feeds) == len(inference.header.inputs)


def binary_tensor(data: bytes) -> None:
    """A tensor as bytes, of a datatype and a number of elements that the prefix tells; written again it is the same."""
    kind, count = PREFIX.unpack_from(data)
    names = datatypes()
    content = data[PREFIX.size :]
    array = decode_binary("x", names[kind % len(names)], [count], content)
    assert array.shape == (count,)
    assert bytes(encode_binary(array)) == content


def json_tensor(data: bytes) -> None:
    """A tensor in JSON, likewise; written again and read again it is the same."""
    kind, count = PREFIX.unpack_from(data)
    names = datatypes()
    name = names[kind % len(names)]
    try:
        content = json.loads(data[PREFIX.size :])
    except (ValueError, RecursionError):
        return
    array = decode_json("x", name, [count], content)
    assert array.dtype == dtype_of(name)
    again = decode_json("x", name, [count], json.loads(json.dumps(encode_json("x", array))))
    assert again.tobytes() == array.tobytes() or name == "BYTES"
    assert again.tolist() == array.tolist()


def json_text(data: bytes) -> None:
    """JSON, which the reader of long texts reads as Python's does."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    read = _read(long_json.read_long, text)
    if read == _TOO_DEEP and text.count("[") + text.count("{") > _DEEP:
        return  # it is told so, a little sooner than by Python's
    assert read == _read(json.loads, text)


def request_head(data: bytes) -> None:
    """The line and headers of a request over HTTP, and a body in chunks."""
    head, mark, rest = data.partition(b"\r\n\r\n")
    receiver = ChunkedHead(_UNPACKED_BYTES) if b"chunked" in head.lower() else None
    read = parse_head(head + mark, _LIMITS, receiver)
    assert read.method
    assert read.length >= 0
    if receiver is not None:
        receiver.feed(rest)
        assert len(receiver.body) <= _UNPACKED_BYTES


def packed_body(data: bytes) -> None:
    """A compressed body."""
    for encoding in (b"gzip", b"deflate"):
        try:
            assert len(unpack(data, encoding, _UNPACKED_BYTES)) <= _UNPACKED_BYTES
        except SanderlingError:
            continue


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        infer_request,
        grpc_message,
        binary_tensor,
        json_tensor,
        json_text,
        request_head,
        packed_body,
    )
}


def _read(read: Callable[[str], Any], text: str) -> str:
    try:
        return repr(read(text))
    except ValueError:
        return "no JSON"
    except RecursionError:
        return _TOO_DEEP


def _guarded(target: Callable[[bytes], None]) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        if len(data) < PREFIX.size:
            return
        try:
            target(data)
        except SanderlingError:
            return

    return run


def main() -> None:
    """Fuzz the target that the first argument names."""
    name, *options = sys.argv[1:]
    atheris.Setup([sys.argv[0], *options], _guarded(TARGETS[name]))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
