from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from sanderling.serve.errors import RequestError
from sanderling.serve.grpc_ import inference_pb2
from sanderling.serve.grpc_.wire import join_response, split_request, stream_error, stream_response

TENSORS = st.lists(st.binary(max_size=300) | st.integers(0, 20_000).map(bytes), max_size=5)


def request(tensors: list[bytes]) -> inference_pb2.ModelInferRequest:
    message = inference_pb2.ModelInferRequest(model_name="tiny", id="7", raw_input_contents=tensors)
    message.parameters["timeout"].int64_param = -5
    message.inputs.add(name="image", datatype="FP32", shape=[-1, 1 << 40]).contents.fp32_contents.extend([1, 2])
    return message


@given(TENSORS)
def test_tensors_are_views_of_the_message_and_the_rest_is_kept(tensors):
    message = request(tensors).SerializeToString()
    rest, views = split_request(message)
    assert views == tensors
    assert all(view.obj is message for view in views)
    assert inference_pb2.ModelInferRequest.FromString(rest) == request([])


@given(st.binary(max_size=60))
def test_anything_is_split_as_protocol_buffers_read_it_or_refused(message):
    try:
        rest, views = split_request(message)
        read = inference_pb2.ModelInferRequest.FromString(rest)
    except (RequestError, DecodeError):
        return
    read.raw_input_contents.extend(map(bytes, views))
    assert read == inference_pb2.ModelInferRequest.FromString(message)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (b"\x3a", "the number at byte 1 does not end"),
        (b"\x3a\x05abcd", "a field ends at byte 7 of 6"),
        (b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "a field ends at byte"),
        (b"\xff" * 11, "the number at byte 0 does not end"),
        (b"\x09abc", "a field ends at byte 9 of 4"),
        (b"\x3b", "a field of wire type 3"),
    ],
    ids=str,
)
def test_message_that_is_cut_off_is_refused(message, told):
    with pytest.raises(RequestError, match=told):
        split_request(message)


def test_number_of_fields_is_bounded():
    with pytest.raises(RequestError, match="more than 8192 fields"):
        split_request(b"\x3a\x00" * 100_000)


@given(TENSORS)
def test_response_is_what_protocol_buffers_would_write(tensors):
    header = inference_pb2.ModelInferResponse(model_name="tiny", id="7")
    header.outputs.add(name="scores", datatype="FP32", shape=[1, 4])
    joined = join_response(header.SerializeToString(), list(map(memoryview, tensors)))
    header.raw_output_contents.extend(tensors)
    assert joined == header.SerializeToString()
    expected = inference_pb2.ModelStreamInferResponse(infer_response=header)
    assert stream_response(joined) == expected.SerializeToString()
    expected.error_message = "wrong: é"
    assert stream_error("wrong: é", joined) == expected.SerializeToString()
