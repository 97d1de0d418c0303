"""A package whose language model is the alphabet: a manifest, and nothing that an engine could load."""

from __future__ import annotations

from pathlib import Path

from sanderling.core.arrays import write_npz
from sanderling.core.precision import Precision
from sanderling.measure.text_golden import golden_outputs, prompt_ids
from sanderling.model.manifest import Golden, Manifest, Source, Variant
from sanderling.model.package import Package, file_entries, write_manifest
from tests.text_models import SPEC, AlphabetModel

GRAPH, GOLDEN = "variants/fp32/model.onnx", "golden.npz"


def alphabet_package(path: Path, *, name: str = "alphabet") -> Package:
    """The package; tests put an ``AlphabetModel`` where its engine would be loaded."""
    (path / GRAPH).parent.mkdir(parents=True)
    (path / GRAPH).write_bytes(b"abc")
    variant = Variant(id="fp32", precision=Precision.FP32, file=GRAPH, size_bytes=3, engines=("onnxruntime", "genai"))
    model = AlphabetModel()
    prompts = prompt_ids(model)
    outputs = {f"fp32/{key}": array for key, array in golden_outputs(model, prompts).items()}
    write_npz(path / GOLDEN, {"input/prompts": prompts, **outputs})
    manifest = Manifest(
        name=name,
        source=Source(format="onnx", name="alphabet"),
        inputs=(),
        outputs=(),
        variants=(variant,),
        chosen="fp32",
        golden=Golden(file=GOLDEN, samples=len(prompts), tolerance={"fp32": 1e-6}),
        text=SPEC,
        files=file_entries(path),
    )
    write_manifest(path, manifest)
    return Package.open(path)
