"""An inference request as it stands in a body, and the body of its answer.

Source: Open Inference Protocol, REST; Triton's extensions "binary tensor data", "classification", "schedule policy" and
"shared memory".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sanderling.core.errors import TensorError
from sanderling.core.tensor import Array
from sanderling.run.results import Outputs
from sanderling.serve.classification import classified
from sanderling.serve.errors import RequestError
from sanderling.serve.long_json import LONG_BYTES, read_long, write_numbers
from sanderling.serve.parameters import check_parameters, read_deadline_ms, read_priority
from sanderling.serve.shared_memory import Place, SharedMemoryRegistry, place_of
from sanderling.serve.tensors import (
    Buffer,
    datatype_of,
    decode_binary,
    decode_json,
    encode_binary,
    encode_json,
    finite_numbers,
)

if TYPE_CHECKING:
    from sanderling.serve.data_plane import ServedModel

_MOST_TENSORS = 1024
_KEPT_PLANS = 256
_KEPT_BYTES = 4096
_LONG_ELEMENTS = 16 * 1024  # of an answer's JSON


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """An output that the client asks for.

    Attributes:
        binary: as bytes after the JSON, not as a list in it.
        classes: instead of the scores, so many of the best classes with their labels; 0 for the scores.
        place: in shared memory that it is written to; None for the answer's body.
    """

    name: str
    binary: bool = False
    classes: int = 0
    place: Place | None = None


class _PlannedInput(NamedTuple):
    """An input before its bytes are looked at."""

    name: str
    datatype: str
    shape: Any
    place: Place | None
    size_bytes: int | None
    data: object


class _Plan(NamedTuple):
    """What a request's JSON says; it is shared by requests that say the same, and never changed."""

    inputs: tuple[_PlannedInput, ...]
    outputs: tuple[WantedOutput, ...]
    names: tuple[str, ...]
    places: Mapping[str, Place]
    identifier: str
    all_binary: bool
    is_binary: bool
    parameters: Mapping[str, Any]
    priority: int


class InferRequest(NamedTuple):
    """What a client asks for.

    Attributes:
        outputs: empty for all of them.
        names: of the outputs.
        places: of those that are written to shared memory.
        all_binary: of outputs that are not named.
        is_binary: whether every output comes as bytes, and as it is.
        deadline_ms: from now; None without one.
        priority: as of ``Session.run``.
    """

    feeds: dict[str, Array]
    outputs: Sequence[WantedOutput] = ()
    names: Sequence[str] = ()
    places: Mapping[str, Place] = MappingProxyType({})
    identifier: str = ""
    all_binary: bool = False
    is_binary: bool = False
    deadline_ms: float | None = None
    priority: int = 0


def read_request(
    body: memoryview, header_length: int | None, memory: SharedMemoryRegistry, *, left_ms: float | None = None
) -> InferRequest:
    """Read an inference request. Tensors that come as bytes are views of the body.

    Args:
        body: of the HTTP request.
        header_length: bytes of JSON before the tensors; None where all of it is JSON.
        memory: registered regions.
        left_ms: by a header; the shorter one of this and the request's own timeout counts.

    Raises:
        RequestError: it is no JSON, or not what the protocol says.
        TensorError: a tensor is not what it says.
        OptionError: a parameter has no value that it can have.
    """
    length = len(body) if header_length is None else header_length
    if length > len(body):
        raise RequestError(f"Inference-Header-Content-Length is {length}: the body has only {len(body)} bytes")
    is_short = header_length is not None and length <= _KEPT_BYTES
    plan = _kept_plan(bytes(body[:length])) if is_short else _plan(body[:length])
    return InferRequest(
        _bind(plan.inputs, body[length:], memory),
        plan.outputs,
        plan.names,
        plan.places,
        plan.identifier,
        plan.all_binary,
        plan.is_binary,
        read_deadline_ms(plan.parameters, left_ms),
        plan.priority,
    )


def is_long(body: memoryview, header_length: int | None) -> bool:
    """Whether reading a request takes longer than an event loop may be held up."""
    length = len(body) if header_length is None else header_length
    if length > LONG_BYTES:
        return True
    if len(body) <= LONG_BYTES:
        return False
    header = bytes(body[:length])
    return b"BYTES" in header or b"\\" in header  # strings are read one by one; a backslash may hide the word


