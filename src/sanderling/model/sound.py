"""How a recording becomes a model's input, as data that every host can carry out."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sanderling.core.errors import OptionError
from sanderling.core.json_text import json_object
from sanderling.core.tensor import TensorSpec

PREFIX = "sound:"
LOWEST_RATE_HZ = 1_000
HIGHEST_RATE_HZ = 384_000


class SoundSpec(BaseModel):
    """One channel of amplitudes in [-1, 1]; a longer recording keeps its middle, a shorter one stands in silence.

    Attributes:
        sample_rate_hz: that the model was trained with.
        length: of the result, samples.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sample_rate_hz: int = Field(ge=LOWEST_RATE_HZ, le=HIGHEST_RATE_HZ)
    length: int = Field(gt=0, le=100_000_000)

    @property
    def seconds(self) -> float:
        """Duration of what the model hears."""
        return self.length / self.sample_rate_hz


def is_sound(text: str) -> bool:
    """Whether a preprocessing is one of sounds: ``sound:16000``, or JSON with ``sample_rate_hz``."""
    return text.startswith(PREFIX) or (text.lstrip().startswith("{") and '"sample_rate_hz"' in text)


def parse_sound(text: str, spec: TensorSpec) -> SoundSpec:
    """Read ``sound:16000`` or ``{"sample_rate_hz": 16000}``; the length is that of the model's input.

    Args:
        text: what ``is_sound``.
        spec: the model's input, float32 of shape (N, samples) or (N, 1, samples).

    Raises:
        OptionError: no sample rate, one out of range, or the input takes no sound.
    """
    length = spec.shape[-1] if spec.shape else None
    takes_sound = len(spec.shape) in (2, 3) and (len(spec.shape) == 2 or spec.shape[1] == 1)
    if not takes_sound or not isinstance(length, int) or spec.dtype != "float32":
        raise OptionError(
            f"preprocessing '{text}' is for sounds, float32 (N, samples) or (N, 1, samples): the model expects {spec}"
        )
    given = {"sample_rate_hz": text.removeprefix(PREFIX)} if text.startswith(PREFIX) else json_object(text, "sound")
    try:
        return SoundSpec.model_validate({"length": length, **given})
    except ValidationError as error:
        detail = error.errors()[0]
        place = ".".join(map(str, detail["loc"])) or "sound"
        raise OptionError(
            f"preprocessing '{text}': {place}: {detail['msg']}; expected sound:RATE, with "
            f"{LOWEST_RATE_HZ} to {HIGHEST_RATE_HZ} samples a second"
        ) from error
