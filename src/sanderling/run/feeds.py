"""Feeds from `.npz` and `.npy` files, and outputs back to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sanderling.core.arrays import read_npy, read_npz, write_npz
from sanderling.core.errors import DataError
from sanderling.core.files import replacing
from sanderling.core.tensor import Array, TensorSpec

ARRAY_SUFFIXES = (".npz", ".npy")


def read_feeds(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Read an ``.npz`` with an array for every input, or an ``.npy`` for a model with one input.

    Raises:
        DataError: the file is missing or unreadable, holds pickled objects, or an ``.npy`` meets several inputs.
    """
    if path.suffix.lower() == ".npz":
        return read_npz(path)
    if len(inputs) != 1:
        raise DataError(f"{path} holds one array, but the model has inputs {'; '.join(map(str, inputs))}: give an .npz")
    return {inputs[0].name: read_npy(path)}


def write_outputs(path: Path, outputs: Mapping[str, Array]) -> None:
    """Write outputs to an ``.npz``, whole or not at all.

    Raises:
        OutputError: the file cannot be written.
    """
    with replacing(path) as target:
        write_npz(target, outputs)
