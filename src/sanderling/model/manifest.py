"""What `manifest.json` of a package says."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from sanderling.core.precision import Precision
from sanderling.core.tensor import TensorSpec
from sanderling.model.detection import DetectionSpec
from sanderling.model.learning import LearningSpec
from sanderling.model.multimodal import MultimodalSpec
from sanderling.model.plan import OptimizationName, Plan
from sanderling.model.preprocessing import Preprocessing
from sanderling.model.sound import SoundSpec
from sanderling.model.text import EmbeddingSpec, TextSpec

SCHEMA_VERSION = 1
Metric = Literal["top1", "map", "agreement", "cosine", "perplexity"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Source(_Record):
    """What the package was built from."""

    format: Literal["onnx", "torch.export", "torch.module", "torch.pickle", "huggingface", "gguf"]
    name: str
    sha256: str | None = None


class FileEntry(_Record):
    """Hash and size of one file of the package."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size_bytes: int = Field(ge=0)


class Latency(_Record):
    """Milliseconds of one call."""

    p50: float
    p95: float
    p99: float


class Accuracy(_Record):
    """How a variant does on evaluation data, against FP32.

    Attributes:
        metric: ``top1`` (labels), ``map`` (boxes, mAP50-95), ``agreement`` (same first class as FP32), ``cosine`` (of
            the outputs), or ``perplexity`` (of a language model).
        value: percent for ``top1``, ``map`` and ``agreement``; in [-1, 1] for ``cosine``; from 1 for ``perplexity``.
        drop: FP32's value minus this one's, percentage points (``cosine``: 1 − cosine; ``perplexity``: by how many
            percent it is higher).
        drop_upper: upper confidence bound of ``drop``, of one variant by itself.
        confidence: of that bound; INT8 and mixed precision share what may go wrong, so that theirs is higher.
        also: other metrics on the same data, percent: ``top5`` with labels, ``map50`` with boxes.
        samples: how many samples it was measured on.
        sqnr_db: per output, signal-to-quantisation-noise ratio against FP32; null where nothing differs.
        cosine: per output, cosine similarity with FP32, mean over the samples.
    """

    metric: Metric
    value: float
    drop: float
    drop_upper: float
    samples: int
    sqnr_db: dict[str, float | None]
    cosine: dict[str, float]
    confidence: float = 0.95
    also: dict[str, float] = {}


class Variant(_Record):
    """One precision of the model.

    Attributes:
        optimization: how much the default engine may rewrite the graph; lowered where more gave wrong outputs.
    """

    id: str
    precision: Precision
    file: str
    external_data: str | None = None
    size_bytes: int
    engines: tuple[str, ...]
    latency_ms: Latency | None = None
    memory_bytes: int | None = None
    accuracy: Accuracy | None = None
    within_budget: bool | None = None
    float_nodes: tuple[str, ...] = ()
    optimization: OptimizationName = "all"


class Budget(_Record):
    """What accuracy may cost; held against the upper confidence bound.

    Attributes:
        metric: ``top1``, ``map`` or ``agreement`` (percentage points), ``cosine`` (1 − cosine), or ``perplexity``
            (percent).
        limit: largest drop allowed.
    """

    metric: Metric
    limit: float = Field(ge=0)


class Golden(_Record):
    """Inputs with the outputs that each variant gave when it was built.

    Attributes:
        file: ``.npz`` with ``input/NAME`` and ``VARIANT/NAME`` arrays; the first axis counts the calls.
        samples: number of calls.
        tolerance: per variant, largest relative error (see ``core.statistics.relative_error``).
    """

    file: str
    samples: int
    tolerance: dict[str, float]


class RowCost(_Record):
    """What one row costs in FP32, dynamic axes taken as 1: how much a batch can save depends on it.

    Attributes:
        macs: multiply–accumulates.
        weight_bytes: read once by a call, however many rows it has.
        activation_bytes: written by all nodes together.
    """

    macs: int = Field(ge=0)
    weight_bytes: int = Field(ge=0)
    activation_bytes: int = Field(ge=0)


class Manifest(_Record):
    """Everything needed to run a package and to check it.

    Attributes:
        row_cost: None in packages that were built before it was kept.
        plans: by fingerprint of a kind of device, what was measured to be best there.
        text: what a language model reads and writes; None for any other model.
        embedding: how texts are embedded; None for a model that embeds none.
        detection: how a detector's outputs are read; None for any other model, and in packages that were built before
            it was kept.
        learning: what can be trained; None in packages that only infer.
        multimodal: the branches of a model that has several; None for any other.
    """

    schema_version: Literal[1] = 1
    name: str
    source: Source
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    preprocessing: Preprocessing | None = None
    sound: SoundSpec | None = None
    labels: tuple[str, ...] | None = None
    variants: tuple[Variant, ...]
    chosen: str
    budget: Budget | None = None
    golden: Golden
    row_cost: RowCost | None = None
    plans: dict[str, Plan] = {}
    text: TextSpec | None = None
    embedding: EmbeddingSpec | None = None
    detection: DetectionSpec | None = None
    learning: LearningSpec | None = None
    multimodal: MultimodalSpec | None = None
    files: dict[str, FileEntry]

    def variant(self, identifier: str) -> Variant | None:
        """The variant of that id, or None."""
        return next((variant for variant in self.variants if variant.id == identifier), None)
