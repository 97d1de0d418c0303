"""The calls of ``inference.GRPCInferenceService``, over the data plane."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
from grpc.aio import ServicerContext as Context

from sanderling.core.errors import SanderlingError, UnavailableError, first_line
from sanderling.serve.descriptions import describe_config, describe_model, describe_server
from sanderling.serve.errors import NotFoundError, NotReadyError, RequestError, code_of, told
from sanderling.serve.grpc_ import inference_pb2 as messages
from sanderling.serve.grpc_.arrivals import Arrivals
from sanderling.serve.grpc_.inference import Inference, plain
from sanderling.serve.grpc_.wire import stream_error, stream_response
from sanderling.serve.services import Services
from sanderling.serve.traces import TRACE

if TYPE_CHECKING:
    from google.protobuf.message import Message

    Handler = Callable[[AsyncIterator[bytes], Context], Awaitable[bytes]]
    Call = Callable[[bytes, Context], Awaitable[bytes]]
    ParsedCall = Callable[[Any], Awaitable[Message]]

SERVICE = "inference.GRPCInferenceService"
_MOST_IN_FLIGHT = 64  # of a stream: more are read when answers have left
_LONGEST_DETAILS = 2000  # characters: they travel in a header, which clients bound


class InferenceService:
    """What clients may call.

    Args:
        services: of the server, the same as HTTP's.
        arrivals: that waits for messages.
    """

    def __init__(self, services: Services, arrivals: Arrivals) -> None:
        self._services = services
        self._arrivals = arrivals

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
        # to gRPC each is a stream of one message: only of a stream is the call handed over before its message came
        handlers = {name: grpc.stream_unary_rpc_method_handler(self._answering(call)) for name, call in bare.items()}
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._stream_infer)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def _infer(self, message: bytes, context: Context) -> bytes:
        services = self._services
        return await Inference(message).run(services.plane, services.memory, services.aside, left_ms=_left_ms(context))

    async def _stream_infer(self, received: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        """Answers in the order of the requests, of which several run at once."""
        if self._services.is_traced:
            TRACE.set(str(dict(context.invocation_metadata() or ()).get("traceparent", "")))
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
            services = self._services
            answer = await inference.run(
                services.plane, services.memory, services.aside, left_ms=_left_ms(context), is_streamed=True
            )
        except Exception as error:  # noqa: BLE001 - the client is told, and the stream goes on
            _, text = self._failed(error)
            return stream_error(text, messages.ModelInferResponse(id=identifier).SerializeToString())
        return stream_response(answer)

    def _answering(self, call: Call) -> Handler:
        """A call of one message whose errors are told by gRPC's codes."""

        async def answering(_: AsyncIterator[bytes], context: Context) -> bytes:
            failure: BaseException
            if self._services.is_traced:
                TRACE.set(str(dict(context.invocation_metadata() or ()).get("traceparent", "")))
            try:
                return await call(await self._arrivals.message(context), context)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():  # the client has gone
                    raise
                failure = error
            except Exception as error:  # noqa: BLE001 - the client is told, and the server goes on
                failure = error
            code, text = self._failed(failure)
            await context.abort(getattr(grpc.StatusCode, code), text)
            raise AssertionError("abort has raised")

        return answering

    def _failed(self, error: BaseException) -> tuple[str, str]:
        """The code of an error and what the client is told; one that nobody foresaw goes to the log."""
        if not isinstance(error, SanderlingError | asyncio.CancelledError):
            self._services.log.failure("request-failed", error)
        return code_of(error).grpc, told(error)[:_LONGEST_DETAILS]

    async def _server_live(self, _: Message) -> Message:
        return messages.ServerLiveResponse(live=True)

    async def _server_ready(self, _: Message) -> Message:
        return messages.ServerReadyResponse(ready=self._services.is_ready)

    async def _model_ready(self, request: messages.ModelReadyRequest) -> Message:
        services = self._services
        try:
            model = services.plane.model(request.name, request.version)
        except (NotFoundError, NotReadyError):
            return messages.ModelReadyResponse(ready=False)
        ready = services.is_started and services.plane.is_accepting and model.is_ready
        return messages.ModelReadyResponse(ready=ready)

    async def _server_metadata(self, _: Message) -> Message:
        return messages.ServerMetadataResponse(**describe_server())

    async def _model_metadata(self, request: messages.ModelMetadataRequest) -> Message:
        model = self._services.plane.model(request.name, request.version)
        return messages.ModelMetadataResponse(**describe_model(self._services.plane, model))

    async def _model_config(self, request: messages.ModelConfigRequest) -> Message:
        model = self._services.plane.model(request.name, request.version)
        return _filled(messages.ModelConfigResponse(), {"config": describe_config(model)})

    async def _model_statistics(self, request: messages.ModelStatisticsRequest) -> Message:
        models = self._services.plane.models
        if request.name:
            model = self._services.plane.model(request.name, request.version)
            models = tuple(each for each in models if each.name == request.name)
            models = (model,) if request.version else models
        entries = [model.statistics.to_json(model.name, model.version) for model in models]
        return _filled(messages.ModelStatisticsResponse(), {"model_stats": entries})

    async def _repository_index(self, request: messages.RepositoryIndexRequest) -> Message:
        index = await asyncio.to_thread(self._services.repository.index, ready_only=request.ready)
        entries = [
            {key: entry[key] for key in ("name", "version", "state", "reason") if key in entry} for entry in index
        ]
        return messages.RepositoryIndexResponse(models=entries)

    async def _load(self, request: messages.RepositoryModelLoadRequest) -> Message:
        await asyncio.to_thread(self._services.repository.load, request.model_name, plain(request.parameters))
        return messages.RepositoryModelLoadResponse()

    async def _unload(self, request: messages.RepositoryModelUnloadRequest) -> Message:
        await asyncio.to_thread(self._services.repository.unload, request.model_name, plain(request.parameters))
        return messages.RepositoryModelUnloadResponse()

    def _authorized(self, call: Call) -> Call:
        """A call that only those who know the token may make."""

        async def authorized(message: bytes, context: Context) -> bytes:
            given = dict(context.invocation_metadata() or ()).get("authorization", "")
            self._services.check_token(given if isinstance(given, str) else "")
            return await call(message, context)

        return authorized

    async def _regions(self, request: messages.SystemSharedMemoryStatusRequest) -> Message:
        response = messages.SystemSharedMemoryStatusResponse()
        for region in self._services.memory.regions(request.name):
            told_region = response.regions[region.name]
            told_region.name, told_region.key = region.name, region.key
            told_region.offset, told_region.byte_size = region.offset, region.size_bytes
        return response

    async def _register(self, request: messages.SystemSharedMemoryRegisterRequest) -> Message:
        self._services.memory.register(request.name, request.key, offset=request.offset, size_bytes=request.byte_size)
        return messages.SystemSharedMemoryRegisterResponse()

    async def _unregister(self, request: messages.SystemSharedMemoryUnregisterRequest) -> Message:
        self._services.memory.unregister(request.name)
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
        for name in ("log_info", "log_warning", "log_error"):
            response.settings[name].bool_param = True
        return response


def _parsed(name: str, call: ParsedCall) -> Call:
    """A call that takes and gives bytes."""
    kind = getattr(messages, f"{name}Request")

    async def parsed(message: bytes, _: Context) -> bytes:
        from google.protobuf.message import DecodeError

        try:
            request = kind.FromString(message)
        except DecodeError as error:
            raise RequestError(f"the request is no {name}Request: {first_line(error)}") from error
        response = await call(request)
        encoded: bytes = response.SerializeToString()
        return encoded

    return parsed


def _left_ms(context: Context) -> float | None:
    """Milliseconds until the call's deadline; None where its client set none."""
    left_s = context.time_remaining()
    return None if left_s is None else left_s * 1e3


def _filled(message: Message, content: dict[str, Any]) -> Message:
    """A message with what the protocol tells in JSON under the same names."""
    from google.protobuf.json_format import ParseDict

    return ParseDict(content, message, ignore_unknown_fields=True)
