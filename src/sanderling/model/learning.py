"""What the manifest of a package says about training: which graphs, which parameters, which loss.

Such a package is called a task. All of its graphs are plain ONNX for inference; their files are in the package's folder
``learning/``. Weights that are not trained are initialisers, which all graphs read from ``learning/weights.bin``.

Names of the graphs' inputs and outputs, all float32 unless it is said otherwise; scalars have shape ():

grad_step, eval, inference
    in: every input of the model by its own name; ``label`` (not inference); ``param.NAME`` for each parameter;
    ``acc.NAME`` of the same shape (grad_step alone)
grad_step
    out: ``loss``, the mean over the batch as the loss defines it; ``weight``, what that mean was divided by (number of
    samples, of tokens that count, or the sum of their class weights); ``acc.out.NAME`` = ``acc.NAME`` + ``weight`` ·
    ∂loss/∂NAME. So gradients of *sums* are accumulated, and ``grad_scale`` = 1 / Σ weight makes micro-batches equal to
    the big batch however they are divided.
eval
    out: ``loss``, ``weight``, and ``output.NAME`` for each output of the model
inference
    out: each output of the model by its own name; adapters are exchanged here by other arrays for ``param.NAME``
dp_grad_step
    in: as grad_step, besides ``sample_mask`` (N,), 1 where a row counts and 0 where it fills up, and ``clip_norm``
    out: ``loss`` (mean over the rows that count), ``weight`` (number of them), ``grad_norm`` (N,) before clipping,
    ``acc.out.NAME`` = ``acc.NAME`` + Σ over samples of the clipped gradient of that sample's own loss
optimizer
    in: ``param``, ``grad``, a state for each of ``states`` such as ``m``, all (length,): the parameters in their order,
    one behind the other, or any piece of that vector; scalars ``lr``, ``grad_scale`` (multiplied into the gradients
    first; what clips them is in it), ``step`` (number of this update, from 1), and every key of ``settings``
    out: ``param.out``, ``m.out`` …
features
    in: every input of the model; out: the tensors of ``FeatureCut.tensors``
grad_step, eval, dp_grad_step of a FeatureCut
    as those above, with the cut's tensors in the place of the model's inputs
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from sanderling.core.tensor import TensorSpec

LEARNING_FOLDER = "learning"
LABEL = "label"
GOLDEN_TOLERANCE = 1e-4

LossKind = Literal["cross_entropy", "mse", "bce", "cosine", "contrastive"]
OptimizerKind = Literal["sgd", "adamw"]
Backbone = Literal["fp32", "fp16", "int8"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LossSpec(_Record):
    """The loss that the graphs compute, with everything that is fixed in them.

    Attributes:
        kind: ``cross_entropy`` (logits and class numbers), ``mse``, ``bce`` (logits and targets in [0, 1]), ``cosine``
            (1 − cosine with a target vector) or ``contrastive`` (vectors of one class close, others far; Khosla 2020).
        label_smoothing: share of the target that is spread over all classes, of ``cross_entropy``.
        class_weights: one for each class, of ``cross_entropy``; the mean is divided by their sum.
        ignore_index: label that does not count, of ``cross_entropy``.
        shift: each position is held against the next one's label, as for a language model.
        temperature: of ``contrastive``.
        separable: whether the loss of a batch is the mean of its samples' own; only then are micro-batches the same as
            the big batch, and only then is there differential privacy.
    """

    kind: LossKind
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    class_weights: tuple[float, ...] | None = None
    ignore_index: int = -100
    shift: bool = False
    temperature: float = Field(default=0.1, gt=0)
    separable: bool = True


class TrainableParameter(_Record):
    """One parameter; graphs call it ``param.NAME``, and ``LearningSpec.initial`` holds its first value as ``NAME``."""

    name: str
    shape: tuple[int, ...]


class Adapter(_Record):
    """A LoRA adapter: the layer computes with ``weight`` + ``alpha / rank`` · ``b`` · ``a``.

    Attributes:
        layer: path of the module, such as ``encoder.layer.0.attention.query``.
        weight: name of the weight that it is folded into, an initialiser ``frozen.WEIGHT`` of ``model``.
        a: parameter, (rank, in) of a linear layer, (groups · rank, in / groups, *kernel) of a convolution.
        b: parameter, (out, rank) of a linear layer, (out, rank, 1, …) of a convolution.
        groups: of the convolution; 1 for a linear layer.
        rows_are_outputs: whether the weight is (out, in, …); else it is (in, out).
        rank: of the product.
        alpha: ``alpha / rank`` is multiplied in.
    """

    layer: str
    weight: str
    a: str
    b: str
    groups: int = 1
    rows_are_outputs: bool = True
    rank: int = Field(gt=0)
    alpha: float = Field(gt=0)

    @property
    def scale(self) -> float:
        """What the product is multiplied with."""
        return self.alpha / self.rank


class OptimizerGraph(_Record):
    """One optimiser's update as a graph.

    Attributes:
        states: prefixes of its state, such as ``("m", "v")``; each starts as zeros of the parameters' shapes.
        settings: further scalar inputs with their defaults, such as ``weight_decay``.
    """

    kind: OptimizerKind
    file: str
    states: tuple[str, ...]
    settings: dict[str, float]


class PrivateStep(_Record):
    """A gradient step with clipping per sample.

    Attributes:
        file: None where there is no such step; ``refused`` says why.
        route: ``expanded``: parameters have a copy for each sample.
        batch: number of rows of a call, filled up and masked; None where any number will do.
        refused: why nothing private can be claimed for this task, in words.
    """

    file: str | None = None
    route: Literal["expanded"] | None = None
    batch: int | None = None
    refused: str | None = None


class FeatureCut(_Record):
    """The frozen part, cut off: its outputs depend on the sample alone and are computed once.

    Attributes:
        tensors: what it gives for a batch, first axis ``batch``.
        features: graph of the frozen part.
        grad_step: graph of the rest, on features.
        eval: graph of the rest, on features.
        private: of the rest, on features.
        macs_share: share of the forward pass's multiply–accumulates that is cut off, in [0, 1].
        bytes_per_sample: of all tensors together.
    """

    tensors: tuple[TensorSpec, ...]
    features: str
    grad_step: str
    eval: str
    private: PrivateStep = PrivateStep(refused="the task was prepared without it")
    macs_share: float = Field(ge=0, le=1)
    bytes_per_sample: int = Field(ge=0)


class GoldenGradients(_Record):
    """One batch with PyTorch's own gradients for it.

    Attributes:
        file: safetensors: ``input.NAME``, ``label``, ``param.NAME`` (not the initial values: with a second factor of
            zeros an adapter would have no gradient to compare), ``loss``, ``weight`` and ``grad.NAME``, which is what
            grad_step gives as ``acc.out.NAME`` when every ``acc.NAME`` is zero.
        tolerance: largest max |difference| / max(1e-3, max |reference|) with which a task may be trained.
        error: the largest that was found when the task was prepared.
    """

    file: str
    tolerance: float = GOLDEN_TOLERANCE
    error: float


class LearningSpec(_Record):
    """What a task can train, and with what.

    Attributes:
        fingerprint: SHA-256 over the loss, the parameters' names and shapes, the adapters and the frozen weights;
            checkpoints carry it, and one of another task is refused.
        inputs: of the model in a training batch; the first axis is ``batch``, or fixed.
        label: dtype and shape of ``label``; the first axis as of the inputs.
        classes: labels are in [0, classes), besides ``loss.ignore_index``; None where labels are no class numbers.
        trainable: what was asked for: ``head``, ``lora:r=8``, ``full`` or a regular expression.
        parameters: in the order of the graphs' inputs.
        initial: safetensors with the first value of each parameter.
        grad_step, eval, inference: graphs, see above.
        model: graph without adapters, every parameter and every adapted weight an initialiser; ``apply`` starts here.
        optimizers: at least one.
        private: the gradient step with clipping per sample.
        features: the frozen part cut off; None where that does not pay.
        adapters: empty without LoRA.
        backbone: in what the frozen weights are stored.
        golden: what every engine is held to before it may train.
        notes: what was frozen or switched off, in words.
    """

    fingerprint: str = Field(pattern="^[0-9a-f]{64}$")
    inputs: tuple[TensorSpec, ...]
    label: TensorSpec
    classes: int | None = None
    loss: LossSpec
    trainable: str
    parameters: tuple[TrainableParameter, ...] = Field(min_length=1)
    initial: str
    grad_step: str
    eval: str
    inference: str
    model: str
    optimizers: tuple[OptimizerGraph, ...] = Field(min_length=1)
    private: PrivateStep
    features: FeatureCut | None = None
    adapters: tuple[Adapter, ...] = ()
    backbone: Backbone = "fp32"
    golden: GoldenGradients
    notes: tuple[str, ...] = ()

    def optimizer(self, kind: str) -> OptimizerGraph | None:
        """The optimiser of that kind, or None."""
        return next((graph for graph in self.optimizers if graph.kind == kind), None)
