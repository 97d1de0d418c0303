"""Whether an engine computes the gradients that a task says: one batch with PyTorch's own.

Wrong gradients with a right loss were seen in engines and exporters alike; nothing may train before this was asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from sanderling.core.errors import EngineError, ModelError, PackageError, first_line
from sanderling.core.tensor import Array
from sanderling.measure.checks import Check
from sanderling.model.learning import LABEL, LearningSpec
from sanderling.model.package import Package
from sanderling.model.tensors import read_safetensors
from sanderling.run.engines import DEFAULT_ENGINE, engine
from sanderling.run.engines.base import EngineOptions, Executable

_LEAST_SCALE = 1e-3


@dataclass(frozen=True)
class GradientCheck:
    """How far an engine's gradients are from the golden ones.

    Attributes:
        error: see ``gradient_error``, over loss, weight and gradients; infinite on NaN.
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
    spec = package.manifest.learning
    if spec is None:
        raise PackageError(f"package {package.path} is no task: prepare one with sanderling learn prepare")
    golden = read_safetensors(package.file(spec.golden.file))
    try:
        feeds, expected = golden_call(spec, golden)
    except KeyError as error:
        raise PackageError(
            f"golden gradients of {package.path} lack {first_line(error)}: prepare the task again"
        ) from error
    return compare_gradients(spec, expected, executable.run(feeds))


def golden_call(spec: LearningSpec, golden: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Feeds of grad_step for the golden batch, and the outputs that are expected of it.

    Raises:
        KeyError: an array is missing.
    """
    feeds = {tensor.name: golden[f"input.{tensor.name}"] for tensor in spec.inputs} | {LABEL: golden[LABEL]}
    expected = {"loss": golden["loss"], "weight": golden["weight"]}
    for parameter in spec.parameters:
        feeds[f"param.{parameter.name}"] = golden[f"param.{parameter.name}"]
        feeds[f"acc.{parameter.name}"] = np.zeros(parameter.shape, np.float32)
        expected[f"acc.out.{parameter.name}"] = golden[f"grad.{parameter.name}"]
    return feeds, expected


def compare_gradients(spec: LearningSpec, expected: Mapping[str, Array], got: Mapping[str, Array]) -> GradientCheck:
    """Hold an engine's outputs to the expected ones."""
    error, worst = gradient_error(expected, got, weight=float(expected["weight"]))
    return GradientCheck(error, worst, error <= spec.golden.tolerance)


def gradient_error(
    reference: Mapping[str, Array], got: Mapping[str, Array], *, weight: float = 1.0
) -> tuple[float, str]:
    """Largest max |difference| / max(1e-3, max |reference|) over all arrays, and the name of the worst.

    Args:
        reference: what is expected.
        got: what is compared with it.
        weight: that the gradients' sums are divided by: the floor of 1e-3 is one of means.
    """
    least = _LEAST_SCALE * max(1.0, weight)
    errors = {name: _error(array, got.get(name), least) for name, array in reference.items()}
    worst = max(errors, key=lambda name: errors[name])
    return errors[worst], worst


def _error(reference: Array, got: Array | None, least: float) -> float:
    if got is None or np.shape(got) != reference.shape or not np.isfinite(got).all():
        return float("inf")
    if reference.size == 0:
        return 0.0
    difference = np.abs(reference.astype(np.float64) - got)
    return float(difference.max() / max(least, float(np.abs(reference).max())))


def gradient_verification(package: Package, threads: int = 0) -> Check:
    """The check of ``sanderling verify``: the golden gradients on the default engine."""
    spec = package.manifest.learning
    assert spec is not None
    try:
        options = EngineOptions(threads=threads, lean=True)
        with closing(engine(DEFAULT_ENGINE).load(package.file(spec.grad_step), options)) as executable:
            found = check_gradients(package, executable)
    except (EngineError, ModelError) as error:
        return Check(name="golden gradients", passed=False, detail=str(error))
    told = f"relative error {found.error:.1e}, at most {spec.golden.tolerance:.0e} allowed"
    detail = told if found.passed else f"{told}; '{found.worst}' is the worst"
    return Check(name="golden gradients", passed=found.passed, detail=detail)
