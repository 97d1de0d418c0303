"""An inference call: the message read into arrays, run by the data plane, and the answer written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sanderling.core.errors import GuardError, OptionError, TensorError, first_line
from sanderling.core.tensor import Array
from sanderling.run.results import Outputs
from sanderling.serve.aside import Aside
from sanderling.serve.classification import classified
from sanderling.serve.data_plane import DataPlane, ServedModel, explained
from sanderling.serve.errors import RequestError
from sanderling.serve.grpc_ import inference_pb2 as messages
from sanderling.serve.grpc_.wire import join_response, split_request
from sanderling.serve.long_json import LONG_BYTES
from sanderling.serve.output_places import OutputPlaces
from sanderling.serve.parameters import check_parameters, read_deadline_ms, read_priority
from sanderling.serve.shared_memory import Place, SharedMemoryRegistry, place_of
from sanderling.serve.tensors import MOST_AXES, Buffer, datatype_of, decode_binary, decode_json, encode_binary

if TYPE_CHECKING:
    Parameters = Mapping[str, messages.InferParameter]

_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}

_STRING_TAG = bytes([8 << 3 | 2])  # of bytes_contents: a message has at most as many of them as of this byte
_MOST_STRINGS = 2**20  # that are parsed at once, which nothing can run beside


class _Wanted(NamedTuple):
    """How an output is asked for: the best classes instead of its scores, or a place in shared memory."""

    classes: int = 0
    place: Place | None = None


class Inference:
    """One call of ``ModelInfer``, or one message of ``ModelStreamInfer``.

    Args:
        message: as it came.

    Attributes:
        header: the message without tensors.

    Raises:
        RequestError: it is no ``ModelInferRequest``.
    """

    def __init__(self, message: bytes) -> None:
        from google.protobuf.message import DecodeError

        rest, self._tensors = split_request(message)
        self._is_long = len(rest) > LONG_BYTES
        if self._is_long and rest.count(_STRING_TAG) > _MOST_STRINGS:
            raise RequestError(
                f"bytes_contents have more than {_MOST_STRINGS} strings: send them in raw_input_contents"
            )
        try:
            self.header = messages.ModelInferRequest.FromString(rest)
        except DecodeError as error:
            raise RequestError(f"the request is no ModelInferRequest: {first_line(error)}") from error
        if len(message) > LONG_BYTES and any(each.datatype == "BYTES" for each in self.header.inputs):
            self._is_long = True  # strings are read one by one

    async def run(
        self,
        plane: DataPlane,
        registry: SharedMemoryRegistry,
        aside: Aside,
        *,
        left_ms: float | None = None,
        is_streamed: bool = False,
    ) -> bytes:
        """Run it; cancelling this frees its place in the queue.

        Args:
            plane: that has the model.
            registry: of shared memory.
            aside: threads that long requests are read in.
            left_ms: of the call's deadline.
            is_streamed: say that no more answers follow, which clients of streams may wait for.

        Returns:
            The answer, a ``ModelInferResponse``.

        Raises:
            SanderlingError: what was wrong.
        """
        header = self.header
        parameters = plain(header.parameters)
        check_parameters(parameters)
        deadline_ms = read_deadline_ms(parameters, left_ms)
        priority = read_priority(parameters)
        model = plane.model(header.model_name, header.model_version)
        began_s = time.monotonic()
        feeds = await aside.run(self._feeds, registry) if self._is_long else self._feeds(registry)
        if deadline_ms is not None:
            deadline_ms -= (time.monotonic() - began_s) * 1e3
        wanted = _wanted(header, model)
        places = OutputPlaces(
            {name: each.place for name, each in wanted.items() if each.place}, model.session, feeds, registry
        )
        answering = [model]
        future = plane.submit(
            model,
            feeds,
            outputs=list(wanted),
            deadline_ms=deadline_ms,
            priority=priority,
            buffers=places.buffers,
            pinned=bool(header.model_version),
            moved=answering.append,
        )
        try:
            outputs = await asyncio.wrap_future(future)
        except GuardError as error:
            raise explained(error, feeds) from error
        model = answering[-1]
        answer = messages.ModelInferResponse(model_name=model.name, model_version=model.version, id=header.id)
        if is_streamed:
            answer.parameters["triton_final_response"].bool_param = True
        return _written(answer, model, outputs, wanted, places)

    def _feeds(self, registry: SharedMemoryRegistry) -> dict[str, Array]:
        feeds: dict[str, Array] = {}
        raw = iter(self._tensors)
        for each in self.header.inputs:
            if each.name in feeds:
                raise TensorError(f"input '{each.name[:80]}' was sent twice")
            feeds[each.name] = self._array(each, raw, registry)
        left = sum(1 for _ in raw)
        if left:
            raise TensorError(
                f"{left} of {len(self._tensors)} raw_input_contents belong to no input: send one for each"
            )
        return feeds

    def _array(
        self,
        tensor: messages.ModelInferRequest.InferInputTensor,
        raw: Iterator[memoryview],
        registry: SharedMemoryRegistry,
    ) -> Array:
        name = tensor.name[:80]
        if len(tensor.shape) > MOST_AXES:
            raise TensorError(f"input '{name}' has {len(tensor.shape)} axes: at most {MOST_AXES} are taken")
        shape = list(tensor.shape)
        place = place_of(name, plain(tensor.parameters))
        has_contents = tensor.HasField("contents")
        if place is not None:
            if has_contents:
                raise TensorError(f"input '{name}' has contents and a place in shared memory: send one of the two")
            data = registry.view(place.region, place.offset, place.size_bytes)
            return decode_binary(name, tensor.datatype, shape, data)
        if not has_contents:
            view = next(raw, None)
            if view is None:
                raise TensorError(f"input '{name}' has no data: expected raw_input_contents, contents or shared memory")
            return decode_binary(name, tensor.datatype, shape, view)
        if self._tensors:
            raise TensorError(f"input '{name}' has contents beside raw_input_contents: send all tensors in one way")
        return _typed(name, tensor, shape)


def plain(parameters: Parameters) -> dict[str, object]:
    """Parameters as Python's own types; those without a value are left out."""
    if not parameters:
        return {}
    chosen = {key: (value, value.WhichOneof("parameter_choice")) for key, value in parameters.items()}
    return {key: getattr(value, choice) for key, (value, choice) in chosen.items() if choice}


