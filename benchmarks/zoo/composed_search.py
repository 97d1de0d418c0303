"""A picture search that is composed, not trained: ImageNet classes stand between pictures and texts.

A picture's features are the mean of its likely classes' names as MiniLM embeds them, weighed by MobileNetV2's
probabilities; a text's features are its own embedding. Both are trained weights, but not on pairs of pictures and texts
as CLIP's are: what has no class is not found.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from benchmarks.zoo.minilm import minilm, minilm_file
from benchmarks.zoo.mobilenet_v2 import mobilenet_v2, mobilenet_v2_weights
from sanderling.model.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from sanderling.run.text.tokenizer import read_tokenizer
from sanderling.workshop.material import read_labels
from sanderling.workshop.multimodal import Branch, BranchedModel

TOKENS = 32
_CLASSES = 1000
_TOGETHER = 100
_SHARPNESS = 2.0  # the likeliest classes count more than their probability


class PictureTower(nn.Module):
    """Float32 (N, 3, 224, 224) to (N, 384): probabilities of classes times the embeddings of their names."""

    labels: Tensor

    def __init__(self, classifier: nn.Module, labels: Tensor) -> None:
        super().__init__()
        self.classifier = classifier
        self.register_buffer("labels", labels)

    def forward(self, pixels: Tensor) -> Tensor:
        """Compute the features of pictures."""
        shares = (self.classifier(pixels) * _SHARPNESS).softmax(1)
        features: Tensor = shares @ self.labels
        return features


def composed_branches() -> BranchedModel:
    """Both towers with trained weights from installed packages.

    Raises:
        FileNotFoundError: a package with weights is missing.
    """
    text = minilm()
    text.load_state_dict(load_file(minilm_file()), strict=False)
    classifier = mobilenet_v2()
    classifier.load_state_dict(torch.load(mobilenet_v2_weights(), weights_only=True))
    tokenizer = minilm_file("tokenizer.json")
    picture = PictureTower(classifier, embed_labels(text, tokenizer)).eval()
    preprocess = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, "resize_to": 256}
    names = ("input_ids", "attention_mask", "token_type_ids")
    return BranchedModel(
        branches=(
            Branch("picture", "picture", picture, ("pixels=1,3,224,224",), preprocess=json.dumps(preprocess)),
            Branch("text", "text", text, [f"{name}=1,{TOKENS}:int64" for name in names], tokenizer=tokenizer),
        )
    )


@torch.no_grad()
def embed_labels(text: nn.Module, tokenizer: Path) -> Tensor:
    """Embeddings of the names of ImageNet's classes, float32 (1000, 384), each of length 1."""
    encode = read_tokenizer(tokenizer)
    encode.enable_padding()
    rows = []
    for labels in _batched(read_labels("imagenet", _CLASSES), _TOGETHER):
        found = encode.encode_batch([f"a photo of a {label}" for label in labels])
        ids, mask = (torch.tensor([getattr(each, name) for each in found]) for name in ("ids", "attention_mask"))
        rows.append(text(ids, mask, torch.zeros_like(ids)))
    return torch.cat(rows)


def _batched(labels: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Some labels at a time."""
    for start in range(0, len(labels), size):
        yield labels[start : start + size]
