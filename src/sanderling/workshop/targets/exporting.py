"""`sanderling export`: check a package for a target, let the target write its files, and record what was proved."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from sanderling.core.errors import EngineError, ModelError, NotMetError, OptionError, OutputError
from sanderling.core.files import replacing, require_folder, sha256_of
from sanderling.core.progress import Progress, Silent
from sanderling.model.package import MANIFEST, Package
from sanderling.run.session import check_one_graph
from sanderling.workshop.targets import choose_device, target
from sanderling.workshop.targets.base import Exported, ExportRequest, Proof, Refusal, Target
from sanderling.workshop.targets.checking import require_accepted, variant_refusals
from sanderling.workshop.targets.readme import proof_line, readme

RECORD = "export.json"
README = "README.md"


@dataclass(frozen=True)
class ExportResult:
    """A folder that was written; ``record`` is what its ``export.json`` says."""

    path: Path
    record: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The record and where the folder is, as plain values."""
        return {"path": str(self.path), **self.record}


def export(
    path: str | Path,
    output: str | Path,
    *,
    target_name: str,
    device: str | None = None,
    variant: str | None = None,
    options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> ExportResult:
    """Write what a target's devices run; arguments and errors are those of ``sanderling.export``."""
    start = time.perf_counter()
    progress, found, folder = progress or Silent(), target(target_name), Path(output)
    device, options = choose_device(found, device), _checked(options or {}, found)
    _check_output(folder)
    package = Package.open(path)
    check_one_graph(package)
    variants = found.variants(package, variant)
    progress.stage(f"check for {found.name}", len(variants))
    refusals = variant_refusals(found, package, variants, device, progress)
    for identifier, refused in refusals.items():
        require_accepted(refused, found.name, f"variant '{identifier}'")
    with replacing(folder) as made:
        made.mkdir()
        request = ExportRequest(package, made.absolute(), device, variant, options, progress)
        try:
            exported = found.export(request)
        except (ModelError, EngineError) as error:
            raise type(error)(f"export to {found.name} wrote nothing: {error}") from error
        _check_proofs(exported.proofs, found.name)
        rewrites = [refusal for refused in refusals.values() for refusal in refused]
        record = _record(exported, made, package, found, device, variants, options, rewrites)
        record["seconds"] = round(time.perf_counter() - start, 2)
        _write(record, made)
    return ExportResult(folder, record)


def _checked(options: Mapping[str, str], found: Target) -> Mapping[str, str]:
    for name in options:
        if name not in found.options:
            known = ", ".join(found.options) or "none"
            raise OptionError(f"target '{found.name}' has no option '{name}': available are {known}")
    return options


def _check_output(folder: Path) -> None:
    """Refuse to replace what no export wrote."""
    require_folder(folder)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / RECORD).is_file():
        raise OutputError(f"{folder} holds files and is no export (it has no {RECORD}): name a folder that is new")
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file: name a folder")


def _check_proofs(proofs: tuple[Proof, ...], name: str) -> None:
    failed = [proof for proof in proofs if not proof.passed]
    if failed:
        told = "; ".join(proof_line(asdict(proof)) for proof in failed)
        raise NotMetError(f"export to {name} failed its checks: {told}; nothing was kept")


def _record(
    exported: Exported,
    folder: Path,
    package: Package,
    found: Target,
    device: str,
    variants: tuple[str, ...],
    options: Mapping[str, str],
    rewrites: list[Refusal],
) -> dict[str, Any]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    named = {path.relative_to(folder).as_posix(): path for path in files}
    if named.keys() != exported.files.keys():
        strange = sorted(named.keys() ^ exported.files.keys())
        raise EngineError(f"target '{found.name}' wrote other files than it lists: {', '.join(strange)}")
    return {
        "schema_version": 1,
        "sanderling": version_of("sanderling"),
        "target": found.name,
        "device": device,
        "variants": list(variants),
        "options": {name: _without_folder(value) for name, value in options.items()},
        "package": {"name": package.manifest.name, "manifest_sha256": sha256_of(package.path / MANIFEST)},
        "tool": exported.tool,
        "proofs": [asdict(proof) for proof in exported.proofs],
        "rewrites": [asdict(refusal) for refusal in rewrites],
        "remaining": list(exported.remaining),
        "next_steps": list(exported.next_steps),
        "notes": list(exported.notes),
        "details": dict(exported.details),
        "files": {
            name: {"what": exported.files[name], "sha256": sha256_of(path), "size_bytes": path.stat().st_size}
            for name, path in named.items()
        },
    }


def _without_folder(value: str) -> str:
    """A value of an option; of a file or folder only its name, so that no record names a user's disk."""
    return Path(value).name if Path(value).exists() else value


def _write(record: Mapping[str, Any], folder: Path) -> None:
    import json

    (folder / RECORD).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / README).write_text(readme(record), encoding="utf-8")
