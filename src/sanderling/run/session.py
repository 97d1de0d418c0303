"""The session: a package's variant, loaded, that takes arrays and returns arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from sanderling.core.errors import TensorError
from sanderling.core.tensor import Array, Feeds, TensorSpec, check_feeds
from sanderling.model.manifest import Manifest, Variant
from sanderling.model.package import Package
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions


class Session:
    """Runs one variant of a package. Close it, or use it in a ``with`` block."""

    def __init__(self, package: Package, variant: Variant, options: EngineOptions) -> None:
        self.package = package
        self.variant = variant
        self._executable = engine(variant.engines[0]).load(package.file(variant.file), options)

    @property
    def manifest(self) -> Manifest:
        """The package's manifest."""
        return self.package.manifest

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What ``run`` expects."""
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What ``run`` returns."""
        return self.manifest.outputs

    def run(self, feeds: Feeds | Array) -> dict[str, Array]:
        """Run once.

        Args:
            feeds: an array for every input by name; a single array when there is one input.

        Returns:
            An array for every output by name.

        Raises:
            TensorError: a name, dtype or shape is wrong.
            EngineError: execution failed, or the session is closed.
        """
        named = feeds if isinstance(feeds, Mapping) else self._only_input(feeds)
        check_feeds(named, self.inputs)
        return self._executable.run(named)

    def _only_input(self, array: Array) -> Feeds:
        if len(self.inputs) != 1:
            raise TensorError(f"one array was given: the model has inputs {'; '.join(map(str, self.inputs))}")
        return {self.inputs[0].name: array}

    def close(self) -> None:
        """Give back what the session holds; a second call does nothing."""
        self._executable.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def load(
    path: str | Path,
    *,
    variant: str | None = None,
    threads: int = 0,
    lean: bool = False,
    check_hashes: bool = True,
) -> Session:
    """Open a package and load one of its variants.

    Args:
        path: package folder, or a zip of one.
        variant: id such as ``int8``; the chosen one by default.
        threads: of one call; 0 leaves it to the engine.
        lean: prefer little resident memory to the last few percent of speed.
        check_hashes: compare every file's hash before it is used.

    Raises:
        PackageError: the package is broken or altered.
        OptionError: there is no such variant.
    """
    package = Package.open(path, check_hashes=check_hashes)
    return Session(package, package.variant(variant), EngineOptions(threads=threads, lean=lean))
