"""The session: a package's variant, loaded, that takes arrays and returns arrays."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from sanderling.core.errors import NotMetError, TensorError
from sanderling.core.tensor import Array, Feeds, TensorSpec, check_feeds, check_outputs
from sanderling.model.manifest import Manifest
from sanderling.model.package import Package
from sanderling.run.engines import engine
from sanderling.run.placing import Place, Requirement, check_placement, choose_place, parse_requirement

_NUMBERS = itertools.count()
_OPEN: weakref.WeakSet[Session] = weakref.WeakSet()


class Session:
    """Runs one variant of a package. Close it, or use it in a ``with`` block.

    Attributes:
        package: that was opened.
        variant: that runs.
        engine: that runs it, by name.
        plan_entry: of the package's plan that was followed; None when there is none for this kind of device.
        placement: where the engine says that the graph runs.
        events: what was not done as the plan says, with the reason.
        opened_at: file and line of the program that opened it.
        number: of sessions that this process opened before.
    """

    def __init__(self, package: Package, place: Place, requirement: Requirement | None = None) -> None:
        self.package = package
        self.variant = place.variant
        self.engine = place.engine
        self.plan_entry = place.entry
        self.events = [place.event] if place.event else []
        self._executable = engine(place.engine).load(package.file(place.variant.file), place.options)
        self.placement = self._executable.placement
        self.opened_at = _caller()
        self.number = next(_NUMBERS)
        _OPEN.add(self)
        if requirement is not None:
            try:
                check_placement(self.placement, requirement)
            except NotMetError:
                self.close()
                raise

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

    @property
    def copied_bytes(self) -> int:
        """Bytes copied so far between arrays that were given and the engine; see ``Executable.copied_bytes``."""
        return self._executable.copied_bytes

    def run(self, feeds: Feeds | Array, outputs: Feeds | None = None) -> dict[str, Array]:
        """Run once.

        Args:
            feeds: an array for every input by name; a single array when there is one input.
            outputs: an array for every output by name, which the results are written to; new ones by default.

        Returns:
            An array for every output by name; those of ``outputs`` where they are given.

        Raises:
            TensorError: a name, dtype or shape is wrong, or an output cannot be written to.
            EngineError: execution failed, an output has another shape than its array, or the session is closed.
        """
        named = feeds if isinstance(feeds, Mapping) else self._only_input(feeds)
        check_feeds(named, self.inputs)
        if outputs is not None:
            check_outputs(outputs, self.outputs, named)
        return self._executable.run(named, outputs)

    def _only_input(self, array: Array) -> Feeds:
        if len(self.inputs) != 1:
            raise TensorError(f"one array was given: the model has inputs {'; '.join(map(str, self.inputs))}")
        return {self.inputs[0].name: array}

    def close(self) -> None:
        """Give back what the session holds; a second call does nothing."""
        self._executable.close()
        _OPEN.discard(self)

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
    require: str | None = None,
    check_hashes: bool = True,
) -> Session:
    """Open a package and load it as its plan for this kind of device says, or its chosen variant without a plan.

    Args:
        path: package folder, or a zip of one.
        variant: id such as ``int8``; the plan's, or the chosen one, by default.
        threads: of one call; 0 leaves it to the plan or the engine.
        lean: prefer little resident memory to the last few percent of speed.
        require: where the graph must run, such as ``npu=95%``; never a silent fallback.
        check_hashes: compare every file's hash before it is used.

    Raises:
        PackageError: the package is broken or altered.
        OptionError: there is no such variant, or the requirement has another form.
        NotMetError: less of the graph than required runs there.
    """
    requirement = parse_requirement(require) if require else None
    package = Package.open(path, check_hashes=check_hashes)
    return Session(package, choose_place(package, variant=variant, threads=threads, lean=lean), requirement)


def open_sessions() -> tuple[Session, ...]:
    """Sessions of this process that are alive and not closed, oldest first."""
    return tuple(sorted(_OPEN, key=lambda session: session.number))


def _caller() -> str:
    """File and line of the nearest caller outside Sanderling."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "sanderling":
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
