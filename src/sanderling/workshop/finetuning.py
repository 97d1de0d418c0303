"""Quantisation-aware training, from a factory and labelled data to a package."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace

from sanderling.core.errors import OptionError, UnavailableError
from sanderling.core.progress import Progress
from sanderling.workshop.export.source import Exported
from sanderling.workshop.options import BuildOptions, TrainingOptions
from sanderling.workshop.pipeline import BuildResult, build

_ALL_SAMPLES = 1 << 62


def finetune(options: BuildOptions, training: TrainingOptions, progress: Progress | None = None) -> BuildResult:
    """Train in eight bits and build a package of the float model and the trained one.

    Args:
        options: of the build; ``source`` is ``package.module:factory`` and ``calibration`` the labelled training data.
        training: how to train.
        progress: told about stages, steps and events.

    Raises:
        InputError: source, options or data cannot be used; nothing is written.
        NotMetError: the loss is not finite; nothing is written.
        UnavailableError: an extra is missing.
    """
    _check(options, training)

    def make_graph(options: BuildOptions, progress: Progress) -> Exported:
        from sanderling.workshop.quantize.qat import train

        return train(options, training, progress)

    return build(replace(options, calibration_limit=_ALL_SAMPLES), progress, make_graph)


def _check(options: BuildOptions, training: TrainingOptions) -> None:
    if options.calibration is None:
        raise OptionError("training needs labelled data: give --data DIR|CSV|FILE.npz")
    if not 0 < training.learning_rate < math.inf:
        raise OptionError(f"--lr {training.learning_rate:g} is out of range: expected a number above 0, such as 1e-4")
    if not 0 <= training.distillation <= 1:
        raise OptionError(f"--distillation {training.distillation:g} is out of range: expected 0 to 1")
    if training.epochs < 1 or training.batch < 2 or training.samples < 0:
        raise OptionError("training needs at least 1 epoch, 2 samples a batch, and no negative number of samples")
    missing = [name for name in ("torch", "torchao") if importlib.util.find_spec(name) is None]
    if missing:
        raise UnavailableError(
            f"quantisation-aware training needs {' and '.join(missing)}: pip install 'sanderling[qat]'"
        )
