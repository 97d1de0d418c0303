"""What `evidence.json` keeps: every check and measurement behind a package, with its conditions."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from sanderling.core.machine import Machine
from sanderling.core.progress import Event
from sanderling.measure.latency import Timing
from sanderling.model.manifest import Accuracy
from sanderling.workshop.optimize.simplify import PassRecord


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class ExportEvidence(_Record):
    """ONNX against PyTorch: largest relative error over the inputs tried."""

    batch_sizes: tuple[int, ...]
    inputs_tried: int
    relative_error: float
    tolerance: float


class Candidate(_Record):
    """One way to quantise that was tried; the highest SQNR on the calibration data was kept."""

    method: str
    bias_correction: bool
    sqnr_db: float
    kept: bool


class LayerError(_Record):
    """How far a tensor of the INT8 graph is from FP32's on calibration samples."""

    tensor: str
    operator: str
    sqnr_db: float
    low: float
    high: float


class Quantization(_Record):
    """How INT8 was made."""

    samples: int
    candidates: tuple[Candidate, ...]
    layers: tuple[LayerError, ...]


class Epoch(_Record):
    """One pass over the training data.

    Attributes:
        loss: mean over the batches.
        held_out_loss: on training data that was not trained on.
        held_out_percent: right predictions on that data.
    """

    loss: float
    held_out_loss: float
    held_out_percent: float
    seconds: float


class Finetuning(_Record):
    """How the INT8 weights were trained.

    Attributes:
        kept: number of the epoch whose weights were kept, from 1: the one with the least loss on the held-out samples.
        relative_error: of the exported graph against PyTorch's; a value on the edge of two steps may round either way.
    """

    samples: int
    held_out: int
    learning_rate: float
    batch: int
    distillation: float
    threads: int
    epochs: tuple[Epoch, ...]
    kept: int
    relative_error: float


class Cost(_Record):
    """What one run of the simplified graph costs."""

    operators: dict[str, int]
    parameters: int
    macs: int
    weight_bytes: int
    peak_activation_bytes: int


class VariantEvidence(_Record):
    """Everything measured of a variant."""

    accuracy: Accuracy
    latency: Timing
    memory_bytes: int | None


class Evidence(_Record):
    """The file."""

    machine: Machine
    options: dict[str, Any]
    export: ExportEvidence | None
    cost_before: Cost
    cost_after: Cost
    passes: tuple[PassRecord, ...]
    quantization: Quantization | None
    finetuning: Finetuning | None = None
    evaluation_data: str
    threads: int
    variants: dict[str, VariantEvidence]
    choice: str
    stage_seconds: dict[str, float]
    events: tuple[Event, ...]
