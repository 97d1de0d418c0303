"""From a PyTorch module to a task: a package that infers, and holds graphs that train it."""

from __future__ import annotations

from sanderling.core.progress import Progress
from sanderling.workshop.learning.options import LearningOptions
from sanderling.workshop.options import BuildOptions
from sanderling.workshop.pipeline import BuildResult


def prepare(options: BuildOptions, learning: LearningOptions, progress: Progress | None = None) -> BuildResult:
    """Trace forward, loss and backward once, and write a package whose manifest has a ``LearningSpec``.

    Args:
        options: of the build of the variant ``fp32``; ``source`` is ``package.module:factory`` or a pickled module.
        learning: what is trained, and how.
        progress: told about stages, steps and events (what was frozen or switched off).

    Raises:
        InputError: source, options or data cannot be used; an operator has no backward here (the message names it).
        NotMetError: the graphs' gradients are not PyTorch's; nothing is written.
        UnavailableError: an extra is missing.
    """
    raise NotImplementedError
