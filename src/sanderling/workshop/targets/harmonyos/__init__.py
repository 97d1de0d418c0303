"""The target `harmonyos`: a package's variants as models of MindSpore Lite, in a ready ArkTS project that runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from sanderling.core.errors import OptionError
from sanderling.model.package import Package
from sanderling.workshop.targets.base import Exported, ExportRequest, Proof, Refusal, Tool
from sanderling.workshop.targets.harmonyos import toolchain
from sanderling.workshop.targets.harmonyos.models import (
    ExportedModels,
    export_models,
    exportable_variants,
    read_batches,
)
from sanderling.workshop.targets.harmonyos.module import (
    FILES,
    has_policy,
    offline_model,
    package_policy,
    policy_limits,
    preferred_variant,
    thermal_levels,
    write_description,
    write_project,
)
from sanderling.workshop.targets.harmonyos.proofs import prove_project
from sanderling.workshop.targets.ms.checking import refusals
from sanderling.workshop.targets.ms.converter import tools

_CHECKS = ("here", "install", "off")


class HarmonyOs:
    """Writes `.ms` files, and an ArkTS project with the module that runs them by the package's policy."""

    name = "harmonyos"
    summary = "an ArkTS project that runs .ms models in float32, float16 and INT8 by MindSpore Lite Kit"
    devices = ("phone", "tablet")
    options: Mapping[str, str] = {
        "batch": "numbers of rows, a file for each, such as 1,4; those of the golden vectors by default",
        "checks": "here: check and run the ArkTS if Node.js and its packages are here (default); install: fetch the "
        "packages first; off",
        "leave-level": "thermal level from which accelerators are left: COOL, NORMAL, WARM, HOT, OVERHEATED (default), "
        "WARNING, EMERGENCY or ESCAPE",
        "return-level": "thermal level down to which the device must cool before they are used again; WARM by default",
        "offline": "an .om or .omc of the preferred variant, compiled for the device's NPU, which is tried first there",
    }

    def tools(self) -> Sequence[Tool]:
        """The converters, what INT8 needs, and what checks ArkTS."""
        return (*tools(), *toolchain.tools())

    def variants(self, package: Package, wanted: str | None) -> tuple[str, ...]:
        """All that `.ms` has a form for, or the one that was asked for."""
        return exportable_variants(package, wanted)

    def check(self, model: onnx.ModelProto, device: str) -> tuple[Refusal, ...]:  # noqa: ARG002 - both take the same
        """What the converter does not take."""
        return refusals(model)

    def export(self, request: ExportRequest) -> Exported:
        """Write the project and the models, run the golden vectors on each, and check the ArkTS."""
        options = request.options
        checks = options.get("checks", _CHECKS[0])
        if checks not in _CHECKS:
            raise OptionError(f"target 'harmonyos', --option checks={checks}: expected {', '.join(_CHECKS)}")
        thermal = thermal_levels(options)
        if has_policy(request.package):
            for limit in policy_limits(package_policy(request.package)):
                request.progress.event(limit)
        if checks == "install":
            toolchain.install(request.progress)
        files = write_project(request.package, request.folder)
        made = self._models(request)
        models = [model.to_json() for model in made.models]
        preferred = preferred_variant(request.package, made.models)
        files |= {f"{FILES}/{name}": what for name, what in made.files.items()}
        if "offline" in options:
            offline = offline_model(options["offline"], request.package, request.folder, preferred)
            files[f"{FILES}/{offline['file']}"] = f"variant '{preferred}' as it was given, for the NPU"
            models = [offline, *models]
        files |= write_description(request.package, request.folder, models, chosen=preferred, thermal=thermal)
        proofs, remaining = _arkts(request, models, checks)
        return Exported(
            files=files,
            tool=made.tool,
            proofs=(*made.proofs, *proofs),
            remaining=(*made.remaining, *remaining),
            next_steps=_STEPS,
            details={"models": models, "preferred": preferred, "thermal": thermal},
        )

    def _models(self, request: ExportRequest) -> ExportedModels:
        batches = read_batches(request.options["batch"]) if "batch" in request.options else ()
        return export_models(
            request.package,
            request.folder / FILES,
            progress=request.progress,
            variants=self.variants(request.package, request.variant),
            batches=batches,
        )


_STEPS = (
    "ohpm install",
    "hvigorw assembleHap",
    "hdc install entry/build/default/outputs/default/entry-default-signed.hap",
    "hdc shell aa start -a EntryAbility -b com.example.sanderling",
)
_DEVICE = (
    "that the SDK builds and signs the project: it was checked with type stubs of the interfaces that it uses",
    "heat, memory and accelerators as the system tells them",
    "the native library of offline models on an NPU",
)


def _arkts(request: ExportRequest, models: list[dict[str, Any]], checks: str) -> tuple[list[Proof], tuple[str, ...]]:
    """What was proved of the ArkTS, and what could not be."""
    if checks == "off":
        return [], ("types, rules and results of the ArkTS, which were not checked: checks=off", *_DEVICE)
    here = toolchain.state()
    if not here.usable:
        return [], (f"types, rules and results of the ArkTS, which could not be checked: {here.hint}", *_DEVICE)
    proofs, remaining = prove_project(request.package, request.folder, models, request.progress)
    return proofs, (*remaining, *_DEVICE)


TARGET = HarmonyOs()
