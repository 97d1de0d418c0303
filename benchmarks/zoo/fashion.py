"""Two small networks for Fashion-MNIST: one plain, one with MobileNet's building blocks."""

from torch import nn

from benchmarks.zoo.mobilenet_v2 import InvertedResidual, conv_bn_relu6

NUM_CLASSES = 10


def fashion_cnn() -> nn.Module:
    """Build five convolutions with BatchNorm and ReLU, untrained, in eval mode.

    Returns:
        Module of 107,962 parameters from float32 (N, 1, 28, 28), normalised as
        ``fashion_data.normalize`` does, to float32 logits (N, 10).
    """
    return nn.Sequential(
        _conv_bn_relu(1, 16),
        _conv_bn_relu(16, 32, stride=2),  # (N, 32, 14, 14)
        _conv_bn_relu(32, 32),
        _conv_bn_relu(32, 64, stride=2),  # (N, 64, 7, 7)
        _conv_bn_relu(64, 128),
        *_classifier(128),
    ).eval()


def fashion_depthwise() -> nn.Module:
    """Build six inverted residuals with ReLU6, untrained, in eval mode.

    Returns:
        Module of 83,530 parameters; input and output as for ``fashion_cnn``.
    """
    return nn.Sequential(
        conv_bn_relu6(1, 16),
        InvertedResidual(16, 24, stride=2, expansion=2),  # (N, 24, 14, 14)
        InvertedResidual(24, 24, stride=1, expansion=4),
        InvertedResidual(24, 40, stride=2, expansion=4),  # (N, 40, 7, 7)
        InvertedResidual(40, 40, stride=1, expansion=4),
        InvertedResidual(40, 40, stride=1, expansion=4),
        InvertedResidual(40, 64, stride=1, expansion=4),
        conv_bn_relu6(64, 256, kernel=1),
        *_classifier(256),
    ).eval()


def _conv_bn_relu(in_channels: int, out_channels: int, *, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
    )


def _classifier(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, NUM_CLASSES)]
