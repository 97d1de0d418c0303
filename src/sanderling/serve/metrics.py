"""What Prometheus reads: requests and their latencies by stage, batches, devices, switches, heat and memory.

A request costs a few bisections under a lock; everything else is read when it is asked for.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from sanderling.run.runtime import Runtime, TimedEvent
from sanderling.serve.following import Follower
from sanderling.serve.http.server import cannot_listen
from sanderling.serve.snapshot import conditions_of, describe, device_samples, held_bytes, key_of, lane_parts

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client.core import Metric

    from sanderling.serve.data_plane import DataPlane, Finished

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STAGES = ("queue", "compute", "total")
_BOUNDS_MS = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 16.7, 25.0, 33.3, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 10_000.0)
_BOUNDS_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SWITCHED = "switched"
# How the reasons of switches are worded, see ``sanderling.run.policy.placement``, and the kind that each is.
_REASONS = (
    ("hold-off is over", "hold-off over"),
    ("it is left at", "hot"),
    ("has cooled to", "cooled"),
    ("calls in a row took more than", "slow"),
    ("is gone", "device gone"),
    ("is there again", "device back"),
    ("asked for", "asked"),
    ("the policy chooses again", "policy"),
    ("preferred", "policy"),
    ("the breaker has opened", "guard"),
)


def reason_kind(reason: str) -> str:
    """What kind of reason a switch had, so that it can be counted; ``failed`` where an engine said it."""
    return next((kind for words, kind in _REASONS if words in reason), "failed")


class _Histogram:
    """Counts by bound, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self, scale: float = 1.0) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as Prometheus has them."""
        names = [*(str(float(f"{bound * scale:g}")) for bound in self.bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self.counts)), strict=True))


class _Tally:
    """What was counted of one way of running one version of a model."""

    __slots__ = ("rows", "stages")

    def __init__(self) -> None:
        self.stages = tuple(_Histogram(_BOUNDS_MS) for _ in STAGES)
        self.rows = _Histogram(_BOUNDS_ROWS)


class Metrics:
    """Counts the requests of a data plane, and tells Prometheus of them and of its models and devices.

    Args:
        plane: that is observed.

    Attributes:
        registry: of its own; nothing is registered globally.
    """

    def __init__(self, plane: DataPlane) -> None:
        from prometheus_client import CollectorRegistry

        self._plane = plane
        self._tallies: dict[tuple[str, str, str, str], _Tally] = {}
        self._outcomes: Counter[tuple[str, str, str]] = Counter()
        self._tripped: Counter[tuple[str, str]] = Counter()
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._first: dict[tuple[str, str], _Histogram] = {}
        self._events: Counter[tuple[str, str]] = Counter()
        self._switches: Counter[tuple[str, str]] = Counter()
        self._follower = Follower(plane, self._happened)
        self._lock = threading.Lock()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        self._follower.follow()
        plane.observers.append(self.observe)

    def observe(self, finished: Finished) -> None:
        """A request ended."""
        model, version = finished.model, finished.version
        with self._lock:
            self._outcomes[model, version, finished.error or "ok"] += 1
            if finished.tripped:
                self._tripped[model, version] += 1
            if finished.tokens:
                self._tokens[model, version] += finished.tokens
            if finished.first_ms is not None:
                self._first.setdefault((model, version), _Histogram(_BOUNDS_MS)).add(finished.first_ms)
            if not finished.ok:
                return
            key = model, version, finished.device, finished.precision
            tally = self._tallies.get(key)
            if tally is None:
                tally = self._tallies[key] = _Tally()
            queue, compute, total = tally.stages
            queue.add(finished.queue_ms)
            compute.add(finished.compute_ms)
            total.add(finished.total_ms)
            tally.rows.add(finished.batch_rows)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)

    def close(self) -> None:
        """Observe no more."""
        if self.observe in self._plane.observers:
            self._plane.observers.remove(self.observe)

    def collect(self) -> Iterator[Metric]:
        """Every metric, as the registry asks for them."""
        self._follower.follow()
        with self._lock:
            counted = list(self._requests())
        yield from counted
        yield from self._models()
        yield from self._texts()
        yield from self._devices()
        yield from self._process()

    def _happened(self, runtime: Runtime, timed: TimedEvent) -> None:
        model = key_of(self._plane, runtime, timed.model)
        with self._lock:
            self._events[model, timed.event.kind] += 1
            if timed.event.kind == _SWITCHED:
                self._switches[model, reason_kind(timed.event.reason)] += 1

    def _requests(self) -> Iterator[Metric]:
        from prometheus_client.core import HistogramMetricFamily

        version = ("model", "version")
        outcome = (*version, "outcome")
        yield _counter("sanderling_requests", "Requests by outcome: ok, or an error.", outcome, self._outcomes.items())
        where = (*version, "device", "precision")
        latency = HistogramMetricFamily(
            "sanderling_latency_seconds",
            "Seconds of requests with a result: in the queue, in the engine's call, and from arrival to result.",
            labels=(*where, "stage"),
        )
        rows = HistogramMetricFamily(
            "sanderling_batch_rows", "Rows of the call that a request was part of.", labels=where
        )
        for key, tally in self._tallies.items():
            for stage, histogram in zip(STAGES, tally.stages, strict=True):
                latency.add_metric((*key, stage), histogram.buckets(1e-3), histogram.total / 1e3)
            rows.add_metric(key, tally.rows.buckets(), tally.rows.total)
        yield latency
        yield rows
        yield _counter("sanderling_guard_trips", "Results that failed their check.", version, self._tripped.items())
        yield _counter("sanderling_tokens", "Tokens that were generated.", version, self._tokens.items())
        first = HistogramMetricFamily(
            "sanderling_first_token_seconds", "Seconds from a request to the first token of its text.", labels=version
        )
        for where_text, histogram in self._first.items():
            first.add_metric(where_text, histogram.buckets(1e-3), histogram.total / 1e3)
        yield first
        yield _counter(
            "sanderling_switches",
            "Changes of the way of running, by kind of reason.",
            ("model", "reason"),
            self._switches.items(),
        )
        yield _counter("sanderling_events", "Events, by kind.", ("model", "kind"), self._events.items())

    def _models(self) -> Iterator[Metric]:
        models = [((model.name, model.version), model) for model in self._plane.models]
        version = ("model", "version")
        yield _gauge(
            "sanderling_model_ready",
            "Whether a model takes requests.",
            version,
            [(key, m.is_ready) for key, m in models],
        )
        yield _gauge(
            "sanderling_model_lane",
            "1 for the way of running that is used now.",
            (*version, "engine", "device", "precision"),
            [((*key, *lane_parts(m.session.lane)), 1) for key, m in models],
        )
        yield _gauge(
            "sanderling_queue_depth",
            "Requests that wait.",
            version,
            [(key, m.session.waiting) for key, m in models],
        )
        yield _gauge(
            "sanderling_model_memory_bytes",
            "What a model's loaded variants and kept buffers take, as measured when it was built or tuned.",
            version,
            [(key, held_bytes(m.session)) for key, m in models],
        )
        yield _counter(
            "sanderling_copied_bytes",
            "Bytes copied between requests and engines, and to join requests to batches.",
            version,
            [(key, m.session.copied_bytes) for key, m in models],
        )

    def _texts(self) -> Iterator[Metric]:
        """What language models tell of themselves since they were loaded."""
        told = [((m.name, m.version), s) for m in self._plane.models if (s := m.text_statistics) is not None]
        version = ("model", "version")
        for name, help_text, values in (
            ("conversations", "Requests for text that are computed now.", [(key, s.active) for key, s in told]),
            ("kept_sequences", "Sequences kept for prompts that begin alike.", [(key, s.kept) for key, s in told]),
            ("prompt_tokens", "Tokens of prompts.", [(key, s.prompt_tokens) for key, s in told]),
            ("cached_tokens", "Of these, those that were not computed.", [(key, s.cached_tokens) for key, s in told]),
            ("prefix_hits", "Requests that went on from a kept sequence.", [(key, s.prefix_hits) for key, s in told]),
            (
                "decode_tokens_per_second",
                "Tokens a second of one answer by itself, of late.",
                [(key, s.decode_tokens_per_s or 0.0) for key, s in told],
            ),
            (
                "prefill_tokens_per_second",
                "Tokens of prompts a second, of late.",
                [(key, s.prefill_tokens_per_s or 0.0) for key, s in told],
            ),
        ):
            yield _gauge(f"sanderling_text_{name}", help_text, version, values)

    def _devices(self) -> Iterator[Metric]:
        samples = device_samples(self._plane)
        setup = describe(self._plane)
        yield _gauge(
            "sanderling_device_utilization",
            "Share of recent time that a device was busy.",
            ("device",),
            [((name,), sample.busy) for name, sample in samples.items()],
        )
        yield _gauge(
            "sanderling_device_temperature_celsius",
            "Temperature of a device that a sensor shows.",
            ("device",),
            [((name,), s.temperature_c) for name, s in samples.items() if s.temperature_c is not None],
        )
        limits = [(each.name, "leave", each.leave_c) for each in setup.devices]
        limits += [(each.name, "return", each.return_c) for each in setup.devices]
        yield _gauge(
            "sanderling_device_threshold_celsius",
            "Temperature at which the policy leaves a device, and to which it must cool to return.",
            ("device", "threshold"),
            [((name, kind), limit) for name, kind, limit in limits if limit is not None],
        )

    def _process(self) -> Iterator[Metric]:
        readings = [each.last for each in conditions_of(self._plane) if each.last is not None]
        for name, help_text, values in (
            ("resident", "Resident memory of this process.", [each.resident_bytes for each in readings]),
            ("used", "Memory used, of the limit.", [each.memory_used_bytes for each in readings]),
            ("limit", "Memory of this machine, or of its container.", [each.memory_limit_bytes for each in readings]),
        ):
            known = next((value for value in values if value is not None), None)
            if known is not None:
                yield _gauge(f"sanderling_memory_{name}_bytes", help_text, (), [((), known)])


def _counter(name: str, help_text: str, labels: Sequence[str], counts: Iterable[tuple[tuple[str, ...], int]]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(name, help_text, labels=labels)
    for key, count in counts:
        family.add_metric(key, count)
    return family


def _gauge(name: str, help_text: str, labels: Sequence[str], values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, help_text, labels=labels)
    for key, value in values:
        family.add_metric(key, float(value))
    return family


class MetricsServer:
    """Metrics at a port of their own, so that a scraper needs no way to the models.

    Attributes:
        port: that it listens at.
    """

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        self.port = port
        self._metrics = metrics
        self._host = host
        self._server: WSGIServer | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            OptionError: the port is taken, or there is no such address.
        """
        from prometheus_client import start_http_server

        try:
            self._server, _ = start_http_server(self.port, self._host, self._metrics.registry)
        except OSError as error:
            raise cannot_listen("metrics", self._host, self.port, "--metrics", error) from error
        self.port = self._server.server_port

    async def stop(self, drain_s: float) -> None:  # noqa: ARG002 - a scrape takes milliseconds
        """Listen no more."""
        if self._server is not None:
            await asyncio.to_thread(self._server.shutdown)
            self._server.server_close()
