"""The target `harmonyos`: a package's variants as models of MindSpore Lite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from sanderling.model.package import Package
from sanderling.workshop.targets.base import Exported, ExportRequest, Refusal, Tool
from sanderling.workshop.targets.harmonyos.models import export_models, exportable_variants, read_batches
from sanderling.workshop.targets.ms.checking import refusals
from sanderling.workshop.targets.ms.converter import tools


class HarmonyOs:
    """Writes `.ms` files for the MindSpore Lite Kit."""

    name = "harmonyos"
    summary = "models of MindSpore Lite (.ms) in float32, float16 and INT8, for the MindSpore Lite Kit"
    devices = ("phone", "tablet")
    options: Mapping[str, str] = {
        "batch": "numbers of rows, a file for each, such as 1,4; those of the golden vectors by default",
    }

    def tools(self) -> Sequence[Tool]:
        """The converters, and what INT8 needs."""
        return tools()

    def variants(self, package: Package, wanted: str | None) -> tuple[str, ...]:
        """All that `.ms` has a form for, or the one that was asked for."""
        return exportable_variants(package, wanted)

    def check(self, model: onnx.ModelProto, device: str) -> tuple[Refusal, ...]:  # noqa: ARG002 - both take the same
        """What the converter does not take."""
        return refusals(model)

    def export(self, request: ExportRequest) -> Exported:
        """Write the models, and run the golden vectors on each."""
        batches = read_batches(request.options["batch"]) if "batch" in request.options else ()
        made = export_models(
            request.package,
            request.folder,
            progress=request.progress,
            variants=self.variants(request.package, request.variant),
            batches=batches,
        )
        return Exported(
            files=made.files,
            tool=made.tool,
            proofs=made.proofs,
            remaining=made.remaining,
            next_steps=("cp *.ms YOUR_PROJECT/entry/src/main/resources/rawfile/",),
            details={"models": [model.to_json() for model in made.models]},
        )


TARGET = HarmonyOs()
