"""Named tensors in safetensors files, which hold numbers and text and can run nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sanderling.core.errors import PackageError, UnavailableError, first_line
from sanderling.core.tensor import Array


def read_safetensors(path: Path) -> dict[str, Array]:
    """Read every tensor of a file.

    Raises:
        PackageError: the file is missing, cut short, or none of this kind.
        UnavailableError: safetensors is not installed.
    """
    load_file = _library("load_file")
    try:
        return dict(load_file(path))
    except Exception as error:
        raise PackageError(f"{path} cannot be read as safetensors: {first_line(error)}") from error


def write_safetensors(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors; the bytes depend on nothing but them and the metadata.

    Raises:
        UnavailableError: safetensors is not installed.
        OSError: the file cannot be written.
    """
    save = _library("save")  # its save_file makes files that only their owner may read
    arrays = {name: np.array(array, order="C") for name, array in sorted(tensors.items())}
    path.write_bytes(save(arrays, metadata=dict(metadata) if metadata else None))


def _library(name: str) -> Callable[..., Any]:
    try:
        from safetensors import numpy as library
    except ImportError as error:
        raise UnavailableError("training needs safetensors: pip install 'sanderling[learn]'") from error
    found: Callable[..., Any] = getattr(library, name)
    return found
