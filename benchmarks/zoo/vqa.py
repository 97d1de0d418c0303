"""A small network that answers questions about pictures, in three parts: picture, question, and what joins them."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from benchmarks.zoo.easy_vqa_data import LONGEST, MEAN, SIZE_PX, STD, read_answers, words
from sanderling.workshop.multimodal import Branch, BranchedModel

FEATURES = 128
WEIGHTS = Path(__file__).parent / "weights" / "vqa.safetensors"


class PictureEncoder(nn.Module):
    """Float32 (N, 3, 64, 64), normalised, to features (N, 128): 26 million multiply–accumulates a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _conv_bn_relu(3, 24),
            _conv_bn_relu(24, 48, stride=2),  # (N, 48, 32, 32)
            _conv_bn_relu(48, 64, stride=2),
            _conv_bn_relu(64, 96, stride=2),
            _conv_bn_relu(96, FEATURES, stride=2),  # (N, 128, 4, 4)
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(FEATURES, FEATURES),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """Compute the features of pictures."""
        features: Tensor = self.layers(pixels)
        return features


class QuestionEncoder(nn.Module):
    """Int64 ids (N, 16), filled up with 0, to features (N, 128): each word with its neighbours, then their mean."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 64)
        self.neighbours = nn.Conv1d(64, 96, 3, padding=1)
        self.head = nn.Linear(96, FEATURES)

    def forward(self, ids: Tensor) -> Tensor:
        """Compute the features of questions."""
        mask = (ids != 0).to(torch.float32).unsqueeze(1)  # (N, 1, 16)
        embedded = self.embedding(ids).transpose(1, 2) * mask  # (N, 64, 16)
        seen = torch.relu(self.neighbours(embedded)) * mask
        mean = seen.sum(2) / mask.sum(2).clamp(min=1.0)
        features: Tensor = self.head(mean)
        return features


class Fusion(nn.Module):
    """Features of a picture and of a question, (N, 128) each, to scores of the answers."""

    def __init__(self, answers: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(3 * FEATURES, 192)
        self.head = nn.Linear(192, answers)

    def forward(self, picture: Tensor, question: Tensor) -> Tensor:
        """Compute scores, float32 (N, answers)."""
        joined = torch.cat([picture, question, picture * question], 1)
        scores: Tensor = self.head(torch.relu(self.hidden(joined)))
        return scores


class VqaNet(nn.Module):
    """The three parts as one module, as they are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.vision = PictureEncoder()
        self.text = QuestionEncoder(len(words()))
        self.fusion = Fusion(len(read_answers()))

    def forward(self, pixels: Tensor, ids: Tensor) -> Tensor:
        """Answer a question about each picture: float32 (N, answers)."""
        scores: Tensor = self.fusion(self.vision(pixels), self.text(ids))
        return scores


def vqa_net() -> VqaNet:
    """Build the network, untrained, in eval mode.

    Returns:
        Module from float32 (N, 3, 64, 64), as ``easy_vqa_data.normalize`` makes it, and int64 (N, 16) to scores
        (N, 13).
    """
    return VqaNet().eval()


def _conv_bn_relu(in_channels: int, out_channels: int, *, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
    )


def vqa_branches(*, trained: bool = True) -> BranchedModel:
    """The network as three branches, with its trained weights.

    Args:
        trained: load ``weights/vqa.safetensors``; random weights otherwise.
    """
    net = vqa_net()
    if trained:
        net.load_state_dict(load_file(WEIGHTS))
    preprocess = {"width": SIZE_PX, "height": SIZE_PX, "resize": "stretch", "mean": [MEAN] * 3, "std": [STD] * 3}
    return BranchedModel(
        branches=(
            Branch(
                "vision", "picture", net.vision, (f"pixels=1,3,{SIZE_PX},{SIZE_PX}",), preprocess=json.dumps(preprocess)
            ),
            Branch("text", "text", net.text, (f"ids=1,{LONGEST}:int64",), tokenizer=words(), lower=True),
            Branch(
                "fusion",
                "fusion",
                net.fusion,
                (f"picture=1,{FEATURES}", f"question=1,{FEATURES}"),
                takes={"picture": "vision", "question": "text"},
            ),
        ),
        answers=read_answers(),
    )
