"""A span for every request, sent to an OpenTelemetry collector; on request only.

Requests are told about when they have ended, by an observer that puts them aside; a thread makes their spans. Without
traces none of this exists.

Source: OpenTelemetry specification 1.40, "Tracing API" and "OTLP/HTTP"; W3C Trace Context.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from sanderling.core.errors import UnavailableError

if TYPE_CHECKING:
    from sanderling.serve.data_plane import Finished
    from sanderling.serve.log import Log

TRACE: ContextVar[str] = ContextVar("traceparent", default="")  # of the request that the current task answers
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PERIOD_S = 0.2
_MOST = 20_000  # requests that wait to become spans; the oldest are left out
_END_S = 3.0
_LIBRARY = "opentelemetry"


def is_configured(log: Log) -> bool:
    """Whether the environment names a collector, and traces can be sent to it; where they cannot, that is told."""
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    named = [name for name in _ENDPOINTS if os.environ.get(name)]
    if disabled or not named:
        return False
    if importlib.util.find_spec(_LIBRARY) is None:
        log.warning("traces-off", f"{named[0]} is set, but there are no traces without pip install 'sanderling[otel]'")
        return False
    return True


class Traces:
    """Makes spans of requests that ended. Close it.

    Args:
        log: that is told when the collector cannot be reached, and when it can again.

    Raises:
        UnavailableError: the extra is not installed.
    """

    def __init__(self, log: Log) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise UnavailableError(
                f"traces need '{error.name}', which is not installed: pip install 'sanderling[otel]'"
            ) from error
        logging.getLogger(_LIBRARY).setLevel(logging.CRITICAL)  # it would say so for every batch that it cannot send
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "sanderling"}
        self._provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_telling(OTLPSpanExporter(), log)))
        self._tracer = self._provider.get_tracer("sanderling.serve")
        self._propagator = TraceContextTextMapPropagator()
        self._ended: deque[tuple[int, Finished]] = deque(maxlen=_MOST)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="sanderling-traces", daemon=True)
        self._thread.start()

    def observe(self, finished: Finished) -> None:
        """A request ended; an observer of the data plane."""
        self._ended.append((time.time_ns(), finished))

    def close(self) -> None:
        """Send what there is, if the collector takes it within seconds."""
        self._ending.set()
        self._thread.join(_END_S)
        last = threading.Thread(target=self._provider.shutdown, name="sanderling-traces-end", daemon=True)
        last.start()
        last.join(_END_S)

    def _keep(self) -> None:
        while not self._ending.wait(_PERIOD_S):
            self._make()
        self._make()

    def _make(self) -> None:
        for _ in range(len(self._ended)):
            at_ns, finished = self._ended.popleft()
            self._span(at_ns, finished)

    def _span(self, end_ns: int, finished: Finished) -> None:
        """A request's span, with one for its time in the queue and one for the call that it was part of."""
        from opentelemetry import trace

        begin_ns = end_ns - _ns(finished.total_ms)
        parent = self._propagator.extract({"traceparent": finished.trace}) if finished.trace else None
        name = f"infer {finished.model}" if not finished.tokens else f"generate {finished.model}"
        span = self._tracer.start_span(
            name, parent, trace.SpanKind.SERVER, attributes=_attributes(finished), start_time=begin_ns
        )
        context = trace.set_span_in_context(span)
        called_ns = min(begin_ns + _ns(finished.queue_ms), end_ns)
        self._tracer.start_span("queue", context, start_time=begin_ns).end(called_ns)
        if finished.batch_requests:
            shared: dict[str, Any] = {
                "sanderling.batch.rows": finished.batch_rows,
                "sanderling.batch.requests": finished.batch_requests,
                "sanderling.lane": finished.lane,
            }
            call = self._tracer.start_span("call", context, attributes=shared, start_time=called_ns)
            call.end(min(called_ns + _ns(finished.compute_ms), end_ns))
        if finished.first_ms is not None:
            span.add_event("first token", timestamp=min(begin_ns + _ns(finished.first_ms), end_ns))
        if not finished.ok:
            span.set_status(trace.Status(trace.StatusCode.ERROR, finished.error))
        span.end(end_ns)


def _attributes(finished: Finished) -> Mapping[str, Any]:
    told: dict[str, Any] = {
        "sanderling.model": finished.model,
        "sanderling.version": finished.version,
        "sanderling.rows": finished.rows,
        "sanderling.priority": finished.priority,
        "sanderling.device": finished.device,
        "sanderling.precision": finished.precision,
        "error.type": finished.error,
        "sanderling.guard.tripped": finished.tripped,
        "sanderling.stale": finished.stale,
        "sanderling.tokens": finished.tokens,
        "sanderling.deadline_ms": finished.deadline_ms,
    }
    return {name: value for name, value in told.items() if value not in ("", None, 0, False)}


def _ns(milliseconds: float) -> int:
    return max(int(milliseconds * 1e6), 0)


def _telling(exporter: Any, log: Log) -> Any:  # noqa: ANN401 - the extra's types are not there without it
    """The same exporter, which says once that the collector cannot be reached, and once that it can again."""
    send = exporter.export
    is_lost = False

    def export(spans: Any) -> Any:  # noqa: ANN401
        nonlocal is_lost
        result = send(spans)
        if (result.name != "SUCCESS") != is_lost:
            is_lost = not is_lost
            if is_lost:
                log.warning("traces-lost", "the collector takes no traces: see OTEL_EXPORTER_OTLP_ENDPOINT")
            else:
                log.info("traces-sent", "the collector takes traces again")
        return result

    exporter.export = export
    return exporter
