"""easy-VQA (PyPI ``easy-vqa``, MIT): 5,000 pictures of one shape each, 48,000 questions, 13 answers."""

import csv
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

SIZE_PX = 64
LONGEST = 16  # words of a question, the question mark included
MEAN, STD = 0.5, 0.25  # of pixels in [0, 1]
FILLING, UNKNOWN = "[PAD]", "[UNK]"
_WORD = re.compile(r"\w+|[^\w\s]")

Split = Literal["train", "test"]


@dataclass(frozen=True)
class Questions:
    """A split: its pictures, and its questions with the picture that each is about.

    Attributes:
        images: uint8, shape (P, 64, 64, 3), RGB.
        files: of the pictures, in the order of ``images``.
        texts: the questions.
        ids: int64, shape (Q, 16): the questions' words, filled up with 0.
        answers: int64, shape (Q,), an index into ``read_answers()``.
        pictures: int64, shape (Q,), an index into ``images``.
    """

    images: NDArray[np.uint8]
    files: tuple[Path, ...]
    texts: tuple[str, ...]
    ids: NDArray[np.int64]
    answers: NDArray[np.int64]
    pictures: NDArray[np.int64]


def read_questions(split: Split) -> Questions:
    """Read a split.

    Raises:
        ModuleNotFoundError: ``easy-vqa`` is not installed.
    """
    import easy_vqa
    from PIL import Image

    texts, answers, pictures = easy_vqa.get_train_questions() if split == "train" else easy_vqa.get_test_questions()
    paths = easy_vqa.get_train_image_paths() if split == "train" else easy_vqa.get_test_image_paths()
    files = tuple(Path(paths[number]) for number in range(len(paths)))
    indices = {answer: index for index, answer in enumerate(read_answers())}
    return Questions(
        images=np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files]),
        files=files,
        texts=tuple(texts),
        ids=np.stack([to_ids(text) for text in texts]),
        answers=np.array([indices[answer] for answer in answers], np.int64),
        pictures=np.array(pictures, np.int64),
    )


@cache
def read_answers() -> tuple[str, ...]:
    """The 13 answers, in the order of the network's scores."""
    import easy_vqa

    return tuple(easy_vqa.get_answers())


@cache
def words() -> tuple[str, ...]:
    """The vocabulary: filling, what is unknown, and every word of the training questions in order of the alphabet."""
    import easy_vqa

    return (FILLING, UNKNOWN, *sorted({word for text in easy_vqa.get_train_questions()[0] for word in split(text)}))


def split(text: str) -> list[str]:
    """The words of a question, in small letters; punctuation marks are words."""
    return _WORD.findall(text.lower())


def to_ids(text: str) -> NDArray[np.int64]:
    """Ids of a question, int64, shape (16,)."""
    numbers = {word: index for index, word in enumerate(words())}
    ids = [numbers.get(word, 1) for word in split(text)][:LONGEST]
    return np.array(ids + [0] * (LONGEST - len(ids)), np.int64)


def write_csv(path: Path, split: Split, *, limit: int | None = None, seed: int = 0) -> Path:
    """Write questions of a split as ``sanderling build --calibration`` reads them.

    Args:
        path: the file.
        split: ``"train"`` or ``"test"``.
        limit: so many questions, a seeded choice; all without.
        seed: of that choice.
    """
    data, answers = read_questions(split), read_answers()
    rows = np.random.default_rng(seed).permutation(len(data.texts))[:limit]
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["picture", "question", "answer"])
        for row in np.sort(rows):
            writer.writerow([data.files[data.pictures[row]], data.texts[row], answers[data.answers[row]]])
    return path


def normalize(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Turn uint8 (N, 64, 64, 3) into the network's input: float32 (N, 3, 64, 64)."""
    scaled = images.transpose(0, 3, 1, 2).astype(np.float32) * np.float32(1 / 255)
    return np.ascontiguousarray((scaled - np.float32(MEAN)) / np.float32(STD))
