"""Golden vectors of a package of several branches, and how long it takes to ask it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from sanderling.core.arrays import write_npz
from sanderling.core.precision import Precision
from sanderling.core.progress import Progress
from sanderling.core.tensor import Feeds, random_feeds
from sanderling.measure.latency import Timing, time_interleaved
from sanderling.measure.multimodal import FLOAT
from sanderling.measure.multimodal_golden import contents_of, golden_outputs
from sanderling.model.manifest import Golden, Manifest
from sanderling.model.multimodal import MultimodalSpec
from sanderling.model.package import GoldenVectors, Package, file_entries, write_manifest
from sanderling.run.branches import Branches
from sanderling.run.composite import variant_file
from sanderling.run.features import digest_of
from sanderling.workshop.multimodal.making import Making
from sanderling.workshop.proof import GOLDEN_TOLERANCE

_GOLDEN_SAMPLES = 4
_TOLERANCES = {FLOAT: GOLDEN_TOLERANCE[Precision.FP32]}
_OTHERS_TOLERANCE = GOLDEN_TOLERANCE[Precision.INT8]
_WARMUP = 5
_TIMING_SECONDS = 15.0
_ASKED = itertools.count()

Call = Mapping[str, Feeds]


def first_calls(spec: MultimodalSpec, making: Making) -> list[Call]:
    """Inputs of the branches that read pictures and texts, for a few calls."""
    found: list[Call] = []
    for at in range(_GOLDEN_SAMPLES):
        call: dict[str, Feeds] = {}
        for leaf in spec.leaves:
            samples, inputs = making.evaluation(leaf.name), making.packages[leaf.name].manifest.inputs
            call[leaf.name] = samples.one(at % len(samples)) if samples else random_feeds(inputs, seed=at)
        found.append(call)
    return found


def write_variants(folder: Path, manifest: Manifest) -> None:
    """Write the files that stand for the variants, and a manifest that makes the package one that can be opened."""
    assert manifest.multimodal is not None
    for name, chosen in manifest.multimodal.variants.items():
        (folder / variant_file(name)).write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")
    write_manifest(folder, manifest.model_copy(update={"files": file_entries(folder)}))


def write_golden(folder: Path, manifest: Manifest, calls: Sequence[Call], progress: Progress) -> Golden:
    """Compute and write the golden vectors of all variants of a package that can be opened."""
    progress.stage("golden vectors", len(manifest.variants))
    package = Package.open(folder, check_hashes=False)
    stacked = {
        f"{branch}.{name}": np.stack([call[branch][name] for call in calls])
        for branch in calls[0]
        for name in calls[0][branch]
    }
    outputs = {}
    for variant in manifest.variants:
        outputs[variant.id] = golden_outputs(package, variant.id, calls, threads=1)
        progress.advance()
    write_npz(folder / "golden.npz", GoldenVectors(stacked, outputs).to_arrays())
    tolerance = {variant.id: _TOLERANCES.get(variant.id, _OTHERS_TOLERANCE) for variant in manifest.variants}
    return Golden(file="golden.npz", samples=len(calls), tolerance=tolerance)


def time_variants(
    folder: Path, manifest: Manifest, call: Call, *, threads: int, repeats: int, progress: Progress
) -> dict[str, Timing]:
    """Time each variant: ``first ID`` on what was never asked, ``again ID`` on a picture that was seen, in turn."""
    package = Package.open(folder, check_hashes=False)
    progress.stage("measure latency", repeats)
    opened = {variant.id: Branches(package, variant=variant.id, threads=threads) for variant in manifest.variants}
    try:
        return time_interleaved(
            {
                f"{when} {name}": partial(_ask, branches, call, seen=when == "again")
                for name, branches in opened.items()
                for when in (("first", "again") if branches.spec.fusion else ("first",))
            },
            warmup=_WARMUP,
            repeats=repeats,
            seconds=_TIMING_SECONDS,
            progress=progress,
        )
    finally:
        for branches in opened.values():
            branches.close()


def _ask(branches: Branches, call: Call, *, seen: bool) -> None:
    """Ask what was never asked; about a picture that was asked about before where ``seen``."""
    contents = contents_of(call, digest_of(str(next(_ASKED)).encode()))
    if seen:
        picture = branches.spec.leaf("picture").name
        contents[picture] = replace(contents[picture], digest=b"seen")
    if branches.spec.fusion is not None:
        branches.run([contents])
    else:
        branches.leaves([contents])
