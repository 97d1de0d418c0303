"""A package that finds red and green squares of 12 pixels on black, exactly, to test what comes after it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from sanderling.model.detection import family_spec
from sanderling.model.package import Package, rewrite_manifest
from sanderling.model.preprocessing import Preprocessing
from tests.models import make_model, tensor
from tests.unit.run.guard.packages import package_of

SIZE_PX = 64
SQUARE_PX = 12
STRIDE = 4
LABELS = ("red", "green")


def square_detector() -> onnx.ModelProto:
    """``images`` (1, 3, 64, 64) to CenterNet's maps: the mean of a window as heat, constant sizes and offsets."""
    cells = SIZE_PX // STRIDE
    channels = np.zeros((2, 3, 1, 1), np.float32)
    channels[0, 0], channels[1, 1] = 1, 1
    weights = {
        "channels": channels,
        "nothing": np.zeros((2, 2, 1, 1), np.float32),
        "sides": np.full(2, SQUARE_PX / STRIDE, np.float32),
        "halves": np.full(2, 0.5, np.float32),
    }
    pool = {"kernel_shape": [SQUARE_PX] * 2, "strides": [STRIDE] * 2, "pads": [4] * 4, "count_include_pad": 1}
    nodes = [
        helper.make_node("Conv", ["images", "channels"], ["picked"], name="pick"),
        helper.make_node("AveragePool", ["picked"], ["hm"], name="pool", **pool),
        helper.make_node("Conv", ["hm", "nothing", "sides"], ["wh"], name="sizes"),
        helper.make_node("Conv", ["hm", "nothing", "halves"], ["reg"], name="offsets"),
    ]
    maps = [tensor(name, (1, 2, cells, cells)) for name in ("hm", "wh", "reg")]
    return make_model(nodes, [tensor("images", (1, 3, SIZE_PX, SIZE_PX))], maps, weights)


def square_detector_package(folder: Path, *, name: str = "squares", **preprocessing) -> Package:
    """The detector with its preprocessing, by default a letterbox."""
    calls = [{"images": np.zeros((1, 3, SIZE_PX, SIZE_PX), np.float32)}]
    plain = package_of(folder / "plain.sdl", {"fp32": square_detector()}, calls, name=name)
    how = {"resize": "letterbox", "pad": 0, "interpolation": "nearest", **preprocessing}
    manifest = plain.manifest.model_copy(
        update={
            "preprocessing": Preprocessing(width=SIZE_PX, height=SIZE_PX, **how),
            "labels": LABELS,
            "detection": family_spec("centernet", scores="probability"),
        }
    )
    path = folder / f"{name}.sdl"
    rewrite_manifest(plain, manifest, path, {})
    return Package.open(path)


def squares(*places, size=(SIZE_PX, SIZE_PX), scale=1):
    """A picture uint8 (H, W, 3), RGB, of ``size`` (width, height): squares (left, top, class) of 12 * ``scale`` pixels.

    The detector is exact where left and top are multiples of 4 * ``scale``.
    """
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    for left, top, number in places:
        pixels[top : top + SQUARE_PX * scale, left : left + SQUARE_PX * scale, number] = 255
    return pixels
