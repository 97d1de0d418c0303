"""Samples for the small classifier of `tests/models.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_samples(path: Path, count: int = 160, *, size: int = 8, seed: int = 1, **arrays: np.ndarray) -> Path:
    """Write standard normal samples under ``image``; further arrays are added, or replace it."""
    image = np.random.default_rng(seed).standard_normal((count, 3, size, size)).astype(np.float32)
    np.savez(path, **{"image": image, **arrays})
    return path
