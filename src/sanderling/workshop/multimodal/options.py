"""What a user asks of the build of a model with several branches."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sanderling.core.errors import OptionError
from sanderling.core.precision import Precision
from sanderling.model.manifest import Budget
from sanderling.model.multimodal import TASKS

_PRECISIONS = (Precision.FP32, Precision.INT8)


@dataclass(frozen=True)
class MultimodalBuildOptions:
    """Options of a build; paths are not checked until they are used.

    Attributes:
        source: ``package.module:factory``, or for matching a Hugging Face folder of a CLIP or SigLIP.
        output: ``NAME.sdl`` (a folder) or ``NAME.sdl.zip``.
        task: ``visual-question-answering`` or ``image-text-matching``.
        weights: checkpoint of a factory's branches; its keys begin with the branches' names.
        factory_arguments: keyword arguments of the factory.
        calibration: CSV of pictures with questions or texts; INT8 needs it.
        evaluation: another one; a quarter of the calibration pictures is held out without it.
        budget: of the whole; ``top1`` or ``agreement``.
        precisions: of each branch.
        calibration_limit: most samples of each branch.
        threads: of each measured call; 0 means all usable cores.
        repeats: timed calls of each variant.
        seed: of everything random.
    """

    source: str
    output: Path
    task: str
    weights: Path | None = None
    factory_arguments: dict[str, Any] = field(default_factory=dict)
    calibration: Path | None = None
    evaluation: Path | None = None
    budget: Budget | None = None
    precisions: tuple[Precision, ...] = _PRECISIONS
    calibration_limit: int = 512
    threads: int = 0
    repeats: int = 100
    seed: int = 0

    def plain(self) -> dict[str, Any]:
        """As plain values; files and folders by their names only, so that no evidence names a user's disk."""
        return {
            "source": Path(self.source).name,
            "output": self.output.name,
            "task": self.task,
            "weights": self.weights.name if self.weights else None,
            "calibration": self.calibration.name if self.calibration else None,
            "evaluation": self.evaluation.name if self.evaluation else None,
            "budget": f"{self.budget.metric}={self.budget.limit:g}" if self.budget else None,
            "precisions": [str(precision) for precision in self.precisions],
            "threads": self.threads,
            "repeats": self.repeats,
            "seed": self.seed,
        }


def check_options(options: MultimodalBuildOptions) -> None:
    """Check what can be checked before anything is read.

    Raises:
        OptionError: an unknown task, a precision that branches are not built in, or a budget of another kind.
    """
    if options.task not in TASKS:
        raise OptionError(f"unknown task '{options.task}': available are {', '.join(TASKS)}")
    wrong = [str(precision) for precision in options.precisions if precision not in _PRECISIONS]
    if wrong:
        raise OptionError(f"branches are built in {' and '.join(_PRECISIONS)}: got {', '.join(wrong)}")
    if options.budget is not None and options.budget.metric not in ("top1", "agreement"):
        raise OptionError(f"--budget {options.budget.metric}={options.budget.limit:g}: give top1=1 or agreement=2")
    if Precision.INT8 in options.precisions and Precision.FP32 not in options.precisions:
        raise OptionError("--precision int8 alone: branches are compared with FP32; give fp32,int8")
