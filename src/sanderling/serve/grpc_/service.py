"""The calls of ``inference.GRPCInferenceService``, over the data plane."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

import grpc
from grpc.aio import ServicerContext as Context

from sanderling.core.errors import InputError, SanderlingError, UnavailableError, first_line
from sanderling.serve.data_plane import DataPlane
from sanderling.serve.descriptions import describe_config, describe_model, describe_repository, describe_server
from sanderling.serve.errors import NotFoundError, UnauthorizedError, code_of, told
from sanderling.serve.grpc_ import inference_pb2 as messages
from sanderling.serve.grpc_.inference import Inference
from sanderling.serve.grpc_.wire import stream_error, stream_response
from sanderling.serve.shared_memory import SharedMemoryRegistry

if TYPE_CHECKING:
    from google.protobuf.message import Message

    Call = Callable[[bytes, Context], Awaitable[bytes]]
    ParsedCall = Callable[[Any], Awaitable[Message]]

SERVICE = "inference.GRPCInferenceService"
_MOST_IN_FLIGHT = 64  # of a stream: more are read when answers have left
_LONGEST_DETAILS = 2000  # characters: they travel in a header, which clients bound
_LOGGER = logging.getLogger("sanderling.serve")


class Repository(Protocol):
    """Where models are loaded from by name. Its calls may block; they run in a thread."""

    def load(self, name: str) -> None:
        """Load a model, or its newest version again."""

    def unload(self, name: str) -> None:
        """Unload all versions of a model."""


class InferenceService:
    """What clients may call.

    Args:
        plane: that has the models.
        registry: of shared memory, the same as of HTTP.
        repository: that load and unload calls reach; without one they are refused.
        token: that load and unload calls must bring, as ``authorization: Bearer TOKEN``; empty for none.
    """

    def __init__(
        self,
        plane: DataPlane,
        registry: SharedMemoryRegistry,
        *,
        repository: Repository | None = None,
        token: str = "",
    ) -> None:
        self._plane = plane
        self._registry = registry
        self._repository = repository
        self._token = token

    def handler(self) -> grpc.GenericRpcHandler:
        """All calls, for a server."""
        calls: dict[str, ParsedCall] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._repository_index,
            "SystemSharedMemoryStatus": self._regions,
            "SystemSharedMemoryRegister": self._register,
            "SystemSharedMemoryUnregister": self._unregister,
            "CudaSharedMemoryStatus": self._cuda_regions,
            "CudaSharedMemoryRegister": self._register_cuda,
            "CudaSharedMemoryUnregister": self._unregister_cuda,
            "TraceSetting": self._trace_setting,
            "LogSettings": self._log_settings,
        }
        controls: dict[str, ParsedCall] = {"RepositoryModelLoad": self._load, "RepositoryModelUnload": self._unload}
        bare: dict[str, Call] = {name: _parsed(name, call) for name, call in calls.items()}
        bare |= {name: self._authorized(_parsed(name, call)) for name, call in controls.items()}
        bare["ModelInfer"] = self._infer
        handlers = {name: grpc.unary_unary_rpc_method_handler(_answering(call)) for name, call in bare.items()}
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._stream_infer)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def _infer(self, message: bytes, context: Context) -> bytes:
        return await Inference(message).run(self._plane, self._registry, left_ms=_left_ms(context))

    async def _stream_infer(self, received: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        """Answers in the order of the requests, of which several run at once."""
        tasks: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue()
        room = asyncio.Semaphore(_MOST_IN_FLIGHT)

        async def read() -> None:
            try:
                async for message in received:
                    await room.acquire()
                    tasks.put_nowait(asyncio.create_task(self._streamed(message, context)))
            finally:
                tasks.put_nowait(None)

        reader = asyncio.create_task(read())
        task: asyncio.Task[bytes] | None = None
        try:
            while (task := await tasks.get()) is not None:
                answer = await task
                room.release()
                yield answer
            await reader
        finally:
            reader.cancel()
            while task is not None or not tasks.empty():
                if task is not None:
                    task.cancel()
                task = None if tasks.empty() else tasks.get_nowait()

    async def _streamed(self, message: bytes, context: Context) -> bytes:
        """The answer to one message of a stream, which goes on after an error."""
        identifier = ""
        try:
            inference = Inference(message)
            identifier = inference.header.id
            answer = await inference.run(self._plane, self._registry, left_ms=_left_ms(context))
        except SanderlingError as error:
            failed = messages.ModelInferResponse(id=identifier)
            return stream_error(told(error), failed.SerializeToString())
        except Exception as error:
            _LOGGER.exception("a request of a stream failed")
            failed = messages.ModelInferResponse(id=identifier)
            return stream_error(told(error), failed.SerializeToString())
        return stream_response(answer)

    async def _server_live(self, _: Message) -> Message:
        return messages.ServerLiveResponse(live=True)

    async def _server_ready(self, _: Message) -> Message:
        return messages.ServerReadyResponse(ready=self._plane.is_ready)

    async def _model_ready(self, request: messages.ModelReadyRequest) -> Message:
        try:
            ready = self._plane.is_accepting and self._plane.model(request.name, request.version).is_ready
        except NotFoundError:
            ready = False
        return messages.ModelReadyResponse(ready=ready)

    async def _server_metadata(self, _: Message) -> Message:
        return messages.ServerMetadataResponse(**describe_server())

    async def _model_metadata(self, request: messages.ModelMetadataRequest) -> Message:
        model = self._plane.model(request.name, request.version)
        return messages.ModelMetadataResponse(**describe_model(self._plane, model))

    async def _model_config(self, request: messages.ModelConfigRequest) -> Message:
        model = self._plane.model(request.name, request.version)
        return _filled(messages.ModelConfigResponse(), {"config": describe_config(model)})

    async def _model_statistics(self, request: messages.ModelStatisticsRequest) -> Message:
        models = self._plane.models
        if request.name:
            model = self._plane.model(request.name, request.version)
            models = tuple(each for each in models if each.name == request.name)
            models = (model,) if request.version else models
        entries = [model.statistics.to_json(model.name, model.version) for model in models]
        return _filled(messages.ModelStatisticsResponse(), {"model_stats": entries})

    async def _repository_index(self, request: messages.RepositoryIndexRequest) -> Message:
        index = describe_repository(self._plane, ready_only=request.ready)
        return _filled(messages.RepositoryIndexResponse(), {"models": index})

    async def _load(self, request: messages.RepositoryModelLoadRequest) -> Message:
        if request.parameters:
            given = ", ".join(sorted(request.parameters))[:200]
            raise InputError(
                f"model '{request.model_name[:80]}' cannot be loaded with {given}: a package says itself how it runs; "
                "put it into the repository and load it by its name"
            )
        await asyncio.to_thread(self._controlled().load, request.model_name)
        return messages.RepositoryModelLoadResponse()

    async def _unload(self, request: messages.RepositoryModelUnloadRequest) -> Message:
        await asyncio.to_thread(self._controlled().unload, request.model_name)
        return messages.RepositoryModelUnloadResponse()

    def _controlled(self) -> Repository:
        if self._repository is None:
            raise UnavailableError("this server has no model repository: start it with --repository FOLDER")
        return self._repository

    def _authorized(self, call: Call) -> Call:
        """A call that only those who know the token may make."""
        expected = f"Bearer {self._token}".encode()

        async def authorized(message: bytes, context: Context) -> bytes:
            given = dict(context.invocation_metadata() or ()).get("authorization", "")
            given = given if isinstance(given, bytes) else given.encode()
            if self._token and not hmac.compare_digest(given, expected):
                raise UnauthorizedError("the token is missing or wrong: send the header 'authorization: Bearer TOKEN'")
            return await call(message, context)

        return authorized

    async def _regions(self, request: messages.SystemSharedMemoryStatusRequest) -> Message:
        response = messages.SystemSharedMemoryStatusResponse()
        for region in self._registry.regions(request.name):
            told_region = response.regions[region.name]
            told_region.name, told_region.key = region.name, region.key
            told_region.offset, told_region.byte_size = region.offset, region.size_bytes
        return response

    async def _register(self, request: messages.SystemSharedMemoryRegisterRequest) -> Message:
        self._registry.register(request.name, request.key, offset=request.offset, size_bytes=request.byte_size)
        return messages.SystemSharedMemoryRegisterResponse()

    async def _unregister(self, request: messages.SystemSharedMemoryUnregisterRequest) -> Message:
        self._registry.unregister(request.name)
        return messages.SystemSharedMemoryUnregisterResponse()

    async def _cuda_regions(self, request: messages.CudaSharedMemoryStatusRequest) -> Message:
        if request.name:
            raise NotFoundError(f"there is no CUDA shared memory region '{request.name[:80]}': registered are none")
        return messages.CudaSharedMemoryStatusResponse()

    async def _register_cuda(self, _: Message) -> Message:
        raise UnavailableError("this server maps no CUDA shared memory: register system shared memory instead")

    async def _unregister_cuda(self, _: Message) -> Message:
        return messages.CudaSharedMemoryUnregisterResponse()  # clients clean up so before they begin

    async def _trace_setting(self, request: messages.TraceSettingRequest) -> Message:
        if request.settings:
            raise UnavailableError("traces cannot be set by a call: set them when the server is started")
        response = messages.TraceSettingResponse()
        response.settings["trace_level"].value.append("OFF")
        return response

    async def _log_settings(self, request: messages.LogSettingsRequest) -> Message:
        if request.settings:
            raise UnavailableError("logs cannot be set by a call: set them when the server is started")
        response = messages.LogSettingsResponse()
        for name, level in (("log_info", logging.INFO), ("log_warning", logging.WARNING), ("log_error", logging.ERROR)):
            response.settings[name].bool_param = _LOGGER.isEnabledFor(level)
        return response


def _parsed(name: str, call: ParsedCall) -> Call:
    """A call that takes and gives bytes."""
    kind = getattr(messages, f"{name}Request")

    async def parsed(message: bytes, _: Context) -> bytes:
        from google.protobuf.message import DecodeError

        try:
            request = kind.FromString(message)
        except DecodeError as error:
            raise InputError(f"the request is no {name}Request: {first_line(error)}") from error
        response = await call(request)
        encoded: bytes = response.SerializeToString()
        return encoded

    return parsed


def _answering(call: Call) -> Call:
    """A call whose errors are told by gRPC's codes."""

    async def answering(message: bytes, context: Context) -> bytes:
        failure: BaseException
        try:
            return await call(message, context)
        except SanderlingError as error:
            failure = error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # the client has gone
                raise
            failure = error
        except Exception as error:
            _LOGGER.exception("a request failed")
            failure = error
        code = getattr(grpc.StatusCode, code_of(failure).grpc)
        await context.abort(code, told(failure)[:_LONGEST_DETAILS])
        raise AssertionError("abort has raised")

    return answering


def _left_ms(context: Context) -> float | None:
    """Milliseconds until the call's deadline; None where its client set none."""
    left_s = context.time_remaining()
    return None if left_s is None else left_s * 1e3


def _filled(message: Message, content: dict[str, Any]) -> Message:
    """A message with what the protocol tells in JSON under the same names."""
    from google.protobuf.json_format import ParseDict

    return ParseDict(content, message, ignore_unknown_fields=True)
