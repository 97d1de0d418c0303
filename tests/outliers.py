"""A small classifier with one layer that eight bits cannot hold, and data for it."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tests.models import make_model, tensor

FEATURES = 8
CLASSES = 4


def outlier_classifier(*, outlier: float = 3000.0, layers: int = 5, batch: int | str = "N") -> onnx.ModelProto:
    """``image`` (batch, 3, 8, 8) to ``scores`` (batch, 4) by convolutions and a Gemm.

    One channel between the convolutions ``conv_2`` and ``conv_3`` is ``outlier`` times as large as the others, so
    that eight bits over all channels leave nothing of these. A Clip between them keeps the channels from being evened.
    """
    generator = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (generator.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    weights = {"least": np.float32(0), "most": np.float32(1e9)}
    nodes, source, channels = [], "image", 3
    for index in range(layers):
        weights[f"w{index}"] = normal(FEATURES, channels, 3, 3) * 1.5
        names = [source, f"w{index}"]
        stride = 2 if index == layers - 1 else 1
        nodes += [
            helper.make_node("Conv", names, [f"c{index}"], f"conv_{index}", pads=[1] * 4, strides=[stride] * 2),
            helper.make_node("Clip", [f"c{index}", "least", "most"], [f"r{index}"], f"clip_{index}"),
        ]
        source, channels = f"r{index}", FEATURES
    weights["w2"][0] *= outlier
    weights["w3"][:, 0] /= outlier
    weights["fc"] = normal(CLASSES, FEATURES * 16)
    nodes += [
        helper.make_node("Flatten", [source], ["flat"], "flatten"),
        helper.make_node("Gemm", ["flat", "fc"], ["scores"], "fc", transB=1),
    ]
    return make_model(nodes, [tensor("image", [batch, 3, 8, 8])], [tensor("scores", [batch, CLASSES])], weights)


def images(count: int, *, seed: int) -> np.ndarray:
    """float32, shape (count, 3, 8, 8)."""
    return np.random.default_rng(seed).standard_normal((count, 3, 8, 8)).astype(np.float32)
