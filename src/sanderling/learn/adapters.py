"""One model in memory, several sets of trained parameters: inputs of its graph, exchanged from call to call."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sanderling.core.closing import Closing
from sanderling.core.errors import EngineError, OptionError, WeightsError
from sanderling.core.tensor import Array, Feeds, TensorSpec, check_feeds
from sanderling.learn.checkpoint import read_checkpoint
from sanderling.learn.graphs import Arrays, named
from sanderling.learn.task import open_task
from sanderling.run.engines.base import Executable

INITIAL = "initial"


class AdapterSession(Closing):
    """Runs a task's model with one of several sets of parameters. Usable from several threads.

    Close it, or use it in a ``with`` block.

    Args:
        path: of the task, a folder or a zip.
        engine: that computes.
        threads: of one call; 0 leaves it to the engine.

    Attributes:
        inputs: what ``run`` expects.

    Raises:
        PackageError: the package is broken, or cannot be trained.
        UnavailableError: the engine or safetensors is not installed.
    """

    def __init__(self, path: str | Path, *, engine: str = "onnxruntime", threads: int = 0) -> None:
        self._task = open_task(path, engine_name=engine, threads=threads)
        self.inputs: tuple[TensorSpec, ...] = self._task.package.manifest.inputs
        self._sets: dict[str, Arrays] = {INITIAL: named("param", self._task.initial_parameters())}
        self._executable: Executable | None = self._task.load(self._task.spec.inference, spin=True)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the sets; ``initial`` are the parameters that the task came with."""
        return tuple(self._sets)

    def add(self, name: str, source: str | Path | Mapping[str, Array]) -> None:
        """Add a set, or replace the one of that name; calls that run keep the one that they began with.

        Args:
            name: that ``run`` is given.
            source: a checkpoint, or arrays by the parameters' names, which are copied.

        Raises:
            WeightsError: the checkpoint is of another task, or an array does not fit.
        """
        if isinstance(source, Mapping):
            parameters = {key: np.array(array, copy=True) for key, array in source.items()}
        else:
            parameters = read_checkpoint(Path(source), self._task.spec).parameters
        shapes = {parameter.name: parameter.shape for parameter in self._task.spec.parameters}
        if parameters.keys() != shapes.keys():
            wrong = sorted(parameters.keys() ^ shapes.keys())[0]
            raise WeightsError(f"adapter '{name}' and the task do not agree on parameter '{wrong}'")
        for key, array in parameters.items():
            if array.shape != shapes[key] or array.dtype != np.float32:
                got, expected = f"{array.dtype}{list(array.shape)}", f"float32{list(shapes[key])}"
                raise WeightsError(f"adapter '{name}': '{key}' is {got}: expected {expected}")
        self._sets[name] = named("param", parameters)

    def remove(self, name: str) -> None:
        """Forget a set.

        Raises:
            OptionError: there is no such set, or it is the initial one.
        """
        if name == INITIAL:
            raise OptionError(f"'{INITIAL}' cannot be removed: the task came with it")
        self._set(name)
        del self._sets[name]

    def run(self, feeds: Feeds, adapter: str = INITIAL) -> dict[str, Array]:
        """Run the model with a set of parameters.

        Args:
            feeds: the model's inputs.
            adapter: name of the set.

        Raises:
            OptionError: there is no such set.
            TensorError: an input does not fit.
            EngineError: the engine failed, or the session is closed.
        """
        executable = self._executable
        if executable is None:
            raise EngineError("the session is closed: make another one")
        check_feeds(feeds, self.inputs)
        return executable.run({**feeds, **self._set(adapter)})

    def close(self) -> None:
        """Give back what the model holds; a second call does nothing."""
        executable, self._executable = self._executable, None
        if executable is not None:
            executable.close()

    def _set(self, name: str) -> Arrays:
        try:
            return self._sets[name]
        except KeyError:
            raise OptionError(f"there is no adapter '{name}': available are {', '.join(self._sets)}") from None
