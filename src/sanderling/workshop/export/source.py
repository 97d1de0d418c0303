"""Recognise a source and bring it to an ONNX graph."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sanderling.core.errors import ModelError, OptionError, UnavailableError
from sanderling.core.files import sha256_of
from sanderling.core.progress import Progress
from sanderling.model.graph import read_graph
from sanderling.model.manifest import Source
from sanderling.workshop.evidence import ExportEvidence, Finetuning
from sanderling.workshop.material import Material
from sanderling.workshop.options import BuildOptions

if TYPE_CHECKING:
    import onnx

_FACTORY = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")
_PICKLES = (".pt", ".pth", ".pkl", ".bin")


@dataclass(frozen=True)
class Exported:
    """A graph and where it came from.

    Attributes:
        check: its comparison with PyTorch, where there was one.
        reference: the float model that a quantised ``model`` was made from, where that is known.
        material: data that was read already.
        finetuning: how a quantised ``model`` was trained.
    """

    model: onnx.ModelProto
    source: Source
    check: ExportEvidence | None
    reference: onnx.ModelProto | None = None
    material: Material | None = None
    finetuning: Finetuning | None = None


def export(options: BuildOptions, progress: Progress) -> Exported:
    """Read or export the source.

    Raises:
        OptionError: the source is none of the known forms, or an option it needs is missing.
        ModelError: the file cannot be read or exported, or ONNX disagrees with PyTorch.
        WeightsError: the checkpoint does not fit.
        UnavailableError: PyTorch is needed and not installed.
    """
    path = Path(options.source)
    if not _FACTORY.match(options.source):
        given = [
            name
            for name, value in (("--weights", options.weights), ("--factory-args", options.factory_arguments))
            if value
        ]
        if given:
            raise OptionError(
                f"{given[0]} goes with package.module:factory: source '{path.name}' holds its own weights"
            )
    if path.suffix == ".onnx":
        progress.stage("read ONNX")
        model = read_graph(path)
        return Exported(model, Source(format="onnx", name=path.name, sha256=sha256_of(path)), None)
    if path.suffix == ".pt2" or path.suffix in _PICKLES or _FACTORY.match(options.source):
        return _from_torch(options, path, progress)
    if path.exists():
        raise ModelError(
            f"{path} is not a known model file: expected .onnx, .pt2, or a pickled .pt/.pth with --trust-pickle"
        )
    raise OptionError(
        f"source '{options.source}' does not exist: expected FILE.onnx, FILE.pt2 or package.module:factory"
    )


def _from_torch(options: BuildOptions, path: Path, progress: Progress) -> Exported:
    try:
        from sanderling.workshop.export import torch_export, torch_source
    except ImportError as error:
        raise UnavailableError(
            f"source '{options.source}' needs PyTorch, which is not installed: pip install 'sanderling[torch]'"
        ) from error
    progress.stage("load PyTorch module")
    module, source = torch_source.load_module(options, path)
    progress.stage("export to ONNX")
    model = torch_export.to_onnx(module, options)
    progress.stage("compare ONNX with PyTorch")
    return Exported(model, source, torch_export.compare(module, model, options))
