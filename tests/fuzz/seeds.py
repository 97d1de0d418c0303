"""Inputs that are right, which the fuzzer changes."""

from __future__ import annotations

import gzip
import json
import struct
import zlib

import numpy as np

from sanderling.serve.grpc_ import inference_pb2
from sanderling.serve.tensors import datatypes, dtype_of

PREFIX = struct.Struct("<BH")  # kind of what follows, and a number
MARK = b"\0|"
IS_ALL_JSON = 255
_WORDS = """inputs outputs parameters name shape datatype data id binary_data_size binary_data binary_data_output
timeout priority classification shared_memory_region shared_memory_offset shared_memory_byte_size sequence_id true
false null"""


def seeds(target: str) -> list[bytes]:
    """Of a target of the harness."""
    made: dict[str, list[bytes]] = {
        "infer_request": _infer_requests(),
        "grpc_message": _grpc_messages(),
        "binary_tensor": [PREFIX.pack(kind, 2) + _two(name) for kind, name in enumerate(datatypes())],
        "json_tensor": [
            PREFIX.pack(kind, 2) + {"BOOL": b"[true,false]", "BYTES": b'["a",""]'}.get(name, b"[[1],[2]]")
            for kind, name in enumerate(datatypes())
        ],
        "json_text": [b'{"a":[1,2,3,4,5,6,7.5,null],"b":[["x,]"],[],{}]}', b"[1,2,3,4,5,6,7,8,9,10]", b'"\\ud800"'],
        "request_head": [
            b"POST /v2/models/a/versions/1/infer HTTP/1.1\r\nContent-Length: 3\r\nTimeout: 5\r\n\r\n",
            b"POST /v2/models/a/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: 2\r\n\r\n",
            b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            b"GET / HTTP/1.0\r\nConnection: keep-alive\r\nUpgrade: h2c\r\n\r\n",
        ],
        "packed_body": [gzip.compress(b"abc" * 99, mtime=0), zlib.compress(b"abc" * 99)],
    }
    return made[target]


def words() -> str:
    """What requests are written with, as libFuzzer reads it."""
    return "".join(f'"\\"{word}\\""\n' for word in (*_WORDS.split(), *datatypes()))


def _two(datatype: str) -> bytes:
    """Two elements."""
    if datatype == "BYTES":
        return b"\1\0\0\0a\0\0\0\0"
    return np.array([0, 1], dtype_of(datatype)).tobytes()


def _infer_requests() -> list[bytes]:
    tensor = {"name": "x", "shape": [2], "datatype": "FP32"}
    binary = {"inputs": [{**tensor, "parameters": {"binary_data_size": 8}}], "parameters": {"timeout": 9}}
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": 0}
    plain = {
        "id": "1",
        "inputs": [{**tensor, "data": [1.5, 2]}, {**tensor, "name": "y", "datatype": "BYTES", "data": ["a", "b"]}],
        "outputs": [{"name": "z", "parameters": {"classification": 3}}],
    }
    lent = {"inputs": [{**tensor, "parameters": place}]}
    head = json.dumps(binary).encode()
    strings = json.dumps(binary).replace("FP32", "BYTES").replace(": 8", ": 9").encode()
    return [
        PREFIX.pack(0, 0) + head + MARK + bytes(8),
        PREFIX.pack(0, 0) + strings + MARK + _two("BYTES"),
        *(PREFIX.pack(IS_ALL_JSON, 0) + json.dumps(each).encode() for each in (plain, lent)),
    ]


def _grpc_messages() -> list[bytes]:
    raw = inference_pb2.ModelInferRequest(model_name="m", id="1")
    raw.inputs.add(name="x", datatype="FP32", shape=[2])
    raw.inputs.add(name="y", datatype="BYTES", shape=[2])
    raw.raw_input_contents.extend([bytes(8), _two("BYTES")])
    typed = inference_pb2.ModelInferRequest(model_name="m")
    typed.inputs.add(name="x", datatype="FP32", shape=[2]).contents.fp32_contents.extend([1, 2])
    typed.inputs.add(name="y", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"a")
    typed.inputs.add(name="z", datatype="INT8", shape=[1]).contents.int_contents.append(-3)
    typed.parameters["timeout"].int64_param = 5
    return [raw.SerializeToString(), typed.SerializeToString()]
