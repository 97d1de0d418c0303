"""What a model did so far, as Triton's statistics extension tells it.

Source: Triton Inference Server, protocol extension "Statistics".
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sanderling.serve.data_plane import Finished

_NOTHING = {"count": 0, "ns": 0}


@dataclass
class Duration:
    """How often something happened, and how long it took in all."""

    count: int = 0
    total_ms: float = 0.0

    def add(self, duration_ms: float, count: int = 1) -> None:
        """It happened once more."""
        self.count += count
        self.total_ms += duration_ms

    def to_json(self) -> dict[str, int]:
        """With the extension's names."""
        return {"count": self.count, "ns": round(self.total_ms * 1e6)}


class ModelStatistics:
    """Counts and times of one version of a model. Usable from several threads.

    Attributes:
        last_s: when the last request ended, in seconds since the epoch.
        success: from arrival to result.
        fail: from arrival to error.
        queue: of those that ran, before their call began.
        compute: of their call; joining rows is part of it.
        inferences: rows of those that succeeded.
        executions: calls of the engine; of a call that several requests shared, each counts its part.
        batches: executions and their time, by rows of the call.
    """

    def __init__(self) -> None:
        self.last_s = 0.0
        self.success = Duration()
        self.fail = Duration()
        self.cancel = Duration()
        self.queue = Duration()
        self.compute = Duration()
        self.inferences = 0
        self.executions = 0.0
        self.batches: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._lock = threading.Lock()

    def add(self, finished: Finished) -> None:
        """A request ended."""
        with self._lock:
            self.last_s = time.time()
            if not finished.ok:
                kind = self.cancel if finished.error == "CancelledError" else self.fail
                kind.add(finished.total_ms)
                return
            self.success.add(finished.total_ms)
            self.queue.add(finished.queue_ms)
            self.compute.add(finished.compute_ms)
            self.inferences += finished.rows
            part = 1 / max(finished.batch_requests, 1)
            self.executions += part
            batch = self.batches[finished.batch_rows]
            batch[0] += part
            batch[1] += finished.compute_ms * part

    def to_json(self, name: str, version: str) -> dict[str, Any]:
        """One entry of the extension's ``model_stats``."""
        with self._lock:
            batches = [
                {
                    "batch_size": rows,
                    "compute_input": _NOTHING,
                    "compute_infer": {"count": round(count), "ns": round(total_ms * 1e6)},
                    "compute_output": _NOTHING,
                }
                for rows, (count, total_ms) in sorted(self.batches.items())
            ]
            return {
                "name": name,
                "version": version,
                "last_inference": round(self.last_s * 1e3),
                "inference_count": self.inferences,
                "execution_count": round(self.executions),
                "inference_stats": {
                    "success": self.success.to_json(),
                    "fail": self.fail.to_json(),
                    "queue": self.queue.to_json(),
                    "compute_input": {"count": self.compute.count, "ns": 0},
                    "compute_infer": self.compute.to_json(),
                    "compute_output": {"count": self.compute.count, "ns": 0},
                    "cache_hit": _NOTHING,
                    "cache_miss": _NOTHING,
                    "cancel": self.cancel.to_json(),
                },
                "batch_stats": batches,
                "response_stats": {},
                "memory_usage": [],
            }
