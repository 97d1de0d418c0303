"""A package whose language model is the alphabet: a manifest, and nothing that an engine could load."""

from __future__ import annotations

from pathlib import Path

from sanderling.core.precision import Precision
from sanderling.model.manifest import Golden, Manifest, Source, Variant
from sanderling.model.package import Package, file_entries, write_manifest
from tests.text_models import SPEC

GRAPH = "variants/fp32/model.onnx"


def alphabet_package(path: Path, *, name: str = "alphabet") -> Package:
    """The package; tests put an ``AlphabetModel`` where its engine would be loaded."""
    (path / GRAPH).parent.mkdir(parents=True)
    (path / GRAPH).write_bytes(b"abc")
    variant = Variant(id="fp32", precision=Precision.FP32, file=GRAPH, size_bytes=3, engines=("genai",))
    manifest = Manifest(
        name=name,
        source=Source(format="onnx", name="alphabet"),
        inputs=(),
        outputs=(),
        variants=(variant,),
        chosen="fp32",
        golden=Golden(file=GRAPH, samples=0, tolerance={}),
        text=SPEC,
        files=file_entries(path),
    )
    write_manifest(path, manifest)
    return Package.open(path)
