"""The ArkTS project: the template with a package's name, models, golden vectors and policy filled in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sanderling.core.errors import OptionError
from sanderling.core.files import sha256_of
from sanderling.core.progress import Event
from sanderling.core.tensor import Array
from sanderling.model.package import MANIFEST, Package
from sanderling.run.policy.document import POLICY, FallbackThreshold, Policy, read_policy
from sanderling.workshop.targets.harmonyos.models import ModelFile

TEMPLATE = Path(__file__).with_name("template")
MODULE = "sanderling"
RAWFILE = "entry/src/main/resources/rawfile"
FILES = f"{RAWFILE}/sanderling"  # where the module looks for a package's files
DESCRIPTION = "package.json"
GOLDEN = "golden.bin"
LEVELS = ("COOL", "NORMAL", "WARM", "HOT", "OVERHEATED", "WARNING", "EMERGENCY", "ESCAPE")
_VERSION = 1
_LEAVE, _RETURN = "OVERHEATED", "WARM"
_HOT_C = 75.0  # on HarmonyOS only says that the device is left for heat at all
_TEXTS = (".json", ".json5", ".md")
_REFERENCE = "fp32"
_ALIGNMENT = 8
_WHAT = {
    ".ets": "ArkTS",
    ".ts": "build script",
    ".json5": "build settings",
    ".json": "resource",
    ".png": "icon",
    ".cpp": "native library of offline models",
    ".h": "native library of offline models",
    ".txt": "native library of offline models",
    ".md": "how to use the module",
}


def write_project(package: Package, folder: Path) -> dict[str, str]:
    """Copy the template and fill in the package's name; returns each file with what it is."""
    name = json.dumps(package.manifest.name, ensure_ascii=False)[1:-1]
    files = {}
    for source in sorted(path for path in TEMPLATE.rglob("*") if path.is_file()):
        relative = source.relative_to(TEMPLATE)
        target = folder / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix in _TEXTS:
            target.write_text(source.read_text(encoding="utf-8").replace("@NAME@", name), encoding="utf-8")
        else:
            shutil.copyfile(source, target)
        files[relative.as_posix()] = _WHAT["".join(source.suffixes[-1:])]
    (folder / FILES).mkdir(parents=True)
    return files


