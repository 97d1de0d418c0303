"""Smooth coloured pictures, and a classifier that tells their colours apart."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper
from PIL import Image

from tests.models import make_model, tensor

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)


def smooth_pictures(count: int = 48, *, size: int = 32, seed: int = 0) -> np.ndarray:
    """uint8, shape (count, size, size, 3): patches of colour, each channel from 0 to 255 somewhere."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (count, 5, 5, 3), np.uint8)
    coarse[:, 0, 0], coarse[:, 4, 4] = 0, 255
    resized = [Image.fromarray(picture).resize((size, size), Image.Resampling.BILINEAR) for picture in coarse]
    return np.stack([np.asarray(picture) for picture in resized])


def imagenet(pictures: np.ndarray) -> np.ndarray:
    """float32, shape (N, 3, H, W), normalised as for ImageNet."""
    values = (pictures.astype(np.float32) / np.float32(255) - MEAN) / STD
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2))


def tinted_pictures(count: int = 60, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pictures whose red, green or blue (labels 0, 1, 2) is the strongest channel on average."""
    labels = np.arange(count) % 3
    pictures = smooth_pictures(count, seed=seed).astype(np.float32)
    for index, label in enumerate(labels):
        others = [channel for channel in range(3) if channel != label]
        pictures[index][..., others] *= 0.6
    return pictures.astype(np.uint8), labels.astype(np.int64)


def color_classifier(*, size: int = 32) -> onnx.ModelProto:
    """``image`` float32 (N, 3, size, size), normalised as for ImageNet, to ``scores`` (N, 3): the mean level of each.

    Right on ``tinted_pictures``.
    """
    weights = {
        "kernel": np.diag(STD).reshape(3, 3, 1, 1).astype(np.float32),
        "bias": MEAN.copy(),
        "strength": (40 * np.eye(3)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["image", "kernel", "bias"], ["level"], "undo"),
        helper.make_node("GlobalAveragePool", ["level"], ["pooled"], "pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"),
        helper.make_node("MatMul", ["flat", "strength"], ["scores"], "decide"),
    ]
    return make_model(nodes, [tensor("image", ["N", 3, size, size])], [tensor("scores", ["N", 3])], weights)
