"""Frames of a camera that hold every chroma there is."""

from __future__ import annotations

import numpy as np

FRAME_OF_CHROMA = 512
"""Width and height of a frame that has all 65,536 pairs of U and V, pixels."""


def every_chroma(lumas, pixel_format):
    """A 4:2:0 frame with every U and V, and each of four levels of Y with all of them.

    Args:
        lumas: four levels.
        pixel_format: nv12, nv21 or i420.

    Returns:
        uint8 (768, 512).
    """
    u, v = (each.astype(np.uint8) for each in np.meshgrid(np.arange(256), np.arange(256), indexing="ij"))
    below = {
        "nv12": np.stack([u, v], axis=-1),
        "nv21": np.stack([v, u], axis=-1),
        "i420": np.stack([u, v]),
    }[pixel_format].reshape(256, 512)
    return np.concatenate([np.tile(np.array(lumas, np.uint8).reshape(2, 2), (256, 256)), below])
