"""What a user asks of the build of a language model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sanderling.core.errors import OptionError
from sanderling.core.precision import Precision
from sanderling.model.manifest import Budget

TASK = "text-generation"
DEFAULT_BUDGET = Budget(metric="perplexity", limit=5)
_PRECISIONS = {
    "fp32": Precision.FP32,
    "fp16": Precision.FP16,
    "int8": Precision.INT8,
    "int8-blocks": Precision.INT8,
    "int8-residual": Precision.INT8,
    "int4": Precision.INT4_WEIGHTS,
}
_FOREIGN = ("gguf", "openvino")


@dataclass(frozen=True)
class TextBuildOptions:
    """Options of a build; paths are not checked until they are used.

    Attributes:
        source: a Hugging Face folder or a GGUF file.
        output: ``NAME.sdl`` (a folder) or ``NAME.sdl.zip``.
        precisions: ids of the variants to make; ``gguf`` and ``openvino`` are for other engines.
        budget: by how many percent perplexity may rise over FP32's; None holds int8 to 5, and leaves int4 whole.
        calibration: text that layers are chosen on; texts of our own without.
        evaluation: text that perplexity is reported on; other texts of our own without.
        threads: of each measured call; 0 means all usable cores.
    """

    source: str
    output: Path
    precisions: tuple[str, ...] = ("int8",)
    budget: Budget | None = None
    calibration: Path | None = None
    evaluation: Path | None = None
    threads: int = 0

    @property
    def limit(self) -> Budget:
        """The budget that is held against."""
        return self.budget or DEFAULT_BUDGET

    def plain(self) -> dict[str, Any]:
        """As plain values; files and folders by their names only, so that no evidence names a user's disk."""
        return {
            "source": Path(self.source).name,
            "output": self.output.name,
            "precisions": list(self.precisions),
            "budget": f"{self.budget.metric}={self.budget.limit:g}" if self.budget else None,
            "calibration": self.calibration.name if self.calibration else None,
            "evaluation": self.evaluation.name if self.evaluation else None,
            "threads": self.threads,
        }


def precision_of(identifier: str) -> Precision:
    """The precision of a variant's id."""
    return _PRECISIONS[identifier]


def parse_text_precisions(text: str | None) -> tuple[str, ...]:
    """Read a comma-separated list such as ``int8,int4``; nothing means ``int8``.

    Raises:
        OptionError: a name that is no precision of a language model, or no name.
    """
    names = tuple(dict.fromkeys(part.strip().lower() for part in (text or "int8").split(",") if part.strip()))
    available = (*_PRECISIONS, *_FOREIGN)
    unknown = [name for name in names if name not in available]
    if unknown or not names:
        wrong = unknown[0] if unknown else text
        raise OptionError(f"unknown precision '{wrong}' of a language model: available are {', '.join(available)}")
    return names


def check_budget(budget: Budget | None) -> Budget | None:
    """The same budget.

    Raises:
        OptionError: it is not of perplexity.
    """
    if budget is not None and budget.metric != "perplexity":
        raise OptionError(f"--budget {budget.metric}={budget.limit:g} is not of a language model: give perplexity=5")
    return budget
