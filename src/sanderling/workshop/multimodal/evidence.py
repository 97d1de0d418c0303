"""What the build of a model with several branches measured, as kept in `evidence.json`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from sanderling.core.machine import Machine
from sanderling.core.progress import Event
from sanderling.measure.latency import Timing
from sanderling.model.manifest import Accuracy


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class Choice(_Record):
    """A variant for each branch.

    Attributes:
        branches: variant by branch.
        latency_ms: sum of the branches' medians.
        changed_percent: answers on the calibration data that differ from FP32's.
        accuracy: on the evaluation data, where it was measured.
    """

    branches: dict[str, str]
    latency_ms: float
    changed_percent: float | None = None
    accuracy: Accuracy | None = None


class MultimodalVariantEvidence(_Record):
    """Everything measured of a variant.

    Attributes:
        accuracy: of the whole; None where there was no data.
        first: of a question about a picture that was never seen, branches at once.
        again: of another question about it; None of matching.
    """

    accuracy: Accuracy | None
    first: Timing
    again: Timing | None


class MultimodalEvidence(_Record):
    """The file; each branch has one of its own.

    Attributes:
        tried: choices in the order in which they were tested, the safest first; empty where INT8 kept the budget.
    """

    machine: Machine
    options: dict[str, Any]
    evaluation_data: str
    threads: int
    variants: dict[str, MultimodalVariantEvidence]
    tried: tuple[Choice, ...]
    choice: str
    stage_seconds: dict[str, float]
    events: tuple[Event, ...]
