"""Messages of inference calls, taken apart and put together without copying their tensors.

Protocol Buffers copy a tensor's bytes when they parse a message, once more for each look at them, and twice when they
write an answer. Here the fields that hold tensors are found in the message as it came and viewed there; only what is
left is parsed.

Source: Protocol Buffers, "Encoding".
"""

from __future__ import annotations

from collections.abc import Sequence

from sanderling.serve.errors import RequestError

_MOST_FIELDS = 8192  # of a message at its top: inputs, outputs, parameters and tensors
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_LONGEST_VARINT = 10
_RAW_INPUT_CONTENTS = 7
_INPUTS = 5
_CONTENTS = 5  # of an input
_MOST_TOLD = 64 * 1024  # bytes of an input beside its contents
_RAW_OUTPUT_CONTENTS_TAG = 6 << 3 | _LENGTH_DELIMITED
_ERROR_MESSAGE_TAG = 1 << 3 | _LENGTH_DELIMITED
_INFER_RESPONSE_TAG = 2 << 3 | _LENGTH_DELIMITED


def split_request(message: bytes) -> tuple[bytes, list[memoryview]]:
    """Take the tensors out of a ``ModelInferRequest``.

    Returns:
        The message without ``raw_input_contents``, and views of those, in their order.

    Raises:
        RequestError: it is no message, or has more fields than any request.
    """
    view = memoryview(message)
    rest: list[memoryview] = []
    tensors: list[memoryview] = []
    at = rest_from = 0
    for _ in range(_MOST_FIELDS):
        if at == len(message):
            rest.append(view[rest_from:])
            return b"".join(rest), tensors
        tag, begin = _read_varint(message, at)
        begin, end = _extent(message, tag & 7, begin)
        if tag >> 3 == _INPUTS and end - begin > _MOST_TOLD:
            _check_input(message, begin, end)
        if tag >> 3 == _RAW_INPUT_CONTENTS and tag & 7 == _LENGTH_DELIMITED:
            tensors.append(view[begin:end])
            rest.append(view[rest_from:at])
            rest_from = end
        at = end
    raise RequestError(f"the request has more than {_MOST_FIELDS} fields: send fewer tensors and parameters at a time")


def join_response(header: bytes, tensors: Sequence[bytes | bytearray | memoryview]) -> bytes:
    """A ``ModelInferResponse``: what was written without tensors, and those as ``raw_output_contents``."""
    parts: list[bytes | bytearray | memoryview] = [header]
    for tensor in tensors:
        parts += (_prefix(_RAW_OUTPUT_CONTENTS_TAG, len(tensor)), tensor)
    return b"".join(parts)


def stream_response(response: bytes) -> bytes:
    """A ``ModelStreamInferResponse`` with an answer."""
    return _prefix(_INFER_RESPONSE_TAG, len(response)) + response


def stream_error(text: str, response: bytes) -> bytes:
    """A ``ModelStreamInferResponse`` with an error, and an answer that says which request it was."""
    encoded = text.encode()
    return _prefix(_ERROR_MESSAGE_TAG, len(encoded)) + encoded + stream_response(response)


def _check_input(message: bytes, at: int, end: int) -> None:
    """See that an input is large by its contents: what else it has is parsed one by one, which others wait for."""
    told = 0
    for _ in range(_MOST_FIELDS):
        if at >= end:
            break
        tag, begin = _read_varint(message, at)
        _, after = _extent(message, tag & 7, begin)
        told += 0 if tag >> 3 == _CONTENTS else after - at
        at = after
    if at < end or told > _MOST_TOLD:
        raise RequestError(
            f"an input has more than {_MOST_TOLD} bytes or {_MOST_FIELDS} fields beside its contents: expected a name, "
            "a datatype, a shape and some parameters"
        )


def _extent(message: bytes, wire_type: int, begin: int) -> tuple[int, int]:
    """Where the value of a field begins and ends."""
    if wire_type == _LENGTH_DELIMITED:
        size, begin = _read_varint(message, begin)
        end = begin + size
    elif wire_type == _VARINT:
        _, end = _read_varint(message, begin)
    elif wire_type in _FIXED_BYTES:
        end = begin + _FIXED_BYTES[wire_type]
    else:
        raise RequestError(f"the request is no ModelInferRequest: it has a field of wire type {wire_type}")
    if end > len(message):
        raise RequestError(f"the request is no ModelInferRequest: a field ends at byte {end} of {len(message)}")
    return begin, end


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    value = 0
    for index, byte in enumerate(message[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise RequestError(f"the request is no ModelInferRequest: the number at byte {at} does not end")


def _prefix(tag: int, size: int) -> bytes:
    encoded = bytearray([tag])
    while size > 0x7F:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    encoded.append(size)
    return bytes(encoded)
