"""Hold the engine's own optimiser back where it changes what a variant computes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from sanderling.core.arrays import read_npz
from sanderling.core.progress import Event, Progress
from sanderling.measure.golden import safe_level
from sanderling.model.manifest import Golden
from sanderling.model.package import GoldenVectors
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions, Executable, Optimization


def safe_levels(folder: Path, files: Mapping[str, Path], golden: Golden, progress: Progress) -> dict[str, Optimization]:
    """The highest level of optimisation at which each variant computes what its graph says; lowering is an event."""
    vectors = GoldenVectors.from_arrays(read_npz(folder / golden.file), golden)
    progress.stage("check the engine's optimiser", len(files))
    levels = {}
    for variant, path in files.items():
        found = safe_level(
            partial(_load, path),
            vectors,
            variant,
            golden.tolerance[variant],
        )
        levels[variant] = found.level
        if found.reason:
            progress.event(Event(kind="optimization-lowered", subject=variant, reason=found.reason))
        progress.advance()
    return levels


def _load(path: Path, level: Optimization) -> Executable:
    return engine().load(path, EngineOptions(threads=1, optimization=level))
