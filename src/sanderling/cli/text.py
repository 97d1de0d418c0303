"""`sanderling generate` and `sanderling chat`: a language model's text on stdout, as it comes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sanderling.cli.output import print_result, reporting_errors
from sanderling.core.errors import ContextError, DataError, OptionError

if TYPE_CHECKING:
    from sanderling.run.text.base import Sampling
    from sanderling.run.text.stream import TextResult
    from sanderling.tasks.text import Chat, Generator

_LONGEST_PROMPT = 16 * 2**20
_S = TypeVar("_S", "Chat", "Generator")
_EXIT, _FORGET = "/exit", "/forget"

Package = Annotated[Path, typer.Argument(metavar="PKG", help="Package of a language model, or a zip of one.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=0, help="Of an answer; 0 for what the context leaves.")]
Temperature = Annotated[float, typer.Option(min=0, max=2, help="0 takes the likeliest token each time.")]
TopP = Annotated[float, typer.Option("--top-p", min=0, max=1, help="Share of the probability that is chosen from.")]
TopK = Annotated[int, typer.Option("--top-k", min=0, help="Likeliest tokens that are chosen from; 0 for all.")]
Penalty = Annotated[float, typer.Option("--repetition-penalty", help="Above 1 for fewer repetitions.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Of the choice; another one each time by default.")]
Stop = Annotated[list[str], typer.Option("--stop", help="Text that ends an answer; repeatable.")]
VariantId = Annotated[str | None, typer.Option("--variant", help="Variant id; the chosen one by default.")]
Threads = Annotated[int, typer.Option(min=0, help="Threads of one call; 0 means the plan's, or all usable cores.")]
EngineName = Annotated[str | None, typer.Option("--engine", help="Engine; the plan's or the variant's by default.")]
Drafts = Annotated[
    int | None,
    typer.Option(
        min=0, max=64, help="Most tokens that are guessed from earlier text and checked in one call; 0 for none."
    ),
]


def generate(
    package: Package,
    prompt: Annotated[str | None, typer.Option(help="Text to go on with; read from stdin by default.")] = None,
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = None,
    stop: Stop = [],  # noqa: B006 - typer reads the default
    schema: Annotated[Path | None, typer.Option(help="File with a JSON schema that the text must keep.")] = None,
    variant: VariantId = None,
    engine: EngineName = None,
    threads: Threads = 0,
    drafts: Drafts = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print pieces as they come.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object; with --stream one a piece, and the whole at the end.")
    ] = False,
) -> None:
    """Go on with a text."""
    with reporting_errors(as_json=as_json):
        from sanderling.tasks.text import Generator, TextLimits

        sampling = _sampling(max_tokens, temperature, top_p, top_k, repetition_penalty, seed)
        text = _read_stdin() if prompt is None else prompt
        wanted = _read_schema(schema) if schema is not None else ""
        with (
            Generator(
                package, variant=variant, engine=engine, threads=threads, limits=TextLimits(drafts=drafts)
            ) as generator,
            _told(generator).stream(text, sampling=sampling, stop=stop, schema=wanted) as answer,
        ):
            if stream:
                for piece in answer:
                    _write(json.dumps({"piece": piece}, ensure_ascii=False) + "\n" if as_json else piece)
            result = answer.result()
        shown = "" if stream else result.text
        if as_json:
            print_result(_described(result), as_json=True, show=lambda _: None)
        else:
            _write(f"{shown}\n")
        if not result.text:
            sys.stderr.write("the text ended where it was to begin; to ask a question, use sanderling chat\n")


def chat(
    package: Package,
    system: Annotated[str, typer.Option(help="What the model is told before everything.")] = "",
    max_tokens: MaxTokens = 0,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = None,
    stop: Stop = [],  # noqa: B006 - typer reads the default
    variant: VariantId = None,
    engine: EngineName = None,
    threads: Threads = 0,
    drafts: Drafts = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each answer.")] = False,
) -> None:
    """Talk with a model: a line of stdin is what you say; /forget begins anew, /exit or the end of stdin ends it."""
    with reporting_errors(as_json=as_json):
        from sanderling.tasks.text import Chat, TextLimits

        sampling = _sampling(max_tokens, temperature, top_p, top_k, repetition_penalty, seed)
        limits = TextLimits(drafts=drafts)
        with Chat(
            package, system=system, sampling=sampling, variant=variant, engine=engine, threads=threads, limits=limits
        ) as talk:
            _told(talk)
            for line in _lines(asks=sys.stdin.isatty()):
                if line == _FORGET:
                    talk.forget()
                else:
                    _answer(talk, line, stop, as_json=as_json)


def _told(source: _S) -> _S:
    """The same, after its events were told on stderr."""
    for event in source.events:
        sys.stderr.write(f"note: {event.subject}: {event.reason}\n")
    return source


def _answer(talk: Chat, said: str, stop: list[str], *, as_json: bool) -> None:
    """Print the answer to a line; at a terminal, Ctrl-C ends it, and a conversation that is too long goes on."""
    is_terminal = sys.stdin.isatty()
    pieces = talk.stream(said, stop=stop)
    text = ""
    try:
        for piece in pieces:
            text += piece
            if not as_json:
                _write(piece)
    except KeyboardInterrupt:
        if not is_terminal:
            raise
    except ContextError as error:
        if not is_terminal:
            raise
        sys.stderr.write(f"sanderling: {error}, or begin anew with {_FORGET}\n")
        return
    _write(json.dumps({"user": said, "assistant": text}, ensure_ascii=False) + "\n" if as_json else "\n")


def _lines(*, asks: bool) -> Iterator[str]:
    """What is said, line by line; empty lines are nothing."""
    number = 0
    while True:
        if asks:
            sys.stderr.write("> ")
            sys.stderr.flush()
        try:
            line = sys.stdin.buffer.readline(_LONGEST_PROMPT)
        except KeyboardInterrupt:
            if not asks:
                raise
            line = b""
        number += 1
        if not line:
            if asks:
                sys.stderr.write("\n")
            return
        text = _decoded(line, f"line {number} of stdin").strip()
        if text == _EXIT:
            return
        if text:
            yield text


def _sampling(
    max_tokens: int, temperature: float, top_p: float, top_k: int, repetition_penalty: float, seed: int | None
) -> Sampling:
    from sanderling.run.text.base import Sampling

    return Sampling(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        repetition_penalty=repetition_penalty,
        seed=seed,
        max_tokens=max_tokens or None,
    )


def _read_stdin() -> str:
    if sys.stdin.isatty():
        raise OptionError("no prompt: give --prompt TEXT, or a text on stdin")
    data = sys.stdin.buffer.read(_LONGEST_PROMPT + 1)
    if len(data) > _LONGEST_PROMPT:
        raise DataError(f"stdin has more than {_LONGEST_PROMPT} bytes: no model's context holds them")
    return _decoded(data, "stdin")


def _decoded(data: bytes, what: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{what} is no valid UTF-8 at byte {error.start}: expected text") from error


def _read_schema(path: Path) -> str:
    from sanderling.core.json_text import json_object

    return json.dumps(json_object(_decoded(path.read_bytes(), str(path)), "--schema"))


def _described(result: TextResult) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(result)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