def has_long_answer(request: InferRequest, outputs: Outputs) -> bool:
    """Whether writing the answer takes longer than an event loop may be held up."""
    if not request.outputs:
        return not request.all_binary and sum(array.size for array in outputs.values()) > _LONG_ELEMENTS
    listed = [outputs[each.name].size for each in request.outputs if not each.binary and each.place is None]
    return sum(listed) > _LONG_ELEMENTS


def write_response(
    model: ServedModel, request: InferRequest, outputs: Outputs, written: Mapping[str, int]
) -> tuple[bytes, list[Buffer]]:
    """The answer to an inference request.

    Args:
        model: that answered.
        request: that it answers.
        outputs: of the model.
        written: bytes of each output that is in shared memory.

    Returns:
        JSON, and the bytes of the tensors that are not in it, in their order.

    Raises:
        TensorError: an output cannot be written the way that was asked for.
    """
    if not (request.identifier or outputs.stale or outputs.tripped) and request.is_binary:
        names = request.names or outputs
        tails = [encode_binary(outputs[name]) for name in names]
        said = tuple([(name, outputs[name].dtype, outputs[name].shape) for name in names])
        return _kept_text(model.name, model.version, said, tuple(map(len, tails))), tails
    wanted = request.outputs or [WantedOutput(name, request.all_binary) for name in outputs]
    return _written(model, request, outputs, wanted, written)


@lru_cache(_KEPT_PLANS)
def _kept_text(
    name: str, version: str, said: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...], sizes: tuple[int, ...]
) -> bytes:
    """The JSON of an answer whose tensors all come as bytes; a model's answers mostly say the same."""
    entries = [
        {"name": output, "datatype": _datatype(dtype), "shape": shape, "parameters": {"binary_data_size": size}}
        for (output, dtype, shape), size in zip(said, sizes, strict=True)
    ]
    return _compact({"model_name": name, "model_version": version, "outputs": entries})


def _written(
    model: ServedModel,
    request: InferRequest,
    outputs: Outputs,
    wanted: Sequence[WantedOutput],
    written: Mapping[str, int],
) -> tuple[bytes, list[Buffer]]:
    entries: list[bytes] = []
    tails: list[Buffer] = []
    for each in wanted:
        array = outputs[each.name]
        if each.classes:
            array = classified(array, each.classes, model.session.manifest.labels)
        entry: dict[str, Any] = {"name": each.name, "datatype": _datatype(array.dtype), "shape": array.shape}
        if each.place is not None:
            entry["parameters"] = _place_parameters(each.place, written[each.name])
        elif each.binary:
            tails.append(encode_binary(array))
            entry["parameters"] = {"binary_data_size": len(tails[-1])}
        elif array.size > _LONG_ELEMENTS and array.dtype.kind not in "OUS":
            numbers = b"".join(write_numbers(finite_numbers(each.name, array)))
            entries.append(_with(entry, "data", numbers))
            continue
        else:
            entry["data"] = encode_json(each.name, array)
        entries.append(_compact(entry))
    answer: dict[str, Any] = {"model_name": model.name, "model_version": model.version}
    if request.identifier:
        answer["id"] = request.identifier
    if outputs.stale or outputs.tripped:
        answer["parameters"] = {"stale": outputs.stale, "tripped": outputs.tripped}
    return _with(answer, "outputs", b",".join(entries)), tails


def _with(content: dict[str, Any], name: str, elements: bytes) -> bytes:
    """JSON of an object that is not empty, and of a list in it whose elements are JSON already."""
    return b'%s,"%s":[%s]}' % (_compact(content)[:-1], name.encode(), elements)


