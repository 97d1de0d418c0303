"""Golden vectors of a model of several branches: what goes into its leaves, and what comes out at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from sanderling.core.errors import EngineError, ModelError, UnavailableError
from sanderling.core.progress import Progress
from sanderling.core.statistics import relative_error
from sanderling.core.tensor import Array, Feeds
from sanderling.measure.accuracy import within_budget
from sanderling.measure.checks import Check
from sanderling.measure.multimodal import joint_of
from sanderling.measure.questions import read_asked
from sanderling.model.manifest import Accuracy, Variant
from sanderling.model.package import GoldenVectors, Package
from sanderling.run.branches import Branches, multimodal_spec, open_branches
from sanderling.run.features import Content


def contents_of(call: Mapping[str, Feeds], digest: bytes) -> dict[str, Content]:
    """Feeds of each leaf as contents of that digest."""
    return {branch: Content(digest, partial(dict, feeds)) for branch, feeds in call.items()}


def golden_outputs(
    package: Package, variant: str, calls: Sequence[Mapping[str, Feeds]], *, threads: int
) -> dict[str, Array]:
    """Outputs of a variant for each call, along a new first axis, under the names that the manifest has."""
    with Branches(package, variant=variant, threads=threads, cache_bytes=0) as branches:
        fusion = branches.spec.fusion
        rows = []
        for at, call in enumerate(calls):
            contents = contents_of(call, str(at).encode())
            ends = {fusion.name: branches.run([contents])[0]} if fusion is not None else branches.leaves([contents])[0]
            rows.append({f"{end}.{name}": array for end, named in ends.items() for name, array in named.items()})
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def check_branches(package: Package, evaluation: str | Path | None, threads: int, progress: Progress) -> list[Check]:
    """Compute every variant's golden vectors again, and its accuracy on a CSV where one is given.

    Raises:
        DataError: the CSV cannot be used.
    """
    golden = package.golden()
    progress.stage("golden vectors", len(package.manifest.variants))
    checks = []
    for variant in package.manifest.variants:
        checks.append(_golden_check(package, variant, golden, threads))
        progress.advance()
    if evaluation is not None:
        checks += _accuracy_checks(package, Path(evaluation), threads, progress)
    return checks


def _golden_check(package: Package, variant: Variant, golden: GoldenVectors, threads: int) -> Check:
    name, tolerance = f"golden vectors, {variant.id}", package.manifest.golden.tolerance[variant.id]
    try:
        got = golden_outputs(package, variant.id, [_call(golden, at) for at in range(len(golden))], threads=threads)
    except UnavailableError as error:
        return Check(name=name, passed=True, detail=f"not run here: {error}")
    except (EngineError, ModelError) as error:
        return Check(name=name, passed=False, detail=str(error))
    expected = golden.outputs[variant.id]
    worst = max(relative_error(expected[output], got[output]) for output in expected)
    told = f"relative error {worst:.1e} on {len(golden)} calls, at most {tolerance:.0e}"
    return Check(name=name, passed=worst <= tolerance, detail=told)


def _call(golden: GoldenVectors, index: int) -> dict[str, dict[str, Array]]:
    """Feeds of one call, by branch."""
    call: dict[str, dict[str, Array]] = {}
    for name, array in golden.call(index).items():
        branch, _, tensor = name.partition(".")
        call.setdefault(branch, {})[tensor] = array
    return call


def _accuracy_checks(package: Package, source: Path, threads: int, progress: Progress) -> list[Check]:
    manifest, spec = package.manifest, multimodal_spec(package.manifest)
    progress.stage("measure accuracy")
    asked = read_asked(source, manifest.labels)
    joint = joint_of(package, spec, open_branches(package, spec), asked, threads=threads)
    return [
        _accuracy_check(package, variant, joint.accuracy(spec.variants[variant.id])) for variant in manifest.variants
    ]


def _accuracy_check(package: Package, variant: Variant, found: Accuracy) -> Check:
    drop = f"drop {found.drop:.3g}, bound {found.drop_upper:.3g}"
    told = f"{found.metric} {found.value:.4g}, {drop}, {found.samples} samples"
    budget = package.manifest.budget
    if budget is None or variant.id != package.manifest.chosen or variant.id == package.manifest.variants[0].id:
        return Check(name=f"accuracy, {variant.id}", passed=True, detail=told)
    return Check(
        name=f"accuracy, {variant.id} (chosen)",
        passed=within_budget(found, budget),
        detail=f"{told}; budget {budget.metric}={budget.limit:g}",
    )
