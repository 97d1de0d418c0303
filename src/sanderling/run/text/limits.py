"""What requests for text may take together, and what they have taken."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from sanderling.core.errors import OptionError

_FROM_ONE = ("conversations", "together")


@dataclass(frozen=True)
class TextLimits:
    """What requests may take together.

    Attributes:
        conversations: requests that are computed at a time; others wait.
        waiting: requests that may wait.
        cache_tokens: of all sequences together, those that are kept for later included; twice the context by default.
            A request that would need more waits, unless it is the only one.
        together: requests that one call of the engine writes a token for, where it can. Where what a call reads is
            rounded, an answer then depends in its last digits on who else asks; 1 rules that out.
        drafts: most tokens that are guessed from earlier text and checked in one call, where the engine can; 0 for
            none. By default 7 where the answer is the same to the order of sums, and none elsewhere.
    """

    conversations: int = 8
    waiting: int = 256
    cache_tokens: int | None = None
    together: int = 8
    drafts: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value < (name in _FROM_ONE):
                raise OptionError(f"limit {name} is {value}: expected a whole number from {int(name in _FROM_ONE)} on")


class TextStatistics(BaseModel):
    """What a session has done.

    Attributes:
        requests: by what became of them: ``completed``, ``cancelled``, ``failed``, ``rejected``.
        active: that are computed now.
        waiting: that wait.
        prompt_tokens: of all prompts.
        cached_tokens: of these, that were kept from earlier requests and not computed again.
        tokens: of answers.
        drafted_tokens: that were guessed from earlier text.
        accepted_tokens: of these, that were right.
        shared_calls: of the engine, that wrote a token for several requests.
        shared_tokens: that these calls wrote.
        prefix_hits: requests that went on from a kept sequence.
        kept: sequences that are kept.
        cache_tokens: that the sequences have memory for.
        prefill_tokens_per_s: of steps that read prompts; None before the first.
        decode_tokens_per_s: of steps that chose a token, for one request; None before the first.
        first_ms: percentiles of the time to the first token, of the last requests.
        between_ms: percentiles of the time from one token of an answer to its next.
    """

    model_config = ConfigDict(frozen=True)

    requests: dict[str, int]
    active: int
    waiting: int
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    drafted_tokens: int
    accepted_tokens: int
    shared_calls: int
    shared_tokens: int
    prefix_hits: int
    kept: int
    cache_tokens: int
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None
    first_ms: dict[str, float] | None
    between_ms: dict[str, float] | None
