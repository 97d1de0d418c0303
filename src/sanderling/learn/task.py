"""A task as a device sees it: a package that can be trained, and its graphs in an engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sanderling.core.errors import OptionError, PackageError, UnavailableError, WeightsError, first_line
from sanderling.core.tensor import Array, TensorSpec
from sanderling.model.learning import LearningSpec, PrivateStep
from sanderling.model.package import Package
from sanderling.model.tensors import read_safetensors
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions, Executable

HINT = "pip install 'sanderling[learn]'"


@dataclass(frozen=True)
class Task:
    """A package with a ``LearningSpec``.

    Attributes:
        package: that was opened.
        spec: what can be trained.
        engine: name of the engine that computes.
        threads: of one call; 0 leaves it to the engine.
        on_features: whether its steps take the outputs of the frozen part instead of the model's inputs.
    """

    package: Package
    spec: LearningSpec
    engine: str
    threads: int = 0
    on_features: bool = False

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What a batch holds besides ``label``."""
        if not self.on_features:
            return self.spec.inputs
        assert self.spec.features is not None
        return self.spec.features.tensors

    @property
    def private(self) -> PrivateStep:
        """The gradient step with clipping per sample."""
        cut = self.spec.features
        return cut.private if self.on_features and cut is not None else self.spec.private

    @property
    def batch_rows(self) -> int | None:
        """Rows that a batch must have; None where any number will do."""
        return fixed_rows(self.inputs)

    @property
    def digest(self) -> str:
        """SHA-256 over the hashes of all files: another build of the same task has another one."""
        hashes = {name: entry.sha256 for name, entry in self.package.manifest.files.items()}
        return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()

    def load(self, file: str, *, threads: int | None = None, spin: bool = False) -> Executable:
        """Load one of the task's graphs, lean: without an arena, which would keep the largest step's memory.

        Args:
            file: of the package.
            threads: of one call; the task's own by default.
            spin: let threads wait busily for the next call.

        Raises:
            ModelError: the engine does not take the graph.
            EngineError: loading failed.
        """
        options = EngineOptions(threads=self.threads if threads is None else threads, lean=True, spin=spin)
        return engine(self.engine).load(self.package.file(file), options)

    def step_file(self, kind: str) -> str:
        """File of the graph ``grad_step`` or ``eval`` that fits the batches."""
        owner = self.spec.features if self.on_features else self.spec
        found: str = getattr(owner, kind)
        return found

    def initial_parameters(self) -> dict[str, Array]:
        """First value of each parameter, float32, as arrays of its own.

        Raises:
            PackageError: the file is no safetensors, or lacks a parameter.
        """
        tensors = read_safetensors(self.package.file(self.spec.initial))
        found = {}
        for parameter in self.spec.parameters:
            array = tensors.get(parameter.name)
            if array is None or array.shape != parameter.shape or array.dtype != np.float32:
                told = "is missing" if array is None else f"is {array.dtype}{list(array.shape)}"
                raise PackageError(
                    f"{self.package.path}: first value of '{parameter.name}' {told}: expected float32"
                    f"{list(parameter.shape)}; prepare the task again"
                )
            found[parameter.name] = np.array(array)  # the library's may not be written to
        return found


def open_task(
    path: str | Path, *, engine_name: str, threads: int = 0, on_features: bool = False, check_hashes: bool = True
) -> Task:
    """Open a package that can be trained.

    Raises:
        PackageError: it is broken, or cannot be trained.
        OptionError: its steps cannot take features.
        UnavailableError: the engine is not installed.
    """
    package = Package.open(path, check_hashes=check_hashes)
    spec = package.manifest.learning
    if spec is None:
        raise PackageError(f"package {path} cannot be trained: make a task with sanderling learn prepare")
    if on_features and spec.features is None:
        raise OptionError(f"package {path} has no frozen part that is cut off: train it without features")
    engine(engine_name)
    return Task(package, spec, engine_name, threads, on_features)


def fixed_rows(inputs: Sequence[TensorSpec]) -> int | None:
    """Rows that a batch must have, by the first axis of its inputs; None where any number will do."""
    sizes = [spec.shape[0] for spec in inputs if spec.shape and isinstance(spec.shape[0], int)]
    return sizes[0] if sizes else None


def read_tensors(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """Tensors and metadata of a safetensors file.

    Raises:
        WeightsError: it is missing, cut off or no safetensors.
        UnavailableError: safetensors is not installed.
    """
    safetensors = safetensors_package()
    if not path.is_file():
        raise WeightsError(f"{path} does not exist: expected a safetensors file")
    try:
        with safetensors.safe_open(path, framework="numpy") as opened:
            # copies: what the library returns may not be written to
            tensors = {name: np.array(opened.get_tensor(name)) for name in opened.keys()}  # noqa: SIM118 - no mapping
            return tensors, dict(opened.metadata() or {})
    except (OSError, ValueError, TypeError, KeyError, safetensors.SafetensorError) as error:
        raise WeightsError(f"{path} is no readable safetensors file: {first_line(error)}") from error


def safetensors_package() -> Any:  # noqa: ANN401 - a module
    """The package that reads and writes checkpoints.

    Raises:
        UnavailableError: it is not installed.
    """
    try:
        import safetensors
        import safetensors.numpy
    except ImportError as error:
        raise UnavailableError(f"training needs safetensors: {HINT}") from error
    return safetensors