def _typed(name: str, tensor: messages.ModelInferRequest.InferInputTensor, shape: list[int]) -> Array:
    """A tensor whose elements are numbers of the message."""
    field = _CONTENTS.get(tensor.datatype)
    if field is None:
        told = f"input '{name}' of {tensor.datatype[:40]} cannot be sent as contents"
        raise TensorError(f"{told}: expected {', '.join(_CONTENTS)}, or raw_input_contents")
    filled = [each.name for each, _ in tensor.contents.ListFields()]
    if any(each != field for each in filled):
        raise TensorError(f"input '{name}' of {tensor.datatype} has {', '.join(filled)}: expected {field}")
    values = list(getattr(tensor.contents, field))
    if tensor.datatype != "BYTES":
        return decode_json(name, tensor.datatype, shape, values)
    array = np.empty(len(values), object)
    array[:] = values
    try:
        return array.reshape(shape)
    except ValueError:
        raise TensorError(f"input '{name}' has {len(values)} elements: expected those of shape {shape}") from None


def _wanted(header: messages.ModelInferRequest, model: ServedModel) -> dict[str, _Wanted]:
    """Outputs that the client asks for by name, all where it names none."""
    wanted: dict[str, _Wanted] = {}
    for each in header.outputs:
        parameters = plain(each.parameters)
        classes = parameters.get("classification", 0)
        if type(classes) is not int or classes < 0:
            raise OptionError(f"parameter classification is {classes!r:.60}: expected a whole number ≥ 0")
        if each.name in wanted:
            raise TensorError(f"output '{each.name[:80]}' is asked for twice")
        wanted[each.name] = _Wanted(classes, place_of(each.name, parameters))
        if classes and wanted[each.name].place:
            raise TensorError(f"output '{each.name[:80]}' is asked for as classes: these go into the answer only")
    model.check_outputs(list(wanted))
    return wanted or {spec.name: _Wanted() for spec in model.session.outputs}


def _written(
    answer: messages.ModelInferResponse,
    model: ServedModel,
    outputs: Outputs,
    wanted: Mapping[str, _Wanted],
    places: OutputPlaces,
) -> bytes:
    if outputs.stale:
        answer.parameters["stale"].bool_param = True
    if outputs.tripped:
        answer.parameters["tripped"].string_param = outputs.tripped
    written = places.write(outputs)
    tensors: list[Buffer] = []
    for name, each in wanted.items():
        array = outputs[name]
        if each.classes:
            array = classified(array, each.classes, model.session.manifest.labels)
        datatype = "BYTES" if array.dtype.kind in "OUS" else datatype_of(array.dtype.name)
        told = answer.outputs.add(name=name, datatype=datatype, shape=array.shape)
        if each.place is None:
            tensors.append(encode_binary(array))
        else:
            told.parameters["shared_memory_region"].string_param = each.place.region
            told.parameters["shared_memory_offset"].int64_param = each.place.offset
            told.parameters["shared_memory_byte_size"].int64_param = written[name]
            tensors.append(b"")  # clients count on one for every output
    return join_response(answer.SerializeToString(), tensors)
