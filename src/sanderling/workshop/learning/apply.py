"""From a task and what a device learned to an adapted package; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sanderling.core.progress import Progress
from sanderling.workshop.options import BuildOptions
from sanderling.workshop.pipeline import BuildResult


@dataclass(frozen=True)
class Applied:
    """What was put in: the checkpoint's step and epoch, and the build's result."""

    result: BuildResult
    step: int
    folded: tuple[str, ...]


def apply(options: BuildOptions, checkpoint: Path, progress: Progress | None = None) -> Applied:
    """Put trained parameters into the task's model, fold its adapters, and build a package of it.

    Args:
        options: of the build; ``source`` is the task, ``output`` the new package, with calibration and evaluation data
            as for any build.
        checkpoint: safetensors that a trainer saved: tensors ``param.NAME``, and the task's fingerprint.
        progress: told about stages, steps and events.

    Raises:
        PackageError: the task is broken, or is no task.
        WeightsError: the checkpoint is unreadable, or of another task.
    """
    raise NotImplementedError
