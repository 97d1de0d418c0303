"""The numeric precisions of a variant."""

from __future__ import annotations

from enum import StrEnum

from sanderling.core.errors import OptionError


class Precision(StrEnum):
    """How a variant stores its weights and computes; the last two leave what flows through the graph in float."""

    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"
    INT8_WEIGHTS = "int8-weights"
    INT4_WEIGHTS = "int4-weights"


def parse_precisions(text: str) -> tuple[Precision, ...]:
    """Read a comma-separated list such as ``fp32,int8``; FP32 is always part of the answer, and first.

    Raises:
        OptionError: a name that is no precision.
    """
    chosen = [Precision.FP32]
    for name in (part.strip().lower() for part in text.split(",") if part.strip()):
        if name not in set(Precision):
            raise OptionError(f"unknown precision '{name}': available are {', '.join(Precision)}")
        if Precision(name) not in chosen:
            chosen.append(Precision(name))
    return tuple(chosen)
