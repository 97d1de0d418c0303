"""A detector shaped like YOLOv5s (release 6), with seeded random weights that behave.

Written from the published architecture: CSP blocks, spatial pyramid pooling, a path aggregation neck, three heads.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.random_weights import draw_mixed_noise, draw_weights, settle_batch_norms, settle_outputs

STRIDES = (8, 16, 32)
ANCHORS_PX = (
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)
NUM_CLASSES = 80
COLUMNS = NUM_CLASSES + 5  # x, y, width, height, objectness, classes
CALIBRATION_IMAGES = 8
CALIBRATION_SIZE_PX = 320
_OBJECTNESS_PRIOR = 8 / (640 / 32) ** 2  # about eight objects a picture
_CLASS_PRIOR = 0.6 / NUM_CLASSES
_HEAD_STD = 1.5


def yolov5s(size_px: int = 320, seed: int = 0) -> nn.Module:
    """Build the detector with random weights and settled BatchNorm statistics, in eval mode.

    The same ``seed`` gives the same weights whatever the size; torch's global generator is left as it was.

    Args:
        size_px: side of the square input, a multiple of 32.
        seed: of the weights and of the picture-like noise that settles the statistics.

    Returns:
        Module of 7,235,389 parameters from float32 (N, 3, size_px, size_px) to decoded float32 boxes
        (N, 63 * (size_px / 32) ** 2, 85): centre, width and height in pixels, objectness, 80 class scores in [0, 1].

    Source: architecture of YOLOv5s v6.0 as published; Wang et al. 2020 (CSPNet), Liu et al. 2018 (PANet).
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = Yolov5s()
        draw_weights(model)
        images = draw_mixed_noise(CALIBRATION_IMAGES, CALIBRATION_SIZE_PX, seed=seed)
        settle_batch_norms(model, images, model.embed)
        _settle_heads(model, images)
        model.lay_grids(size_px)
    return model.eval()


class ConvBnSilu(nn.Sequential):
    """Convolution, BatchNorm and SiLU, padded so that stride 1 keeps the size."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int = 1, stride: int = 1, padding: int | None = None
    ) -> None:
        super().__init__(
            nn.Conv2d(
                in_channels,
                out_channels,
                kernel,
                stride,
                padding=kernel // 2 if padding is None else padding,
                bias=False,
            ),
            nn.BatchNorm2d(out_channels, eps=1e-3, momentum=0.03),
            nn.SiLU(),
        )


class Bottleneck(nn.Module):
    """1x1 then 3x3 convolution; the input is added in the backbone, not in the neck."""

    def __init__(self, channels: int, *, adds_input: bool) -> None:
        super().__init__()
        self.adds_input = adds_input
        self.reduce = ConvBnSilu(channels, channels)
        self.filter = ConvBnSilu(channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels, H, W) to the same shape."""
        y: Tensor = self.filter(self.reduce(x))
        return x + y if self.adds_input else y


class CspBlock(nn.Module):
    """C3: half of the channels pass the bottlenecks, half go past them, and a 1x1 convolution joins both."""

    def __init__(self, in_channels: int, out_channels: int, repeats: int, *, adds_input: bool = True) -> None:
        super().__init__()
        half = out_channels // 2
        self.through = ConvBnSilu(in_channels, half)
        self.past = ConvBnSilu(in_channels, half)
        self.bottlenecks = nn.Sequential(*(Bottleneck(half, adds_input=adds_input) for _ in range(repeats)))
        self.join = ConvBnSilu(2 * half, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H, W)."""
        y: Tensor = self.join(torch.cat([self.bottlenecks(self.through(x)), self.past(x)], 1))
        return y


class FastPyramidPooling(nn.Module):
    """SPPF: three max-poolings in a row see 5, 9 and 13 pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce = ConvBnSilu(channels, channels // 2)
        self.pool = nn.MaxPool2d(5, stride=1, padding=2)
        self.join = ConvBnSilu(channels * 2, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels, H, W) to the same shape."""
        seen = [self.reduce(x)]
        for _ in range(3):
            seen.append(self.pool(seen[-1]))
        y: Tensor = self.join(torch.cat(seen, 1))
        return y


class Yolov5s(nn.Module):
    """Backbone, neck, heads and the decoding of boxes; width 0.5, depth 0.33."""

    def __init__(self) -> None:
        super().__init__()
        self.to_stride_8 = nn.Sequential(
            ConvBnSilu(3, 32, 6, 2, padding=2),
            ConvBnSilu(32, 64, 3, 2),
            CspBlock(64, 64, 1),
            ConvBnSilu(64, 128, 3, 2),
            CspBlock(128, 128, 2),
        )
        self.to_stride_16 = nn.Sequential(ConvBnSilu(128, 256, 3, 2), CspBlock(256, 256, 3))
        self.to_stride_32 = nn.Sequential(
            ConvBnSilu(256, 512, 3, 2), CspBlock(512, 512, 1), FastPyramidPooling(512), ConvBnSilu(512, 256)
        )
        self.up_16 = nn.Sequential(CspBlock(512, 256, 1, adds_input=False), ConvBnSilu(256, 128))
        self.up_8 = CspBlock(256, 128, 1, adds_input=False)
        self.shrink_8 = ConvBnSilu(128, 128, 3, 2)
        self.down_16 = CspBlock(256, 256, 1, adds_input=False)
        self.shrink_16 = ConvBnSilu(256, 256, 3, 2)
        self.down_32 = CspBlock(512, 512, 1, adds_input=False)
        self.heads = nn.ModuleList(nn.Conv2d(channels, 3 * COLUMNS, 1) for channels in (128, 256, 512))

    def lay_grids(self, size_px: int) -> None:
        """Note where the cells of each level lie and how large its anchors are; they are no parameters."""
        for level, (stride, anchors) in enumerate(zip(STRIDES, ANCHORS_PX, strict=True)):
            side = torch.arange(size_px // stride, dtype=torch.float32)
            rows, columns = torch.meshgrid(side, side, indexing="ij")
            cells = torch.stack([columns, rows], 2) - 0.5  # (H, W, 2)
            sizes = torch.tensor(anchors, dtype=torch.float32).view(1, 3, 1, 1, 2)
            self.register_buffer(f"cells_{level}", cells.view(1, 1, *cells.shape), persistent=False)
            self.register_buffer(f"anchors_{level}", sizes, persistent=False)

    def embed(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute features of strides 8, 16 and 32 with 128, 256 and 512 channels."""
        fine = self.to_stride_8(x)
        middle = self.to_stride_16(fine)
        coarse = self.to_stride_32(middle)
        between = self.up_16(torch.cat([_twice_as_large(coarse), middle], 1))
        out_8 = self.up_8(torch.cat([_twice_as_large(between), fine], 1))
        out_16 = self.down_16(torch.cat([self.shrink_8(out_8), between], 1))
        out_32 = self.down_32(torch.cat([self.shrink_16(out_16), coarse], 1))
        return out_8, out_16, out_32

    def forward(self, x: Tensor) -> Tensor:
        """Map images (N, 3, H, W) to boxes (N, anchors, 85)."""
        levels = zip(self.heads, self.embed(x), strict=True)
        return torch.cat([self._decode(level, head(features)) for level, (head, features) in enumerate(levels)], 1)

    def _decode(self, level: int, raw: Tensor) -> Tensor:
        """Turn a head's output (N, 255, H, W) into boxes (N, 3 * H * W, 85)."""
        height, width = raw.shape[2:]
        scores = raw.view(-1, 3, COLUMNS, height, width).permute(0, 1, 3, 4, 2).sigmoid()  # (N, 3, H, W, 85)
        doubled, others = scores[..., :4] * 2, scores[..., 4:]
        centers = (doubled[..., :2] + self.get_buffer(f"cells_{level}")) * STRIDES[level]
        sizes = doubled[..., 2:] ** 2 * self.get_buffer(f"anchors_{level}")
        return torch.cat([centers, sizes, others], 4).view(-1, 3 * height * width, COLUMNS)


def _twice_as_large(x: Tensor) -> Tensor:
    return functional.interpolate(x, scale_factor=2.0, mode="nearest")


def _settle_heads(model: Yolov5s, images: Tensor) -> None:
    """Scale the heads, and start objectness and classes from their priors, as detectors are trained from."""
    for head, features in zip(model.heads, model.embed(images), strict=True):
        assert isinstance(head, nn.Conv2d)
        settle_outputs(head, head(features), std=_HEAD_STD)
        assert head.bias is not None
        priors = head.bias.view(3, COLUMNS)
        priors[:, 4] += _logit(_OBJECTNESS_PRIOR)
        priors[:, 5:] += _logit(_CLASS_PRIOR)


def _logit(probability: float) -> float:
    return math.log(probability / (1 - probability))
