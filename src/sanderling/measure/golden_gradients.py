"""Whether an engine computes the gradients that a task says: one batch with PyTorch's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sanderling.core.tensor import Array
from sanderling.model.package import Package
from sanderling.run.engines.base import Executable


@dataclass(frozen=True)
class GradientCheck:
    """How far an engine's gradients are from the golden ones.

    Attributes:
        error: largest max |difference| / max(1e-3, max |reference|) over loss, weight and gradients; infinite on NaN.
        worst: name of the output that has it.
        passed: whether the error is inside the task's tolerance.
    """

    error: float
    worst: str
    passed: bool


def check_gradients(package: Package, executable: Executable) -> GradientCheck:
    """Run the golden batch through grad_step as an engine loaded it, and compare.

    Raises:
        PackageError: the package is no task, or its golden file cannot be read.
        EngineError: the engine could not run it.
    """
    raise NotImplementedError


def gradient_error(reference: Mapping[str, Array], got: Mapping[str, Array]) -> tuple[float, str]:
    """Largest max |difference| / max(1e-3, max |reference|) over all arrays, and the name of the worst."""
    import numpy as np

    worst = (0.0, next(iter(reference)))
    for name, array in reference.items():
        difference = np.abs(array.astype(np.float64) - got[name].astype(np.float64))
        error = float(difference.max(initial=0.0) / max(1e-3, np.abs(array).max(initial=0.0)))
        worst = max(worst, (error if np.isfinite(error) else np.inf, name))
    return worst
