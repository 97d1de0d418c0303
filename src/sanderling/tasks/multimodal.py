"""Ask questions about pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from sanderling.core.closing import Closing
from sanderling.core.errors import DataError, OptionError
from sanderling.core.progress import Event
from sanderling.core.tensor import Array
from sanderling.model.manifest import Manifest
from sanderling.model.multimodal import QUESTIONS
from sanderling.model.package import Package
from sanderling.run.branches import Branches, multimodal_spec, open_branches
from sanderling.run.features import Content, digest_of
from sanderling.run.pictures import read_picture
from sanderling.run.text.inputs import TextInputs
from sanderling.tasks.vision import Label, best_labels

_TOGETHER = 256  # questions that are asked in one go
_PICTURE_LIMIT_BYTES = 256 << 20


class Answer(BaseModel):
    """What a model answers.

    Attributes:
        answers: the likeliest first, with their probabilities.
        unknown_words: of the question, which the model reads all alike.
    """

    model_config = ConfigDict(frozen=True)

    question: str
    answers: tuple[Label, ...]
    unknown_words: tuple[str, ...] = ()


class Answerer(Closing):
    """Answers questions about pictures. Close it, or use it in a ``with`` block.

    A picture that was asked about before is not computed again, and neither is a question.

    Args:
        path: package folder, or a zip of one.
        options: of ``sanderling.run.branches.Branches``.

    Raises:
        OptionError: the package answers no questions.
    """

    def __init__(self, path: str | Path | Package, **options: Any) -> None:  # noqa: ANN401 - those of Branches
        self.branches, self._reading = open_task(path, QUESTIONS, options)

    @property
    def manifest(self) -> Manifest:
        """Of the package."""
        return self.branches.package.manifest

    def ask(self, picture: Path | bytes, questions: Sequence[str], *, top: int = 3) -> tuple[Answer, ...]:
        """Answer questions about a picture.

        Args:
            picture: a file, or its bytes.
            questions: any number, each by itself.
            top: answers to each.

        Raises:
            DataError: the picture cannot be read, or a question has no word that the model knows.
            OptionError: a question is empty or no valid Unicode.
            ContextError: a question is too long.
        """
        seen = self._reading.picture(picture)
        texts = [self._reading.text(question) for question in questions]
        names = {branch.modality: branch.name for branch in self.branches.spec.leaves}
        outputs = []
        for start in range(0, len(texts), _TOGETHER):
            together = texts[start : start + _TOGETHER]
            outputs += self.branches.run([{names["picture"]: seen, names["text"]: text} for text in together])
        return tuple(
            Answer(
                question=question,
                answers=best_labels(self.manifest, found, top=top),
                unknown_words=self._reading.unknown_words(question),
            )
            for question, found in zip(questions, outputs, strict=True)
        )

    def close(self) -> None:
        """Close all branches."""
        self.branches.close()


class Reading:
    """Makes pictures and texts into what the branches of a package read.

    Args:
        package: of several branches.

    Raises:
        OptionError: it has none.
        UnavailableError: ``tokenizers`` is not installed.
    """

    def __init__(self, package: Package) -> None:
        spec = multimodal_spec(package.manifest)
        opened = open_branches(package, spec)
        text = spec.leaf("text")
        assert text.tokenizer is not None
        self._picture = opened[spec.leaf("picture").name].manifest
        tokenizer, inputs = package.file(text.tokenizer.file), opened[text.name].manifest.inputs
        self._text_inputs = TextInputs(text.tokenizer, tokenizer, inputs)

    def picture(self, picture: Path | bytes) -> Content:
        """A picture as content, known by the bytes of its file; it is decoded only where its branch must run.

        Raises:
            DataError: there is no such file, or it is too large for a picture.
        """
        data = picture if isinstance(picture, bytes) else read_bytes(picture)
        name = str(picture) if isinstance(picture, Path) else "the picture"
        return Content(digest_of(data), lambda: _picture_feeds(self._picture, data, name))

    def text(self, text: str) -> Content:
        """A text as content, known by its ids.

        Raises:
            OptionError: it is empty or no valid Unicode.
            DataError: it has no word that the model knows.
            ContextError: it is too long.
        """
        ids = self._text_inputs.ids(text)
        return Content(digest_of(repr(ids).encode()), lambda: self._text_inputs.feeds(ids))

    def count(self, text: str) -> int:
        """How many tokens a text has."""
        return len(self._text_inputs.ids(text))

    def unknown_words(self, text: str) -> tuple[str, ...]:
        """As of ``TextInputs``."""
        return self._text_inputs.unknown_words(text)


def open_task(path: str | Path | Package, task: str, options: Mapping[str, Any]) -> tuple[Branches, Reading]:
    """The branches of a package, and what makes pictures and texts into their inputs.

    Args:
        path: of the package.
        task: that it must be for.
        options: of ``Branches``.

    Raises:
        OptionError: it is for another task.
    """
    package = path if isinstance(path, Package) else Package.open(path)
    check_task(package.manifest, task)
    branches = Branches(package, **options)
    try:
        return branches, Reading(package)
    except BaseException:
        branches.close()
        raise


def check_task(manifest: Manifest, task: str) -> None:
    """Check that a package is for a task.

    Raises:
        OptionError: it is for another.
    """
    if manifest.multimodal is None or manifest.multimodal.task != task:
        made = "one graph" if manifest.multimodal is None else manifest.multimodal.task
        raise OptionError(f"package '{manifest.name}' is for {made}: build it with --task {task}")


def told(answers: Sequence[Answer]) -> list[Event]:
    """What the reader of answers should know about them."""
    return [
        Event(
            kind="unknown-words",
            subject=answer.question,
            reason=f"the model knows no {', '.join(map(repr, answer.unknown_words))}: it reads them all alike",
        )
        for answer in answers
        if answer.unknown_words
    ]


def read_bytes(path: Path) -> bytes:
    """The bytes of a picture's file.

    Raises:
        DataError: it is missing, no file, or larger than 256 MB.
    """
    try:
        size = path.stat().st_size
        if size > _PICTURE_LIMIT_BYTES:
            raise DataError(f"{path} has {size} bytes: pictures of at most {_PICTURE_LIMIT_BYTES} are read")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; expected a picture") from error


def _picture_feeds(manifest: Manifest, data: bytes, name: str) -> dict[str, Array]:
    preprocessing = manifest.preprocessing
    assert preprocessing is not None
    return {manifest.inputs[0].name: read_picture(BytesIO(data), preprocessing, name=name)}
