"""The models, the tasks that are prepared of them, and their batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.zoo.minilm import HIDDEN, MiniLm, minilm, minilm_file
from benchmarks.zoo.mobilenet_v3 import LARGE, MobileNetV3, mobilenet_v3_large
from sanderling.core.tensor import Array, random_feeds
from sanderling.model.learning import LearningSpec, OptimizerKind
from sanderling.model.manifest import Manifest

WEIGHTS = Path(__file__).parents[1] / "zoo" / "weights"
TEXT_TOKENS = 64
TEXT_CLASSES = 8
PICTURE_CLASSES = 10
_VOCABULARY = 512


@dataclass(frozen=True)
class Case:
    """A model, and how a task is made of it.

    Attributes:
        name: for people.
        source: ``module:factory``.
        inputs: as ``--input`` takes them.
        arguments: of the factory.
        weights: checkpoint; None where the factory loads its own, or random ones will do.
        loss: as ``--loss`` takes it.
        lora: ``--trainable`` of its adapters.
        batch: samples of a measured step.
        preprocess: as ``--preprocess`` takes it.
    """

    name: str
    source: str
    inputs: tuple[str, ...]
    arguments: dict[str, int] = field(default_factory=dict)
    weights: Path | None = None
    loss: str = "cross_entropy"
    lora: str = "lora:r=8"
    batch: int = 16
    preprocess: str | None = None

    def factory(self) -> nn.Module:
        """The module with its weights, as the task is prepared of it."""
        from safetensors.torch import load_file

        place, _, name = self.source.partition(":")
        make: Callable[..., nn.Module] = getattr(__import__(place, fromlist=[name]), name)
        module = make(**self.arguments)
        if self.weights is not None:
            module.load_state_dict(load_file(self.weights))
        return module.eval()


DIALECT = Case(
    "dialect",
    "benchmarks.zoo.dialect:dialect",
    ("sound=1,16000",),
    weights=WEIGHTS / "dialect.safetensors",
    lora="lora:r=4",
    preprocess="sound:16000",
)
FASHION = Case(
    "Fashion CNN",
    "benchmarks.zoo.fashion:fashion_cnn",
    ("input=1,1,28,28",),
    weights=WEIGHTS / "fashion_cnn.safetensors",
)
DEPTHWISE = Case(
    "depthwise CNN",
    "benchmarks.zoo.fashion:fashion_depthwise",
    ("input=1,1,28,28",),
    weights=WEIGHTS / "fashion_depthwise.safetensors",
)
RESNET = Case("ResNet-18", "benchmarks.zoo.resnet18:resnet18", ("input=1,3,64,64",), batch=8)
MOBILENET = Case("MobileNetV3-Large", "benchmarks.learn.cases:picture_classifier", ("input=1,3,64,64",), batch=8)
MLP = Case("MLP", "benchmarks.learn.cases:mlp", ("input=1,32",))
LLAMA = Case(
    "Llama, 3 layers, grouped heads",
    "benchmarks.learn.cases:llama",
    (f"input_ids=1,{TEXT_TOKENS // 4}:int64",),
    loss="cross_entropy:shift=1",
    batch=4,
)
MINILM = Case(
    "MiniLM",
    "benchmarks.learn.cases:text_classifier",
    tuple(f"{name}=1,{TEXT_TOKENS}:int64" for name in ("input_ids", "attention_mask", "token_type_ids")),
    lora="lora:r=8,head,layers=attention.self.(query|value)",
    batch=8,
)
CASES = (MLP, FASHION, DEPTHWISE, RESNET, MOBILENET, MINILM, LLAMA, DIALECT)


def prepare_case(
    case: Case,
    trainable: str,
    output: Path,
    *,
    optimizers: tuple[OptimizerKind, ...] = ("adamw",),
    calibration: Path | None = None,
    labels: Path | None = None,
) -> LearningSpec:
    """Prepare a task; it is measured as little as a build allows."""
    # Here, so that a process that only makes the models does not pay for the workshop's memory.
    from sanderling.workshop.learning.options import LearningOptions, parse_loss
    from sanderling.workshop.learning.prepare import prepare
    from sanderling.workshop.options import BuildOptions, parse_input

    options = BuildOptions(
        source=case.source,
        output=output,
        weights=case.weights,
        factory_arguments=dict(case.arguments),
        inputs=tuple(parse_input(text) for text in case.inputs),
        calibration=calibration,
        preprocess=case.preprocess,
        labels=str(labels) if labels else None,
        threads=1,
        repeats=1,
    )
    manifest: Manifest = prepare(options, LearningOptions(parse_loss(case.loss), trainable, optimizers)).manifest
    assert manifest.learning is not None
    return manifest.learning


def random_batch(spec: LearningSpec, rows: int, seed: int = 0) -> dict[str, Array]:
    """Inputs and ``label`` that a task takes."""
    generator = np.random.default_rng(seed)
    feeds = random_feeds(spec.inputs, batch=rows, seed=seed)
    if {"attention_mask", "token_type_ids"} <= feeds.keys():
        feeds["attention_mask"] = np.ones_like(feeds["attention_mask"])
        feeds["token_type_ids"] = np.zeros_like(feeds["token_type_ids"])
    shape = (rows, *(size for size in spec.label.shape[1:] if isinstance(size, int)))
    return {**feeds, "label": generator.integers(0, spec.classes or 2, shape)}


def mlp() -> nn.Module:
    """Three linear layers with GELU and LayerNorm, seeded."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    ).eval()


def picture_classifier() -> nn.Module:
    """MobileNetV3-Large with a new last layer, as a task begins; in eval mode."""
    model = mobilenet_v3_large()
    assert isinstance(model, MobileNetV3)
    torch.manual_seed(0)
    model.classifier[3] = nn.Linear(LARGE.head_channels, PICTURE_CLASSES)
    return model.eval()


class TextClassifier(nn.Module):
    """MiniLM's embedding of a text, and a linear layer on it."""

    def __init__(self, encoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = nn.Linear(HIDDEN, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Map token ids, mask and segments (N, S) to logits (N, classes); embeddings of length 1 are scaled."""
        logits: Tensor = self.classifier(self.encoder(input_ids, attention_mask, token_type_ids) * HIDDEN**0.5)
        return logits


def text_classifier(classes: int = TEXT_CLASSES) -> nn.Module:
    """MiniLM with its trained weights, and a new last layer; in eval mode."""
    from safetensors.torch import load_file

    encoder = minilm()
    assert isinstance(encoder, MiniLm)
    encoder.load_state_dict(load_file(minilm_file()))
    torch.manual_seed(0)
    return TextClassifier(encoder, classes).eval()


class Scores(nn.Module):
    """A language model that returns its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        """Map token ids (N, S) to logits (N, S, vocabulary)."""
        logits: Tensor = self.model(input_ids, use_cache=False).logits
        return logits


def llama() -> nn.Module:
    """Three layers of Llama with two heads of keys for four of queries, seeded."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        max_position_embeddings=64,
        use_cache=False,
    )
    return Scores(LlamaForCausalLM(config)).eval()
