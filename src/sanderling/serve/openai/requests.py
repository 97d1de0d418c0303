"""What clients of OpenAI's interface send.

A parameter that would change the answer and is not there is refused unless it has its neutral value. Those that change
nothing here (``user``, ``metadata`` and the like) are taken and do nothing.

Source: OpenAI API reference, "Chat", "Completions" and "Embeddings".
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sanderling.serve.errors import TooLargeError
from sanderling.serve.openai.errors import ParameterError

_STOPS = 4
_STOP_LENGTH = 256
_MESSAGES = 4096
_INPUTS = 2048
_NAMED = 64
_MOST_BYTES = 2 * 2**20  # it is read in the event loop; OpenAI takes 300,000 tokens
_MOST_FAULTS = 64  # that are looked through for the one to tell

Role = Literal["system", "developer", "user", "assistant"]
Token = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[list[Token], Field(min_length=1, fail_fast=True)]  # the first fault is told, and ends the search
Stop = Annotated[str, Field(min_length=1, max_length=_STOP_LENGTH)]


class _Form(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TextPart(_Form):
    """A part of a message that is text."""

    type: Literal["text"]
    text: str


class ImageUrl(_Form):
    """Where a picture is; only ``data:image/…;base64,…`` is read, nothing is fetched.

    Attributes:
        detail: changes nothing: a model reads pictures in one size.
    """

    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(_Form):
    """A part of a message that is a picture, for models that answer questions about pictures."""

    type: Literal["image_url"]
    image_url: ImageUrl


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]


class Message(_Form):
    """One message of a conversation."""

    role: Role
    content: str | Annotated[list[Part], Field(min_length=1, fail_fast=True)]
    name: str | None = None

    @property
    def text(self) -> str:
        """Its content as one text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def pictures(self) -> tuple[str, ...]:
        """URLs of its pictures."""
        parts = () if isinstance(self.content, str) else self.content
        return tuple(part.image_url.url for part in parts if isinstance(part, ImagePart))


class StreamOptions(_Form):
    """What a stream tells beside its text."""

    include_usage: bool = False
    include_obfuscation: bool = False


class NamedSchema(_Form):
    """A JSON schema with its name."""

    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(_Form):
    """What form the text must have."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class _Ignored(_Form):
    """Parameters that change nothing here."""

    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class _Generating(_Ignored):
    """What chats and completions have in common.

    Attributes:
        top_k: how many of the likeliest tokens are chosen from; not OpenAI's.
        repetition_penalty: above 1 for fewer repetitions; not OpenAI's.
    """

    model: str
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Stop | Annotated[list[Stop], Field(max_length=_STOPS, fail_fast=True)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = None
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that end the generation."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the counts of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(_Generating):
    """A request to ``/v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=_MESSAGES, fail_fast=True)]
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    response_format: ResponseFormat | None = None
    logprobs: Literal[False] | None = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=1, fail_fast=True)] | None = None

    @property
    def most_tokens(self) -> int | None:
        """Most tokens that are generated; None for what the context leaves."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionRequest(_Generating):
    """A request to ``/v1/completions``; one prompt, as text or as tokens."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=1, fail_fast=True)] | Tokens
    max_tokens: int | None = Field(None, ge=1)
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    logprobs: None = None
    suffix: None = None

    @property
    def only_prompt(self) -> str | list[int]:
        """The prompt."""
        if isinstance(self.prompt, str):
            return self.prompt
        first = self.prompt[0]
        return first if isinstance(first, str) else [token for token in self.prompt if isinstance(token, int)]


class EmbeddingRequest(_Ignored):
    """A request to ``/v1/embeddings``; one input or several, each as text or as tokens."""

    model: str
    input: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=_INPUTS, fail_fast=True)]
        | Tokens
        | Annotated[list[Tokens], Field(min_length=1, max_length=_INPUTS, fail_fast=True)]
    )
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)

    @property
    def inputs(self) -> list[str] | list[list[int]]:
        """Every input by itself."""
        if isinstance(self.input, str):
            return [self.input]
        if isinstance(self.input[0], int):
            return [[token for token in self.input if isinstance(token, int)]]
        return self.input


_Request = TypeVar("_Request", bound=BaseModel)


def read_request(body: bytes, form: type[_Request]) -> _Request:
    """Read the body of a request.

    Raises:
        ParameterError: it is no JSON object of that form; the first fault is told.
        TooLargeError: it is longer than any conversation.
    """
    if len(body) > _MOST_BYTES:
        raise TooLargeError(f"the request has {len(body)} bytes: at most {_MOST_BYTES} are taken")
    try:
        return form.model_validate_json(body)
    except ValidationError as error:
        if error.error_count() > _MOST_FAULTS:
            known = ", ".join(sorted(form.model_fields))
            raise ParameterError(f"the request has {error.error_count()} faults: expected {known}", "") from None
        raise _fault(error, form) from None


def _fault(error: ValidationError, form: type[BaseModel]) -> ParameterError:
    details = error.errors(include_url=False)
    alike = [detail for detail in details if detail["loc"][:1] == details[0]["loc"][:1]]  # ways to read one parameter
    detail = next((each for each in alike if not each["type"].endswith("_type")), alike[0])
    names = [str(part) for part in detail["loc"]]
    if not names:
        return ParameterError(f"the request is no JSON object: {detail['msg']}", "")
    parameter = names[0]
    place = ".".join(name for name in names if name.isdigit() or name.isidentifier())[:_NAMED]
    if detail["type"] == "extra_forbidden":
        known = ", ".join(sorted(form.model_fields)) if len(names) == 1 else "see OpenAI's reference"
        return ParameterError(f"unknown parameter '{place}': expected {known}", parameter)
    if detail["type"] == "missing":
        return ParameterError(f"parameter '{place}' is missing", parameter)
    return ParameterError(f"parameter '{place}': {_expected(detail)}; got {_shown(detail['input'])}", parameter)


def _expected(detail: Any) -> str:  # noqa: ANN401 - pydantic's own type of it
    text: str = detail["msg"]
    return text[:1].lower() + text[1:]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _NAMED else f"{text[:_NAMED]}…"