def _compact(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def _datatype(dtype: np.dtype[Any]) -> str:
    return "BYTES" if dtype.kind in "OUS" else datatype_of(dtype)


def _plan(text: memoryview | bytes) -> _Plan:
    """What a request's JSON says."""
    content = _parse(text)
    inputs = content.get("inputs")
    if not isinstance(inputs, list) or not 0 < len(inputs) <= _MOST_TENSORS:
        raise RequestError(f"a request needs 'inputs', a list of 1 to {_MOST_TENSORS} tensors")
    parameters = _parameters(content)
    check_parameters(parameters)
    identifier = content.get("id", "")
    if not isinstance(identifier, str):
        raise RequestError(f"'id' is a {type(identifier).__name__}: expected a string")
    all_binary = _flag(parameters, "binary_data_output")
    planned = tuple(map(_planned_input, inputs))
    outputs = tuple(_wanted(content.get("outputs"), binary=all_binary))
    return _Plan(
        planned,
        outputs,
        tuple(output.name for output in outputs),
        {output.name: output.place for output in outputs if output.place is not None},
        identifier,
        all_binary,
        all(each.binary and not each.classes and each.place is None for each in outputs) if outputs else all_binary,
        parameters,
        read_priority(parameters),
    )


_kept_plan = lru_cache(_KEPT_PLANS)(_plan)  # a client's requests mostly say the same


def _planned_input(entry: object) -> _PlannedInput:
    if not isinstance(entry, dict):
        raise RequestError(f"an input is a {type(entry).__name__}: expected an object")
    name, datatype = entry.get("name"), entry.get("datatype")
    if not isinstance(name, str) or not isinstance(datatype, str):
        raise RequestError("an input needs 'name' and 'datatype', both strings")
    parameters = _parameters(entry)
    place = place_of(name, parameters)
    size_bytes = _whole(parameters, "binary_data_size", 0) if "binary_data_size" in parameters else None
    if place is None and size_bytes is None and "data" not in entry:
        raise RequestError(f"input '{name}' has no data: expected 'data', or 'binary_data_size' in its parameters")
    return _PlannedInput(name, datatype, entry.get("shape"), place, size_bytes, entry.get("data"))


def _bind(inputs: Sequence[_PlannedInput], tail: memoryview, memory: SharedMemoryRegistry) -> dict[str, Array]:
    """The tensors of one request; those that come as bytes lie in their order behind the JSON."""
    feeds: dict[str, Array] = {}
    at = 0
    for name, datatype, shape, place, size_bytes, data in inputs:
        if name in feeds:
            raise RequestError(f"input '{name}' is there twice")
        if place is not None:
            lent = memory.view(place.region, place.offset, place.size_bytes)
            feeds[name] = decode_binary(name, datatype, shape, lent)
        elif size_bytes is None:
            feeds[name] = decode_json(name, datatype, shape, data)
        else:
            if size_bytes > len(tail) - at:
                left = len(tail) - at
                raise TensorError(
                    f"input '{name}' says that it has {size_bytes} bytes: only {left} are left in the body"
                )
            feeds[name] = decode_binary(name, datatype, shape, tail[at : at + size_bytes])
            at += size_bytes
    if at < len(tail):
        raise RequestError(f"the body has {len(tail) - at} bytes after its last tensor: expected none")
    return feeds


def _parse(text: memoryview | bytes) -> dict[str, Any]:
    try:
        decoded = str(text, "utf-8")
        content = json.loads(decoded) if len(decoded) <= LONG_BYTES else read_long(decoded)
    except UnicodeDecodeError as error:
        raise RequestError(f"the request's JSON is not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise RequestError("the request's JSON is nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"the request is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise RequestError(f"the request is a JSON {type(content).__name__}: expected an object")
    return content


def _wanted(entries: object, *, binary: bool) -> list[WantedOutput]:
    if entries is None:
        return []
    if not isinstance(entries, list) or len(entries) > _MOST_TENSORS:
        raise RequestError(f"'outputs' must be a list of at most {_MOST_TENSORS}")
    found = [_wanted_output(entry, binary=binary) for entry in entries]
    if len({output.name for output in found}) < len(found):
        raise RequestError("an output is asked for twice")
    return found


def _wanted_output(entry: object, *, binary: bool) -> WantedOutput:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise RequestError("an output needs 'name', a string")
    name, parameters = entry["name"], _parameters(entry)
    wanted = WantedOutput(
        name,
        _flag(parameters, "binary_data", default=binary),
        _whole(parameters, "classification", 0),
        place_of(name, parameters),
    )
    if wanted.place is not None and wanted.classes:
        raise RequestError(f"output '{name}' is asked for as classes and in shared memory: choose one")
    return wanted


def _parameters(entry: Mapping[str, Any]) -> dict[str, Any]:
    parameters = entry.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise RequestError(f"'parameters' is a {type(parameters).__name__}: expected an object")
    return parameters


def _whole(parameters: Mapping[str, Any], name: str, default: int) -> int:
    value = parameters.get(name, default)
    if type(value) is not int or not 0 <= value < 2**64:
        raise RequestError(f"parameter '{name}' is {str(value)[:40]}: expected a whole number ≥ 0")
    return value


def _flag(parameters: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise RequestError(f"parameter '{name}' is {str(value)[:40]}: expected true or false")
    return value


def _place_parameters(place: Place, size_bytes: int) -> dict[str, Any]:
    parameters = {"shared_memory_region": place.region, "shared_memory_byte_size": size_bytes}
    return {**parameters, "shared_memory_offset": place.offset} if place.offset else parameters
