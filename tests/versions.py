"""Tiny packages that stand for versions of a model: each multiplies by another number."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from onnx import helper

from sanderling.api import build
from sanderling.model.package import Package, file_entries, write_manifest
from tests.models import make_model, save, tensor

X = np.array([[1.0, 2.0, 3.0]], np.float32)
_FOLDER = TemporaryDirectory(prefix="versions-")  # until the process ends


@cache
def built(factor: float, *, fragile: bool = False, rows: int | str = "N") -> Path:
    """A package that multiplies ``x`` by ``factor``; a fragile one gives infinity from about 90 on."""
    folder = Path(_FOLDER.name) / f"{factor}-{fragile}-{rows}"
    folder.mkdir()
    nodes = [helper.make_node("Mul", ["x", "factor"], ["product"])]
    weights = {"factor": np.array(factor, np.float32), "zero": np.array(0.0, np.float32)}
    if fragile:
        nodes += [
            helper.make_node("Exp", ["x"], ["large"]),
            helper.make_node("Mul", ["large", "zero"], ["nothing"]),
            helper.make_node("Add", ["product", "nothing"], ["y"]),
        ]
    else:
        nodes += [helper.make_node("Add", ["product", "zero"], ["y"])]
    model = make_model(nodes, [tensor("x", [rows, 3])], [tensor("y", [rows, 3])], weights)
    build(save(model, folder / "tiny.onnx"), folder / "tiny.sdl", precision="fp32", repeats=3)
    return folder / "tiny.sdl"


def put(package: Path, target: Path) -> Path:
    """Copy a package to its place as a careful tool does: beside it, then renamed over what was there."""
    scratch = target.with_name(f".{target.name}.new")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(package, scratch)
    if target.exists():
        old = target.with_name(f".{target.name}.old")
        target.rename(old)
        scratch.rename(target)
        shutil.rmtree(old)
    else:
        scratch.rename(target)
    return target


def with_wrong_golden(package: Path, target: Path) -> Path:
    """A copy that is whole, whose golden outputs are not what it computes."""
    shutil.copytree(package, target)
    opened = Package.open(target)
    golden = opened.golden()
    arrays = {name: array + 1 if name.startswith("fp32/") else array for name, array in golden.to_arrays().items()}
    np.savez(target / opened.manifest.golden.file, **arrays)
    write_manifest(target, opened.manifest.model_copy(update={"files": file_entries(target)}))
    return target
