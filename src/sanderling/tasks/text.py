"""Generate text with a package of a language model, and talk with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sanderling.core.closing import Closing
from sanderling.core.progress import Event
from sanderling.run.text.base import Message, Sampling
from sanderling.run.text.limits import TextLimits, TextStatistics
from sanderling.run.text.loading import load_text
from sanderling.run.text.session import Prompt
from sanderling.run.text.stream import TextResult, TextStream

__all__ = ["Chat", "Generator", "Message", "Sampling", "TextLimits", "TextResult", "TextStream"]


class Generator(Closing):
    """Generates text with a package, for several callers at once. Close it, or use it in a ``with`` block.

    Args:
        package: folder ``NAME.sdl``, or a zip of one.
        variant: id such as ``int8``; the plan's or the chosen one by default.
        engine: such as ``onnxruntime``; the plan's or the variant's first by default.
        threads: of one call; 0 leaves it to the plan, or takes all cores.
        limits: of requests that come together.

    Raises:
        PackageError: the package is broken or altered.
        OptionError: there is no such variant, or the package is another kind of model.
        UnavailableError: the engine is not installed.
    """

    def __init__(
        self,
        package: str | Path,
        *,
        variant: str | None = None,
        engine: str | None = None,
        threads: int = 0,
        limits: TextLimits | None = None,
    ) -> None:
        self._session = load_text(package, variant=variant, engine=engine, threads=threads, limits=limits)

    @property
    def events(self) -> tuple[Event, ...]:
        """What was asked for and is not done as asked."""
        return self._session.events

    def stream(
        self,
        prompt: Prompt,
        *,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        schema: str = "",
    ) -> TextStream:
        """Begin an answer; iterate over it for its pieces. Whoever lets go of it before its end cancels it.

        Args:
            prompt: a text that it goes on with, ids, or the messages of a conversation.
            sampling: how tokens are chosen; the likeliest each time by default.
            stop: texts that end it, and are not part of it.
            schema: JSON schema that it keeps.

        Raises:
            ContextError: the prompt leaves no room in the model's context.
            OptionError: the prompt is empty or no valid Unicode, or an option is out of range.
            QueueFullError: too many requests wait.
        """
        return self._session.start(prompt, sampling or Sampling(temperature=0.0), stop=stop, schema=schema)

    def generate(
        self,
        prompt: Prompt,
        *,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        schema: str = "",
    ) -> TextResult:
        """Generate all of an answer; arguments and errors as of ``stream``, and EngineError."""
        with self.stream(prompt, sampling=sampling, stop=stop, schema=schema) as stream:
            return stream.result()

    def statistics(self) -> TextStatistics:
        """What has happened so far."""
        return self._session.statistics()

    def close(self) -> None:
        """End what runs, and give the memory back."""
        self._session.close()


class Chat(Closing):
    """One conversation, whose messages are kept. Close it, or use it in a ``with`` block.

    Args:
        package: folder or zip of a package, or a ``Generator`` that several conversations share.
        system: what the model is told before everything.
        sampling: of every answer; the likeliest token each time by default.
        variant: as of ``Generator``.
        engine: as of ``Generator``.
        threads: as of ``Generator``.
        limits: as of ``Generator``.

    Attributes:
        events: as of ``Generator``.
        messages: of both sides, in their order.

    Raises:
        SanderlingError: as of ``Generator``.
        OptionError: the model has no chat template.
    """

    def __init__(
        self,
        package: str | Path | Generator,
        *,
        system: str = "",
        sampling: Sampling | None = None,
        variant: str | None = None,
        engine: str | None = None,
        threads: int = 0,
        limits: TextLimits | None = None,
    ) -> None:
        self._owned: Generator | None = None
        if isinstance(package, Generator):
            self._generator = package
        else:
            self._generator = self._owned = Generator(
                package, variant=variant, engine=engine, threads=threads, limits=limits
            )
        self.events = self._generator.events
        self._sampling = sampling
        self.messages = [Message("system", system)] if system else []

    def stream(self, text: str, *, stop: Sequence[str] = ()) -> Iterator[str]:
        """Say something, and get the answer in pieces.

        What was said and the answer become part of the conversation at the answer's end; neither does when it fails or
        is left before.

        Raises:
            ContextError: the conversation leaves no room in the model's context.
            OptionError: the text is no valid Unicode.
            EngineError: the engine failed, or this is closed.
        """
        said = Message("user", text)
        with self._generator.stream([*self.messages, said], sampling=self._sampling, stop=stop) as stream:
            yield from stream
            self.messages += [said, Message("assistant", stream.result().text)]

    def ask(self, text: str, *, stop: Sequence[str] = ()) -> str:
        """Say something, and get all of the answer; errors as of ``stream``."""
        return "".join(self.stream(text, stop=stop))

    def forget(self) -> None:
        """Begin anew; what the model was told before everything stays."""
        self.messages = [message for message in self.messages[:1] if message.role == "system"]

    def close(self) -> None:
        """Close the generator that was made for it; one that is shared stays open."""
        if self._owned is not None:
            self._owned.close()
