"""What the build of a language model measured, as kept in `evidence.json`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from sanderling.core.machine import Machine
from sanderling.core.progress import Event
from sanderling.measure.perplexity import Change
from sanderling.measure.text import TextTiming


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class Proof(_Record):
    """The float graph against PyTorch on one text: the scores of the token after it."""

    tokens: int
    relative_error: float
    tolerance: float


class SearchStep(_Record):
    """A form that was tried: so many of the products in blocks of eight bits, those that lose most first."""

    guarded: int
    change: Change
    held: bool


class TextSearch(_Record):
    """How it was chosen which products are computed in blocks of eight bits.

    Attributes:
        form: of the other products.
        order: products, the one that loses most by itself first.
        errors: relative squared error of each of them, in that order.
        steps: in the order in which they were tried.
        guarded: how many from the start of ``order`` are in blocks of eight bits.
        tokens: of the texts that this was decided on; none of them is in the texts reported.
    """

    form: str
    order: tuple[str, ...]
    errors: tuple[float, ...]
    steps: tuple[SearchStep, ...]
    guarded: int
    tokens: int


class TextVariantEvidence(_Record):
    """Everything measured of a variant.

    Attributes:
        perplexity: by text.
        overall: on all texts as one.
        agreeing: tokens from the start of each answer that are FP32's own, of ``answer_tokens`` each.
    """

    perplexity: dict[str, Change]
    overall: Change
    agreeing: tuple[int, ...]
    answer_tokens: int
    timing: TextTiming
    peak_rss_bytes: int | None
    forms: dict[str, int]
    search: TextSearch | None


class TextEvidence(_Record):
    """The file."""

    machine: Machine
    options: dict[str, Any]
    proof: Proof
    parameters: int
    threads: int
    texts: str
    variants: dict[str, TextVariantEvidence]
    choice: str
    stage_seconds: dict[str, float]
    events: tuple[Event, ...]
