"""ResNet-18 in torchvision's parameter layout, with seeded random weights that behave."""

import torch
from torch import Tensor, nn

from benchmarks.zoo.random_weights import (
    CALIBRATION_IMAGES,
    CALIBRATION_SIZE_PX,
    draw_natural_noise,
    draw_weights,
    settle_batch_norms,
    settle_outputs,
)

STAGE_CHANNELS = (64, 128, 256, 512)


def resnet18(num_classes: int = 1000, seed: int = 0) -> nn.Module:
    """Build ResNet-18 with random weights and settled BatchNorm statistics, in eval mode.

    The same ``seed`` gives the same weights; torch's global generator is left as it was.
    Feed it pictures or ``draw_natural_noise``: white noise drives activations and logits
    several times beyond the range its statistics were settled on.

    Args:
        num_classes: width of the last layer.
        seed: of the weights and of the picture-like noise that settles the statistics.

    Returns:
        Module from float32 (N, 3, 224, 224), zero mean and unit variance, to float32
        logits (N, num_classes).

    Source: He et al. 2015, "Deep Residual Learning", table 1; key names as in torchvision.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = ResNet18(num_classes)
        draw_weights(model)
        images = draw_natural_noise(CALIBRATION_IMAGES, CALIBRATION_SIZE_PX, seed=seed)
        settle_batch_norms(model, images, model.embed)
        settle_outputs(model.fc, model(images))
    return model.eval()


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around an identity, or around a 1x1 convolution where shapes change."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.downsample: nn.Module | None = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H / stride, W / stride)."""
        y: Tensor = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        shortcut: Tensor = x if self.downsample is None else self.downsample(x)
        out: Tensor = self.relu(y + shortcut)
        return out


class ResNet18(nn.Module):
    """Stem, four stages of two blocks, pooling and ``fc``, as torchvision names them."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(64, STAGE_CHANNELS[0], stride=1)
        self.layer2 = _stage(STAGE_CHANNELS[0], STAGE_CHANNELS[1], stride=2)
        self.layer3 = _stage(STAGE_CHANNELS[1], STAGE_CHANNELS[2], stride=2)
        self.layer4 = _stage(STAGE_CHANNELS[2], STAGE_CHANNELS[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(STAGE_CHANNELS[3], num_classes)

    def embed(self, x: Tensor) -> Tensor:
        """Compute the (N, 512) features that ``fc`` classifies."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        pooled: Tensor = self.avgpool(x)
        return pooled.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (N, 3, H, W) to logits (N, num_classes)."""
        logits: Tensor = self.fc(self.embed(x))
        return logits


def _stage(in_channels: int, out_channels: int, *, stride: int) -> nn.Sequential:
    return nn.Sequential(
        BasicBlock(in_channels, out_channels, stride=stride),
        BasicBlock(out_channels, out_channels, stride=1),
    )
