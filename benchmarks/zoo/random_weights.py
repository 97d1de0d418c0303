"""Random weights that behave: what networks without trained ones need so that activations neither explode nor die."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

CALIBRATION_IMAGES = 32
CALIBRATION_BATCH_SIZE = 8
CALIBRATION_SIZE_PX = 128
NOISE_GRIDS = (4, 16, 64, 128)  # cells along a side, coarse to fine
LOGIT_STD = 3.0  # about what a trained ImageNet classifier puts out


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


def draw_mixed_noise(count: int, size_px: int, *, seed: int) -> Tensor:
    """Draw noise of which every fourth picture is white, for deep nets that white noise would drive out of range.

    Returns:
        float32, shape (count, 3, size_px, size_px), zero mean and unit variance.
    """
    images = draw_natural_noise(count, size_px, seed=seed)
    white = torch.randn(images[::4].shape, generator=torch.Generator().manual_seed(seed))
    images[::4] = white
    return images


def draw_weights(model: nn.Module) -> None:
    """Draw He-normal convolutions, and unequal BatchNorm gains as training leaves them."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            # Equal gains would make per-channel quantisation look needless.
            nn.init.uniform_(module.weight, 0.4, 1.2)
            nn.init.normal_(module.bias, 0.0, 0.2)


def settle_batch_norms(model: nn.Module, images: Tensor, forward: Callable[[Tensor], object]) -> None:
    """Set every running mean and variance to its average over ``images``, and leave ``model`` in eval mode.

    Args:
        model: holds the BatchNorm layers.
        images: float32, shape (N, 3, H, W).
        forward: runs a batch through all of them.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    usual_momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = None  # torch then keeps the plain average of all batches
    model.train()
    for batch in torch.split(images, CALIBRATION_BATCH_SIZE):
        forward(batch)
    model.eval()
    for norm, momentum in zip(norms, usual_momenta, strict=True):
        norm.momentum = momentum


def settle_outputs(layer: nn.Linear | nn.Conv2d, outputs: Tensor, *, std: float = LOGIT_STD) -> None:
    """Centre and scale a last layer, else an untrained net answers one class for every picture.

    Args:
        layer: with a bias; it made ``outputs``.
        outputs: shape (N, C) or (N, C, H, W).
        std: of the outputs afterwards.
    """
    assert layer.bias is not None
    mean = outputs.mean([axis for axis in range(outputs.ndim) if axis != 1], keepdim=True)
    scale = std / (outputs - mean).std()
    layer.bias.sub_(mean.flatten()).mul_(scale)
    layer.weight.mul_(scale)
