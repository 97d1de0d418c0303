"""Pictures with texts about them, from a CSV: questions and their answers, or captions."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sanderling.core.errors import DataError, first_line

_PICTURES, _TEXTS, _ANSWERS = ("picture", "path", "file", "image"), ("question", "text", "caption"), ("answer", "label")
_MOST_ROWS = 1_000_000

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Asked:
    """Rows of a CSV, each a text about a picture; every picture and every text stands once.

    Attributes:
        pictures: files.
        texts: questions or captions.
        picture_of: int64, shape (n,), of each row its picture.
        text_of: int64, shape (n,), of each row its text.
        answers: int64, shape (n,), of each row the index of the right answer; None where none are known.
        name: of the file, for messages.
    """

    pictures: tuple[Path, ...]
    texts: tuple[str, ...]
    picture_of: Indices
    text_of: Indices
    answers: Indices | None
    name: str

    def __len__(self) -> int:
        return len(self.picture_of)

    def pick(self, rows: Indices) -> Asked:
        """Some of the rows, with the pictures and texts that they need."""
        pictures, picture_of = np.unique(self.picture_of[rows], return_inverse=True)
        texts, text_of = np.unique(self.text_of[rows], return_inverse=True)
        return Asked(
            tuple(self.pictures[index] for index in pictures),
            tuple(self.texts[index] for index in texts),
            picture_of.astype(np.int64),
            text_of.astype(np.int64),
            None if self.answers is None else self.answers[rows],
            self.name,
        )

    def divided(self, share: float, seed: int) -> tuple[Asked, Asked]:
        """The rest, and the rows of a seeded share of the pictures: no picture is in both."""
        order = np.random.default_rng(seed).permutation(len(self.pictures))
        chosen = np.isin(self.picture_of, order[: max(round(share * len(order)), 1)])
        return self.pick(np.flatnonzero(~chosen)), self.pick(np.flatnonzero(chosen))


def read_asked(path: Path, answers: Sequence[str] | None) -> Asked:
    """Read a CSV with the columns ``picture`` (relative to it), ``question`` or ``text``, and ``answer``.

    Args:
        path: the file.
        answers: that the model can give; None where it gives none.

    Raises:
        DataError: it is missing, has other columns, no rows, an answer that the model cannot give, or a picture that
            does not exist.
    """
    rows = _read_rows(path)
    header = rows[0].keys()
    picture, text = _column(path, header, _PICTURES), _column(path, header, _TEXTS)
    known = next((name for name in _ANSWERS if name in header), None)
    files = [path.parent / row[picture] for row in rows]
    missing = next((file for file in dict.fromkeys(files) if not file.is_file()), None)
    if missing is not None:
        raise DataError(f"{path} names the picture {missing}, which does not exist")
    pictures, texts = tuple(dict.fromkeys(files)), tuple(dict.fromkeys(row[text] for row in rows))
    places = {file: index for index, file in enumerate(pictures)}
    wordings = {wording: index for index, wording in enumerate(texts)}
    return Asked(
        pictures,
        texts,
        np.array([places[file] for file in files], np.int64),
        np.array([wordings[row[text]] for row in rows], np.int64),
        _answers(path, [row[known] for row in rows], answers) if known and answers else None,
        path.name,
    )


def _read_rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise DataError(f"{path} does not exist: expected a CSV with the columns picture, question and answer")
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = [row for row, _ in zip(csv.DictReader(stream), range(_MOST_ROWS), strict=False)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is no CSV of UTF-8: {first_line(error)}") from error
    if not rows or any(None in row or None in row.values() for row in rows):
        what = "no rows" if not rows else "rows of different lengths"
        raise DataError(f"{path} has {what}: expected the columns picture, question and answer")
    return rows


def _column(path: Path, header: Iterable[str], names: tuple[str, ...]) -> str:
    columns = list(header)
    for name in names:
        if name in columns:
            return name
    raise DataError(f"{path} has the columns {', '.join(columns)}: expected one of {', '.join(names)}")


def _answers(path: Path, given: Sequence[str], answers: Sequence[str]) -> Indices:
    indices = {answer: index for index, answer in enumerate(answers)}
    wrong = next((answer for answer in given if answer not in indices), None)
    if wrong is not None:
        shown = ", ".join(answers[:20]) + (" …" if len(answers) > 20 else "")
        raise DataError(f"{path} has the answer '{wrong}', which the model cannot give: available are {shown}")
    return np.array([indices[answer] for answer in given], np.int64)