def write_description(
    package: Package, folder: Path, models: Sequence[Mapping[str, Any]], *, chosen: str, thermal: Mapping[str, str]
) -> dict[str, str]:
    """Write what the module reads beside the models; returns each file with what it is.

    Args:
        package: that is exported.
        folder: of the project.
        models: as ``ModelFile.to_json`` says them.
        chosen: variant that is preferred.
        thermal: levels at which hot devices are left and returned to.
    """
    manifest, variants = package.manifest, {str(model["variant"]) for model in models}
    arrays, data = _golden_arrays(package, sorted(variants | {"fp32"}))
    (folder / FILES / GOLDEN).write_bytes(data)
    policy = package_policy(package)
    description = {
        "version": _VERSION,
        "name": manifest.name,
        "sha256": sha256_of(package.path / MANIFEST),
        "inputs": [spec.model_dump(mode="json") for spec in manifest.inputs],
        "outputs": [spec.model_dump(mode="json") for spec in manifest.outputs],
        "preprocessing": manifest.preprocessing and manifest.preprocessing.model_dump(mode="json"),
        "labels": manifest.labels,
        "chosen": chosen,
        "models": list(models),
        "statistics": _statistics(package),
        "golden": {
            "file": GOLDEN,
            "calls": manifest.golden.samples,
            "tolerance": {name: limit for name, limit in manifest.golden.tolerance.items() if name in variants},
            "arrays": arrays,
        },
        "rowCost": manifest.row_cost and manifest.row_cost.model_dump(mode="json"),
        "thermal": dict(thermal),
        "policy": policy.model_dump(mode="json", by_alias=True),
    }
    text = json.dumps(description, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    (folder / FILES / DESCRIPTION).write_text(text, encoding="utf-8")
    return {
        f"{FILES}/{DESCRIPTION}": "the package: inputs, preprocessing, labels, models, policy",
        f"{FILES}/{GOLDEN}": "golden inputs and each variant's outputs",
    }


def has_policy(package: Package) -> bool:
    """Whether the package brings a policy of its own."""
    return POLICY in package.manifest.files


def package_policy(package: Package) -> Policy:
    """The package's own policy; without one, accelerators are left for heat and everything else is as by default."""
    if has_policy(package):
        return read_policy(package.file(POLICY))
    hot = FallbackThreshold(temp=_HOT_C)
    return Policy(fallback_thresholds={"npu": hot, "gpu": hot})


def policy_limits(policy: Policy) -> list[Event]:
    """What of a policy the module does not carry out, or carries out in another way."""
    guard, plain = policy.guard, Policy()
    found = []
    for name, kept in (
        ("guard.innerTensors", guard.inner_tensors == plain.guard.inner_tensors),
        ("guard.shadowShare", guard.shadow_share == plain.guard.shadow_share),
        ("guard.reproducers", guard.reproducers == plain.guard.reproducers),
        ("isolation", policy.isolation == plain.isolation),
        ("training", policy.training == plain.training),
    ):
        if not kept:
            reason = "the module on HarmonyOS does not carry it out"
            found.append(Event(kind="policy-limited", subject=name, reason=reason))
    for device, threshold in policy.fallback_thresholds.items():
        if threshold.temp is not None:
            reason = f"{threshold.temp:g} °C: HarmonyOS tells eight levels of heat and no temperature; see leave-level"
            found.append(Event(kind="policy-limited", subject=f"fallbackThresholds.{device}.temp", reason=reason))
    return found


def preferred_variant(package: Package, models: Sequence[ModelFile]) -> str:
    """The package's chosen variant if it was written, else the smallest that keeps the budget."""
    written = {model.variant: model for model in models}
    if package.manifest.chosen in written:
        return package.manifest.chosen
    within = [model for name, model in written.items() if package.variant(name).within_budget is not False]
    return min(within or list(written.values()), key=lambda model: model.size_bytes).variant


def thermal_levels(options: Mapping[str, str]) -> dict[str, str]:
    """Levels at which devices are left and returned to.

    Raises:
        OptionError: an unknown level, or one to return at that is not below the one to leave at.
    """
    chosen = {
        "leave": options.get("leave-level", _LEAVE).upper(),
        "return": options.get("return-level", _RETURN).upper(),
    }
    for name, level in chosen.items():
        if level not in LEVELS:
            raise OptionError(f"{name}-level '{level}' is unknown: levels are {', '.join(LEVELS)}")
    if LEVELS.index(chosen["return"]) >= LEVELS.index(chosen["leave"]):
        raise OptionError(f"return-level {chosen['return']} must be below leave-level {chosen['leave']}")
    return chosen


def offline_model(text: str, package: Package, folder: Path, variant: str) -> dict[str, Any]:
    """Copy an ``.om`` or ``.omc`` of a variant into the project; returns what the description says of it.

    Raises:
        OptionError: it is missing, empty, or another kind of file.
    """
    source = Path(text)
    if source.suffix not in (".om", ".omc"):
        raise OptionError(f"offline '{source.name}': expected an .om or .omc that CANN's tools compiled for the device")
    if not source.is_file() or not source.stat().st_size:
        raise OptionError(f"offline '{source.name}' is missing or empty")
    target = folder / FILES / f"{variant}{source.suffix}"
    shutil.copyfile(source, target)
    shapes = [array.shape[1:] for array in package.golden().inputs.values()]
    return {
        "variant": variant,
        "precision": str(package.variant(variant).precision),
        "file": target.name,
        "format": source.suffix[1:],
        "batch": next((shape[0] for shape in shapes if shape), 1),
        "resizable": False,
        "channelsLast": [],
        "sizeBytes": target.stat().st_size,
    }


def _golden_arrays(package: Package, variants: Sequence[str]) -> tuple[list[dict[str, Any]], bytes]:
    """Where each golden array lies in the file, and the file: little-endian, one after the other."""
    golden = package.golden()
    named = {"input": golden.inputs} | {name: golden.outputs[name] for name in variants}
    arrays, data = [], bytearray()
    for owner, held in named.items():
        for name, array in held.items():
            data += b"\0" * (-len(data) % _ALIGNMENT)
            plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            place = {"offset": len(data), "sizeBytes": plain.nbytes}
            arrays.append(
                {"variant": owner, "name": name, "dtype": array.dtype.name, "shape": list(array.shape), **place}
            )
            data += plain.tobytes()
    return arrays, bytes(data)


def _statistics(package: Package) -> list[dict[str, Any]]:
    """What FP32's golden outputs are like, as the guard asks it."""
    golden = package.golden().outputs[_REFERENCE]
    return [
        {"name": spec.name, **_output_statistics(golden[spec.name])}
        for spec in package.manifest.outputs
        if spec.name in golden and spec.dtype.startswith("float")
    ]


def _output_statistics(array: Array) -> dict[str, Any]:
    values = array.astype(np.float64)
    has_nan, has_infinity = bool(np.isnan(values).any()), bool(np.isinf(values).any())
    mean = deviation = None
    if values.size and not has_nan and not has_infinity:
        mean, deviation = float(values.mean()), float(values.std())
    known = deviation is not None and mean is not None and deviation > 1e-9 * max(abs(mean), 1e-20)
    return {
        "mean": mean if known else None,
        "deviation": deviation if known else None,
        "hasNan": has_nan,
        "hasInfinity": has_infinity,
    }
