"""Fashion-MNIST as Debian packages it, read from the gzipped IDX files."""

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

LABELS = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
SCALE = 1 / 255
MEAN = 0.2860  # of the training images after SCALE
STD = 0.3530

DEFAULT_FOLDER = Path("/usr/share/datasets/fashion-mnist")
FOLDER_VARIABLE = "FASHION_MNIST_DIR"
IMAGE_SIZE_PX = 28
IMAGE_COUNTS = {"train": 60_000, "t10k": 10_000}

Split = Literal["train", "t10k"]


def load_fashion_mnist(split: Split) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read one split from ``$FASHION_MNIST_DIR``, or from where Debian installs it.

    Args:
        split: ``"train"`` (60,000 images) or ``"t10k"`` (10,000 images).

    Returns:
        images: uint8, shape (N, 28, 28), 0 is background.
        labels: int64, shape (N,), an index into ``LABELS``.

    Raises:
        FileNotFoundError: the dataset is not installed.
        ValueError: a file is no IDX file of the expected shape.

    Source: the IDX format, as described with the original MNIST files.
    """
    folder = Path(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER)
    count = IMAGE_COUNTS[split]
    images = read_idx(folder / f"{split}-images-idx3-ubyte.gz", (count, IMAGE_SIZE_PX, IMAGE_SIZE_PX))
    labels = read_idx(folder / f"{split}-labels-idx1-ubyte.gz", (count,))
    if labels.max() >= len(LABELS):
        raise ValueError(f"{folder}: {split} has label {labels.max()}, expected 0 to {len(LABELS) - 1}.")
    return images, labels.astype(np.int64)


def normalize(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Turn uint8 (N, 28, 28) into the networks' input: float32 (N, 1, 28, 28), zero mean, unit std."""
    scaled = images[:, np.newaxis].astype(np.float32) * np.float32(SCALE)
    return (scaled - np.float32(MEAN)) / np.float32(STD)


def read_idx(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read a gzipped IDX file of unsigned bytes and check its header and size.

    Args:
        path: the ``.gz`` file.
        shape: what the header must state.

    Returns:
        uint8, of ``shape``, writable.

    Raises:
        FileNotFoundError: ``path`` is missing.
        ValueError: damaged gzip data, wrong magic number, shape or length.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} not found; install it with: apt-get install dataset-fashion-mnist "
            f"(or point {FOLDER_VARIABLE} at a folder with the four idx .gz files)"
        )
    compressed = path.read_bytes()
    try:
        content = gzip.decompress(compressed)
    except (gzip.BadGzipFile, EOFError, zlib.error) as exc:
        raise ValueError(f"{path}: damaged gzip file of {len(compressed)} bytes ({exc}).") from exc
    # Two zero bytes, the type (8: unsigned byte), the number of axes, then big-endian sizes.
    expected = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
    header, data = content[: len(expected)], content[len(expected) :]
    if header != expected:
        raise ValueError(f"{path}: IDX header {header.hex()}, expected {expected.hex()} for shape {shape}.")
    if len(data) != math.prod(shape):
        raise ValueError(f"{path}: {len(data)} bytes after the header, expected {math.prod(shape)}.")
    return np.frombuffer(data, np.uint8).reshape(shape).copy()
