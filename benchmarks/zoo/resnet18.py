"""ResNet-18 in torchvision's parameter layout, with seeded random weights that behave."""

import torch
from torch import Tensor, nn
from torch.nn import functional

STAGE_CHANNELS = (64, 128, 256, 512)
CALIBRATION_IMAGES = 32
CALIBRATION_BATCH_SIZE = 8
CALIBRATION_SIZE_PX = 128
NOISE_GRIDS = (4, 16, 64, 128)  # cells along a side, coarse to fine
LOGIT_STD = 3.0  # about what a trained ImageNet classifier puts out


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
        _draw_weights(model)
        images = draw_natural_noise(CALIBRATION_IMAGES, CALIBRATION_SIZE_PX, seed=seed)
        _settle_batch_norms(model, images)
        _settle_classifier(model, images)
    return model.eval()


def draw_natural_noise(count: int, size_px: int, *, seed: int) -> Tensor:
    """Draw noise that is strongest at low frequencies, as pictures are.

    Returns:
        float32, shape (count, 3, size_px, size_px), zero mean and unit variance.
    """
    generator = torch.Generator().manual_seed(seed)
    images = torch.zeros(count, 3, size_px, size_px)
    for grid in NOISE_GRIDS:
        coarse = torch.randn(count, 3, grid, grid, generator=generator)
        images += functional.interpolate(coarse, (size_px, size_px), mode="bilinear") / grid**0.5
    return (images - images.mean()) / images.std()


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


def _draw_weights(model: ResNet18) -> None:
    """Draw He-normal convolutions, and unequal BatchNorm gains as training leaves them."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            # Equal gains would make per-channel quantisation look needless.
            nn.init.uniform_(module.weight, 0.4, 1.2)
            nn.init.normal_(module.bias, 0.0, 0.2)


def _settle_batch_norms(model: ResNet18, images: Tensor) -> None:
    """Set every running mean and variance to its average over ``images``."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    usual_momentum = norms[0].momentum
    for norm in norms:
        norm.momentum = None  # torch then keeps the plain average of all batches
    model.train()
    for batch in torch.split(images, CALIBRATION_BATCH_SIZE):
        model.embed(batch)
    model.eval()
    for norm in norms:
        norm.momentum = usual_momentum


def _settle_classifier(model: ResNet18, images: Tensor) -> None:
    """Centre and scale the logits, else an untrained net answers one class for every picture."""
    logits = model(images)
    scale = LOGIT_STD / (logits - logits.mean(0)).std()
    model.fc.bias.sub_(logits.mean(0)).mul_(scale)
    model.fc.weight.mul_(scale)
