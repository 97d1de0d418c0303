"""A package of several branches as one executable: what a session, a pool and a server see of it.

It is no engine of the list: it computes nothing itself, and its branches run on engines of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sanderling.core.errors import EngineError, ModelError, SanderlingError
from sanderling.core.precision import Precision
from sanderling.core.tensor import Array, Feeds
from sanderling.model.package import Package
from sanderling.run.branches import Branches
from sanderling.run.copies import check_shape
from sanderling.run.engines.base import Availability, DeviceInfo, DeviceKind, EngineOptions, Placement, cpu_device
from sanderling.run.features import Content, digest_of
from sanderling.run.lanes import LanePlan
from sanderling.run.placing import Place, default_options

NAME = "branches"


def composite_lane(package: Package, *, variant: str | None = None, threads: int = 0) -> LanePlan:
    """The way of running a package of several branches.

    Raises:
        OptionError: there is no such variant.
    """
    found = package.variant(variant)
    place = Place(NAME, found, default_options(found, threads=threads))
    return LanePlan(place, "cpu", DeviceKind.CPU, COMPOSITE)


def variant_file(variant: str) -> str:
    """Name of the file that stands for a variant: it holds which variant each branch has."""
    return f"variant.{variant}.json"


class Composite:
    """Loads a package of several branches by the file of one of its variants."""

    name = NAME

    def availability(self) -> Availability:
        """Always here; its branches' engines may not be."""
        return Availability(True, version="1")

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The processor: a branch elsewhere is that branch's own."""
        return (cpu_device(self.name, tuple(Precision)),)

    def load(self, model: Path | bytes, options: EngineOptions) -> CompositeExecutable:
        """Open all branches.

        Raises:
            ModelError: it is no file of a package's variant.
            EngineError: a branch cannot be loaded.
        """
        if not isinstance(model, Path):
            raise ModelError("a model of several branches is loaded from its package, not from bytes")
        package = Package.open(model.parent, check_hashes=False)
        variant = next((each.id for each in package.manifest.variants if each.file == model.name), None)
        if variant is None:
            raise ModelError(f"{model.name} is no variant of {package.path}")
        return CompositeExecutable(Branches(package, variant=variant, threads=options.threads))


class CompositeExecutable:
    """Runs all branches for every row; rows that share a picture or a text share its features."""

    def __init__(self, branches: Branches) -> None:
        self.branches = branches
        self.inputs = branches.package.manifest.inputs
        self.outputs = branches.package.manifest.outputs
        self.placement = Placement("cpu", {DeviceKind.CPU: 1.0}, detail=", ".join(self._lanes()))
        self._closed = False

    @property
    def copied_bytes(self) -> int:
        """Of all branches."""
        return self.branches.copied_bytes

    def run(self, feeds: Feeds, outputs: Feeds | None = None) -> dict[str, Array]:
        """Run once; see ``Executable``."""
        if self._closed:
            raise EngineError(f"{NAME}: the package is closed; load it again")
        rows = len(next(iter(feeds.values())))
        requests = [
            {leaf.name: _content(_of_branch(feeds, leaf.name, row)) for leaf in self.branches.spec.leaves}
            for row in range(rows)
        ]
        try:
            found = self._ends(requests)
        except EngineError:
            raise
        except SanderlingError as error:
            raise EngineError(f"{NAME}: {error}") from error
        return self._written(
            {spec.name: np.concatenate([row[spec.name] for row in found]) for spec in self.outputs}, outputs
        )

    def close(self) -> None:
        """Close all branches."""
        self._closed = True
        self.branches.close()

    def _lanes(self) -> Iterator[str]:
        for name, session in self.branches.sessions.items():
            yield f"{name} on {session.lane}"

    def _ends(self, requests: list[dict[str, Content]]) -> list[dict[str, Array]]:
        """What comes out of the last branches, under the package's names."""
        fusion = self.branches.spec.fusion
        if fusion is None:
            return [_named(found) for found in self.branches.leaves(requests)]
        return [_named({fusion.name: found}) for found in self.branches.run(requests)]

    def _written(self, results: dict[str, Array], outputs: Feeds | None) -> dict[str, Array]:
        if outputs is None:
            return results
        for name, array in results.items():
            check_shape(name, array.shape, outputs[name], NAME)
            outputs[name][...] = array
        return {name: outputs[name] for name in results}


def _of_branch(feeds: Feeds, branch: str, row: int) -> dict[str, Array]:
    """One row of a branch's inputs, under the branch's own names."""
    prefix = f"{branch}."
    return {name.removeprefix(prefix): array[row : row + 1] for name, array in feeds.items() if name.startswith(prefix)}


def _content(feeds: dict[str, Array]) -> Content:
    """The row's own bytes are what it is known by; it is copied, as the caller's arrays are not kept."""
    data = b"".join(name.encode() + np.ascontiguousarray(array).tobytes() for name, array in sorted(feeds.items()))
    return Content(digest_of(data), lambda: feeds)


def _named(found: dict[str, Feeds]) -> dict[str, Array]:
    return {f"{branch}.{name}": array for branch, named in found.items() for name, array in named.items()}


COMPOSITE = Composite()
