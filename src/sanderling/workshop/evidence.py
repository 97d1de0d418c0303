"""What `evidence.json` keeps: every check and measurement behind a package, with its conditions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from sanderling.core.machine import Machine
from sanderling.core.progress import Event
from sanderling.measure.confusion import Confusion
from sanderling.measure.latency import Timing
from sanderling.measure.remote.results import DeviceBench
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
    """One way to quantise that was tried; the best by SQNR of the outputs on calibration data was kept."""

    name: str
    sqnr_db: float
    kept: bool


class LayerError(_Record):
    """A tensor that INT8 stores, on calibration samples.

    Attributes:
        tensor: its name in the float graph.
        operator: that makes it.
        sqnr_db: against FP32's, with everything before it quantised too.
        low: lowest value.
        high: highest value.
        clipped_share: of its values that lie outside the range that eight bits cover.
        outlier_ratio: largest magnitude over the one that 99.9 % of the values stay below.
    """

    tensor: str
    operator: str
    sqnr_db: float
    low: float
    high: float
    clipped_share: float
    outlier_ratio: float


class BlockPrecision(_Record):
    """The precision of a block in the mixed variant, and why.

    Attributes:
        output_sqnr_db: of the model's outputs when only this block's weight and what it makes are rounded.
    """

    block: str
    operator: str
    precision: Literal["int8", "fp32"]
    output_sqnr_db: float | None
    reason: str


class SearchPoint(_Record):
    """One way to mix INT8 and float; the points are ordered from all INT8 to all float.

    Attributes:
        float_blocks: names of the blocks in float.
        predicted_sqnr_db: of the outputs, from the noise of each tensor by itself.
        macs_int8_share: of all multiply–accumulates, in [0, 1].
        accuracy: on the evaluation data, where it was measured; its bound holds with ``Search.confidence``.
        latency_p50_ms: where it was measured.
    """

    float_blocks: tuple[str, ...]
    predicted_sqnr_db: float
    macs_int8_share: float
    accuracy: Accuracy | None = None
    latency_p50_ms: float | None = None


class Search(_Record):
    """The search for the fewest blocks in float that keep the budget.

    Attributes:
        evaluations: of whole forms: on calibration data to look for the boundary, and on evaluation data to decide.
        confidence: of the bounds that had to keep the budget, here and of all INT8 before: higher than 95 % each.
        chosen: index into ``points``; None when none that was tested holds.
        points: the accuracy–latency front and what lies between.
        blocks: precision of each block in the chosen form.
    """

    evaluations: int
    confidence: float
    chosen: int | None
    points: tuple[SearchPoint, ...]
    blocks: tuple[BlockPrecision, ...]
    samples: int

    def summary(self) -> dict[str, Any]:
        """What ``sanderling build --json`` prints."""
        value: dict[str, Any] = {"evaluations": self.evaluations, "tested": []}
        for point in self.points:
            if point.accuracy is not None:
                value["tested"].append(_in_short(point))
        if self.chosen is not None:
            value |= _in_short(self.points[self.chosen])
        return value


def _in_short(point: SearchPoint) -> dict[str, Any]:
    assert point.accuracy is not None
    return {
        "layers_float": len(point.float_blocks),
        "macs_int8_share": point.macs_int8_share,
        "drop": point.accuracy.drop,
        "drop_upper": point.accuracy.drop_upper,
        "latency_p50_ms": point.latency_p50_ms,
    }


class Quantization(_Record):
    """How INT8 was made."""

    samples: int
    candidates: tuple[Candidate, ...]
    layers: tuple[LayerError, ...]
    search: Search | None = None


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
    activation_bytes: int = 0
    peak_activation_bytes: int


class VariantEvidence(_Record):
    """Everything measured of a variant.

    Attributes:
        confusion: what it takes for what, on labelled data.
    """

    accuracy: Accuracy
    latency: Timing
    memory_bytes: int | None
    confusion: Confusion | None = None


class Evidence(_Record):
    """The file.

    Attributes:
        devices: what ``sanderling bench --on`` measured since, by the device's name.
    """

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
    devices: dict[str, DeviceBench] = {}
