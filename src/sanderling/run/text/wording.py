"""Between texts and ids: a variant's tokenizer and chat template, alike for every engine that has none of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from sanderling.core.errors import ModelError, OptionError, UnavailableError, first_line
from sanderling.model.text import TextSpec
from sanderling.run.text.base import Message
from sanderling.run.text.tokenizer import read_tokenizer

TOKENIZER = "tokenizer.json"
_CONFIG = "tokenizer_config.json"
_TEMPLATE = "chat_template.jinja"
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")


class Wording:
    """Reads and writes ids as the model was trained to.

    Args:
        folder: with ``tokenizer.json``, and a chat template where the model has one.
        spec: of the package.

    Raises:
        ModelError: the tokenizer or the template cannot be read.
        UnavailableError: ``tokenizers`` is not installed.
    """

    def __init__(self, folder: Path, spec: TextSpec) -> None:
        self.spec = spec
        self._tokenizer = read_tokenizer(folder / TOKENIZER)
        self._folder = folder
        self._template: Any = None

    def encode(self, text: str) -> list[int]:
        """Ids of a text; ``spec.bos_id`` first where the model wants it and the text does not begin with it.

        Raises:
            OptionError: the text has a lone surrogate or a NUL character.
        """
        check_text(text)
        return with_bos(list(self._tokenizer.encode(text, add_special_tokens=False).ids), self.spec)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, without special tokens."""
        return str(self._tokenizer.decode(list(ids))) if len(ids) else ""

    def stream_decoder(self) -> WordingStream:
        """A decoder for one answer."""
        return WordingStream(self._tokenizer)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The prompt of a conversation, by the model's chat template.

        Raises:
            OptionError: there is no template, or it refuses the messages.
        """
        check_messages(messages, self.spec)
        if self._template is None:
            self._template = _compiled(self._folder)
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return str(self._template.render(messages=turns, add_generation_prompt=add_generation_prompt))
        except Exception as error:  # a template is a program of the model's makers: it may raise anything
            raise OptionError(f"the chat template refuses the messages: {first_line(error)}") from error


class WordingStream:
    """Turns ids into text as they come."""

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401 - the library is untyped
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._held: list[int] = []

    def feed(self, token: int) -> str:
        """Text that is whole now."""
        text = self._stream.step(self._tokenizer, token)
        self._held = [*self._held, token] if text is None else []
        return text or ""

    def finish(self) -> str:
        """What was held back."""
        held, self._held = self._held, []
        return str(self._tokenizer.decode(held)) if held else ""


def check_text(text: str) -> None:
    """Refuse what no tokenizer reads as it is.

    Raises:
        OptionError: the text has a lone surrogate or a NUL character.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise OptionError(f"the text is not valid Unicode: lone surrogate at character {error.start}") from error
    if "\0" in text:
        raise OptionError(f"the text has a NUL character at {text.index(chr(0))}, which a tokenizer would end at")


def check_messages(messages: Sequence[Message], spec: TextSpec) -> None:
    """Refuse messages that cannot be rendered.

    Raises:
        OptionError: the model has no chat template, or a message is no text.
    """
    if not spec.chat_template:
        raise OptionError("this model has no chat template: give it a prompt as plain text")
    for message in messages:
        check_text(message.role + message.content)


def with_bos(ids: list[int], spec: TextSpec) -> list[int]:
    """Ids of a text, with the one that begins a text first, where the model wants it and they do not begin with it."""
    bos = spec.bos_id
    return [bos, *ids] if spec.adds_bos and bos is not None and ids[:1] != [bos] else ids


def _compiled(folder: Path) -> Any:  # noqa: ANN401 - jinja2 is imported only here
    """The chat template, in a sandbox: it comes with the model and may call nothing.

    Source: transformers' documentation of chat templates, for what a template may use.
    """
    try:
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise UnavailableError("chat templates need jinja2: pip install 'sanderling[text]'") from error

    def refuse(message: str) -> None:
        raise OptionError(message)

    try:
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8")) if (folder / _CONFIG).is_file() else {}
        file = folder / _TEMPLATE
        text = file.read_text(encoding="utf-8") if file.is_file() else config["chat_template"]
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
        environment.globals.update({name: _token(config.get(name)) for name in _NAMED})
        return environment.from_string(text)
    except Exception as error:
        raise ModelError(f"{folder}: the chat template cannot be read: {first_line(error)}") from error


def _token(entry: Any) -> str:  # noqa: ANN401 - JSON
    """The text of a special token, which is kept as a text or as an object with one."""
    return str(entry["content"] if isinstance(entry, dict) else entry or "")
