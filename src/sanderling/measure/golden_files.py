"""Golden vectors as plain files, which the C++ runner reads without a library."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sanderling.core.errors import ModelError
from sanderling.core.tensor import Array
from sanderling.measure.golden import least_sqnr_db
from sanderling.model.package import Package

TABLE, FOLDER = "golden.tsv", "golden"
_DTYPES = ("float32", "uint8", "int8", "int32", "int64", "float64", "bool")


def write_golden(package: Package, variant: str, model: str, folder: Path) -> dict[str, str]:
    """Write `golden.tsv` and a file of bytes for every input and output; returns each with what it is.

    Raises:
        ModelError: a tensor has a dtype that the runner does not read.
    """
    golden, tolerance = package.golden(), package.manifest.golden.tolerance[variant]
    (folder / FOLDER).mkdir()
    lines = [f"model\t{model}", f"calls\t{len(golden)}"]
    files = {TABLE: "golden calls: dtypes, shapes, files and what is allowed"}
    for index, (name, array) in enumerate(golden.inputs.items()):
        file = f"{FOLDER}/input-{index}.bin"
        lines.append("\t".join(("input", name, _dtype(name, array), _shape(array), file)))
        _write(array, folder / file)
        files[file] = f"input '{name}' of all golden calls"
    for index, (name, array) in enumerate(golden.outputs[variant].items()):
        reference = golden.outputs["fp32"][name].astype(array.dtype)
        own, exact = f"{FOLDER}/output-{index}.bin", f"{FOLDER}/fp32-{index}.bin"
        limits = (f"{tolerance:.9g}", f"{least_sqnr_db(reference, array):.9g}")
        lines.append("\t".join(("output", name, _dtype(name, array), _shape(array), own, exact, *limits)))
        _write(array, folder / own)
        _write(reference, folder / exact)
        files |= {own: f"output '{name}' of variant '{variant}'", exact: f"output '{name}' of FP32"}
    (folder / TABLE).write_text("\n".join([*lines, ""]), encoding="utf-8")
    return files


def _dtype(name: str, array: Array) -> str:
    if array.dtype.name not in _DTYPES:
        raise ModelError(f"'{name}' is {array.dtype.name}: the runner reads {', '.join(_DTYPES)}")
    return array.dtype.name


def _shape(array: Array) -> str:
    return ",".join(map(str, array.shape[1:]))


def _write(array: Array, path: Path) -> None:
    path.write_bytes(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes())
