"""Render a package's report again, with what was measured since it was built."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from sanderling.core.errors import PackageError, UnavailableError
from sanderling.core.progress import Event, Progress
from sanderling.model.package import EVIDENCE, REPORT, Package, rewrite_manifest
from sanderling.workshop.evidence import Evidence
from sanderling.workshop.report.render import render_report


def refresh_report(path: str | Path, progress: Progress) -> None:
    """Write the report of the package at ``path`` again; where that cannot be done it stays, and an event says why.

    Raises:
        PackageError: the package is broken.
        OutputError: it cannot be written; it stays as it was.
    """
    package = Package.open(path)
    try:
        text = render_report(package.manifest, _evidence(package), package.tuning())
    except (PackageError, UnavailableError) as error:
        progress.event(Event(kind="report-not-updated", subject=REPORT, reason=str(error)))
        return
    rewrite_manifest(package, package.manifest, Path(path), {REPORT: text})


def _evidence(package: Package) -> Evidence:
    path = package.file(EVIDENCE)
    try:
        return Evidence.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise PackageError(f"{path} was written by another Sanderling: it cannot be shown again") from error
