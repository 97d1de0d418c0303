"""A plan and the numbers behind it, written into the package."""

from __future__ import annotations

from pathlib import Path

from sanderling.core.errors import PackageError
from sanderling.model.package import Package, rewrite_manifest
from sanderling.model.tuning import TUNING, TuneResult, Tuning


def keep(package: Package, result: TuneResult, path: Path) -> None:
    """Write the plan into the manifest, and all that was measured beside it.

    Raises:
        OutputError: it cannot be written; the package stays as it was.
    """
    try:
        results = package.tuning().results
    except PackageError:  # another version's: its plans stay in the manifest
        results = {}
    tuning = Tuning(results={**results, result.fingerprint: result})
    plans = {**package.manifest.plans, result.fingerprint: result.plan}
    manifest = package.manifest.model_copy(update={"plans": plans})
    rewrite_manifest(package, manifest, path, {TUNING: tuning.to_text()})
