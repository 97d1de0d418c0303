"""Arrays in `.npz` and `.npy` files, without pickles in either direction."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sanderling.core.errors import DataError, first_line
from sanderling.core.tensor import Array


def read_npz(path: Path) -> dict[str, Array]:
    """Read every array of an ``.npz``.

    Raises:
        DataError: the file is missing, damaged, no archive of arrays, or holds pickled objects.
    """
    loaded = _load(path)
    if not isinstance(loaded, dict):
        raise DataError(f"{path} is one array: expected an .npz with named arrays")
    strange = [name for name, value in loaded.items() if not isinstance(value, np.ndarray)]
    if strange:
        raise DataError(f"{path} holds '{strange[0]}', which is no array: expected an .npz with named arrays")
    return loaded


def read_npy(path: Path) -> Array:
    """Read the array of an ``.npy``.

    Raises:
        DataError: the file is missing, damaged, no single array, or holds pickled objects.
    """
    loaded = _load(path)
    if isinstance(loaded, dict):
        raise DataError(f"{path} is an archive: expected an .npy with one array")
    return loaded


def write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays as a compressed ``.npz`` whose bytes depend on nothing but names and arrays.

    Any name is allowed, ``file`` and ``allow_pickle`` too, which NumPy's own function takes for its arguments.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)


def _load(path: Path) -> Array | dict[str, Array]:
    if not path.is_file():
        raise DataError(f"{path} does not exist: expected an .npz or .npy file")
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            return dict(loaded)
    except (OSError, ValueError, EOFError, MemoryError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is not a readable file of plain arrays: {first_line(error)}") from error
