"""MobileNetV3-Large and -Small in torchvision's parameter layout, with seeded random weights that behave."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.zoo.random_weights import (
    CALIBRATION_IMAGES,
    CALIBRATION_SIZE_PX,
    draw_mixed_noise,
    draw_natural_noise,
    draw_weights,
    settle_batch_norms,
    settle_outputs,
)


class Shape(NamedTuple):
    """A network's blocks, and the channels after them.

    Attributes:
        blocks: kernel, expanded channels, output channels, squeeze-and-excitation, hard-swish, stride of each.
    """

    blocks: tuple[tuple[int, int, int, bool, bool, int], ...]
    last_channels: int
    head_channels: int


_LARGE_BLOCKS = (
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)
_SMALL_BLOCKS = (
    (3, 16, 16, True, False, 2),
    (3, 72, 24, False, False, 2),
    (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1),
    (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1),
    (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1),
    (5, 576, 96, True, True, 1),
)
LARGE = Shape(_LARGE_BLOCKS, last_channels=960, head_channels=1280)
SMALL = Shape(_SMALL_BLOCKS, last_channels=576, head_channels=1024)
STEM_CHANNELS = 16
NUM_CLASSES = 1000


def mobilenet_v3_large(seed: int = 0) -> nn.Module:
    """Build MobileNetV3-Large with random weights and settled BatchNorm statistics, in eval mode.

    The same ``seed`` gives the same weights; torch's global generator is left as it was.

    Returns:
        Module of 5,483,032 parameters from float32 (N, 3, 224, 224), zero mean and unit variance,
        to float32 logits (N, 1000).

    Source: Howard et al. 2019, "Searching for MobileNetV3", table 1; key names as in torchvision.
    """
    return _settled(LARGE, seed)


def mobilenet_v3_small(seed: int = 0) -> nn.Module:
    """The same for MobileNetV3-Small, of 2,542,856 parameters.

    Source: Howard et al. 2019, "Searching for MobileNetV3", table 2; key names as in torchvision.
    """
    return _settled(SMALL, seed)


def _settled(shape: Shape, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = MobileNetV3(shape)
        draw_weights(model)
        settle_batch_norms(model, draw_mixed_noise(CALIBRATION_IMAGES, CALIBRATION_SIZE_PX, seed=seed), model.embed)
        last = model.classifier[3]
        assert isinstance(last, nn.Linear)
        settle_outputs(last, model(draw_natural_noise(CALIBRATION_IMAGES, CALIBRATION_SIZE_PX, seed=seed)))
    return model.eval()


class SqueezeExcitation(nn.Module):
    """Scale each channel by what a bottleneck makes of all channels' means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = _nearest_eighth(channels // 4)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.activation = nn.ReLU()
        self.scale_activation = nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels, H, W) to the same shape."""
        scale: Tensor = self.scale_activation(self.fc2(self.activation(self.fc1(self.avgpool(x)))))
        return scale * x


class InvertedResidual(nn.Module):
    """Expand by 1x1, filter depthwise, excite, project by 1x1; add the input where shapes allow."""

    def __init__(
        self, in_channels: int, hidden: int, out_channels: int, *, kernel: int, excite: bool, swish: bool, stride: int
    ) -> None:
        super().__init__()
        activation = nn.Hardswish if swish else nn.ReLU
        # Without expansion torchvision leaves the first convolution out, which shifts the key names.
        expand = [] if hidden == in_channels else [_conv_bn(in_channels, hidden, activation, kernel=1)]
        self.adds_input = stride == 1 and in_channels == out_channels
        self.block = nn.Sequential(
            *expand,
            _conv_bn(hidden, hidden, activation, kernel=kernel, stride=stride, groups=hidden),
            *([SqueezeExcitation(hidden)] if excite else []),
            _conv_bn(hidden, out_channels, None, kernel=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H / stride, W / stride)."""
        y: Tensor = self.block(x)
        return x + y if self.adds_input else y


class MobileNetV3(nn.Module):
    """``features`` then ``classifier``, as torchvision names them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        layers: list[nn.Module] = [_conv_bn(3, STEM_CHANNELS, nn.Hardswish, kernel=3, stride=2)]
        channels = STEM_CHANNELS
        for kernel, hidden, out_channels, excite, swish, stride in shape.blocks:
            layers.append(
                InvertedResidual(
                    channels, hidden, out_channels, kernel=kernel, excite=excite, swish=swish, stride=stride
                )
            )
            channels = out_channels
        layers.append(_conv_bn(channels, shape.last_channels, nn.Hardswish, kernel=1))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(shape.last_channels, shape.head_channels),
            nn.Hardswish(),
            nn.Dropout(0.2),
            nn.Linear(shape.head_channels, NUM_CLASSES),
        )

    def embed(self, x: Tensor) -> Tensor:
        """Compute the features (N, last channels) that ``classifier`` reads."""
        pooled: Tensor = self.avgpool(self.features(x))
        return pooled.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (N, 3, H, W) to logits (N, 1000)."""
        logits: Tensor = self.classifier(self.embed(x))
        return logits


def _conv_bn(
    in_channels: int,
    out_channels: int,
    activation: type[nn.Module] | None,
    *,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out_channels, eps=0.001, momentum=0.01),
        *([activation()] if activation else []),
    )


def _nearest_eighth(channels: int) -> int:
    """The nearest multiple of 8, and at least 90 % of ``channels``."""
    rounded = max(8, (channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded
