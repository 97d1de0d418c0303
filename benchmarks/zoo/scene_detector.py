"""A small anchor-free detector with separate box and class branches, decoded in the graph as YOLOv8's raw output is."""

import torch
from torch import Tensor, nn
from torch.nn import functional

NUM_CLASSES = 10
STRIDES = (8, 16)
CHANNELS = (16, 24, 48, 96)  # after strides 2, 4, 8 and 16
HEAD_CHANNELS = 32
DISTANCE_BINS = 8  # a distance is 0 to 7 strides
PRIOR = 0.01  # of a class, at an untrained anchor


def build() -> nn.Module:
    """Build the detector for scenes of ten classes, untrained, in eval mode.

    Returns:
        Module from float32 (N, 3, H, W), RGB in [0, 1], H and W multiples of 16 (160 in training), to float32
        (N, 4 + 10, anchors): centre x, centre y, width and height in pixels of the input, then the classes' scores
        in [0, 1]. The anchors are the cells at stride 8, row by row, then those at stride 16.
    """
    return SceneDetector().eval()


def conv_bn_silu(in_channels: int, out_channels: int, *, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """Chain convolution, BatchNorm and SiLU, padded so that stride 1 keeps the size."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.SiLU(),
    )


class SplitBlock(nn.Module):
    """Split by a 1x1 convolution, refine one half by two 3x3 with a shortcut, join all parts by a 1x1."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        half = out_channels // 2
        self.enter = conv_bn_silu(in_channels, out_channels, kernel=1)
        self.refine = nn.Sequential(conv_bn_silu(half, half), conv_bn_silu(half, half))
        self.leave = conv_bn_silu(out_channels + half, out_channels, kernel=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H, W)."""
        y = self.enter(x)
        half = y.chunk(2, dim=1)[1]
        joined: Tensor = self.leave(torch.cat([y, half + self.refine(half)], dim=1))
        return joined


class PyramidPooling(nn.Module):
    """Join max-pooled pictures of 5, 9 and 13 cells with the one they come from."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter = conv_bn_silu(channels, channels // 2, kernel=1)
        self.leave = conv_bn_silu(channels * 2, channels, kernel=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels, H, W) to the same shape."""
        parts = [self.enter(x)]
        for _ in range(3):
            parts.append(functional.max_pool2d(parts[-1], 5, 1, 2))
        joined: Tensor = self.leave(torch.cat(parts, dim=1))
        return joined


def _branch(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        conv_bn_silu(in_channels, HEAD_CHANNELS),
        conv_bn_silu(HEAD_CHANNELS, HEAD_CHANNELS),
        nn.Conv2d(HEAD_CHANNELS, out_channels, 1),
    )


class SceneDetector(nn.Module):
    """Backbone to stride 16, one way up and one way down again, and two branches at each of two strides.

    Source: feature pyramid, Lin et al. 2017 and Liu et al. 2018; distances to the box's sides, Tian et al. 2019
    ("FCOS"); distances as distributions, Li et al. 2020 ("Generalized Focal Loss").
    """

    def __init__(self) -> None:
        super().__init__()
        stem, quarter, eighth, sixteenth = CHANNELS
        self.to_eighth = nn.Sequential(
            conv_bn_silu(3, stem, stride=2),
            conv_bn_silu(stem, quarter, stride=2),
            SplitBlock(quarter, quarter),
            conv_bn_silu(quarter, eighth, stride=2),
            SplitBlock(eighth, eighth),
        )
        self.to_sixteenth = nn.Sequential(
            conv_bn_silu(eighth, sixteenth, stride=2),
            SplitBlock(sixteenth, sixteenth),
            PyramidPooling(sixteenth),
        )
        self.up = SplitBlock(sixteenth + eighth, eighth)
        self.down = conv_bn_silu(eighth, eighth, stride=2)
        self.out = SplitBlock(eighth + sixteenth, sixteenth)
        self.boxes = nn.ModuleList(_branch(channels, 4 * DISTANCE_BINS) for channels in CHANNELS[2:])
        self.classes = nn.ModuleList(_branch(channels, NUM_CLASSES) for channels in CHANNELS[2:])
        for branch in self.classes:
            nn.init.constant_(branch[-1].bias, float(torch.logit(torch.tensor(PRIOR))))  # type: ignore[index]

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, 3, H, W) to (N, 4 + NUM_CLASSES, anchors)."""
        distances, logits, points, strides = self.predict(images)
        left_top, right_bottom = distances_to_pixels(distances, strides).chunk(2, dim=1)
        low, high = points - left_top, points + right_bottom
        return torch.cat([(low + high) / 2, high - low, logits.sigmoid()], dim=1)

    def predict(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute what the losses are about.

        Returns:
            Logits of the distances to left, top, right and bottom (N, 4 * DISTANCE_BINS, anchors); logits of the
            classes (N, NUM_CLASSES, anchors); the anchors' centres (2, anchors) and strides (1, anchors), pixels.
        """
        fine = self.to_eighth(images)
        coarse = self.to_sixteenth(fine)
        fine = self.up(torch.cat([functional.interpolate(coarse, scale_factor=2.0), fine], dim=1))
        coarse = self.out(torch.cat([self.down(fine), coarse], dim=1))
        maps = [fine, coarse]
        distances = [branch(x).flatten(2) for branch, x in zip(self.boxes, maps, strict=True)]
        logits = [branch(x).flatten(2) for branch, x in zip(self.classes, maps, strict=True)]
        points, strides = anchor_points([(int(x.shape[2]), int(x.shape[3])) for x in maps])
        return torch.cat(distances, dim=2), torch.cat(logits, dim=2), points, strides


def anchor_points(sizes: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Centres (2, anchors) and strides (1, anchors) of the cells of maps of ``sizes``, in pixels of the input."""
    points, strides = [], []
    for (height, width), stride in zip(sizes, STRIDES, strict=True):
        y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
        points.append(torch.stack([x.flatten(), y.flatten()]) * stride)
        strides.append(torch.full((1, height * width), float(stride)))
    return torch.cat(points, dim=1), torch.cat(strides, dim=1)


def distances_to_pixels(logits: Tensor, strides: Tensor) -> Tensor:
    """Mean of each distance's distribution: (N, 4 * DISTANCE_BINS, anchors) to pixels (N, 4, anchors)."""
    probabilities = logits.reshape(-1, 4, DISTANCE_BINS, logits.shape[2]).softmax(dim=2)
    steps = torch.arange(DISTANCE_BINS, dtype=logits.dtype).view(1, 1, DISTANCE_BINS, 1)
    distances: Tensor = (probabilities * steps).sum(dim=2) * strides
    return distances
