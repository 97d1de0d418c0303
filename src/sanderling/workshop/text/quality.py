"""How well the variants of a language model do on texts, and how far their answers are FP32's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sanderling.core.errors import DataError
from sanderling.core.progress import Progress
from sanderling.core.tensor import Array
from sanderling.measure.perplexity import Change, change, encoded
from sanderling.measure.text_golden import agreeing_tokens
from sanderling.measure.texts import choice_texts, default_texts, read_texts
from sanderling.model.text import TextSpec
from sanderling.run.text.base import Message, TextModel
from sanderling.run.text.engines import text_engine
from sanderling.run.text.engines.genai_ import SCORING_GRAPH, score

CHOICE_TOKENS = 448
REPORTED_TOKENS = 768
ANSWER_TOKENS = 20
QUESTIONS = (
    "What is the capital of France?",
    "Name three colours of the rainbow.",
    "Why is the sky blue?",
    "Write one sentence about a dog.",
    "How many days has a week?",
    "What do bees make?",
    "Explain what a computer program is.",
    "Give me a simple recipe for soup.",
    "Who wrote Romeo and Juliet?",
    "What is two plus two?",
)


@dataclass(frozen=True)
class Texts:
    """What a build decides on, and what it reports on; no text is in both."""

    choice: Mapping[str, str]
    reported: Mapping[str, str]
    origin: str

    @classmethod
    def read(cls, calibration: Path | None, evaluation: Path | None) -> Texts:
        """Read the user's texts; ours in the place of those that are not given.

        Raises:
            DataError: a file cannot be used, or both are the same.
        """
        choice = read_texts([calibration]) if calibration else choice_texts()
        reported = read_texts([evaluation]) if evaluation else default_texts()
        if set(choice.values()) & set(reported.values()):
            raise DataError(f"{evaluation} holds the text of {calibration}: a choice on it would flatter the report")
        origin = evaluation.name if evaluation else "prose of Sanderling's own and docstrings of Python's library"
        return cls(choice, reported, origin)


@dataclass(frozen=True)
class Changes:
    """Perplexity against FP32's, text by text and on all of them."""

    by_text: dict[str, Change]
    overall: Change


@dataclass
class Quality:
    """Scores of the float model, kept, and those of others beside them."""

    folder: Path
    spec: TextSpec
    texts: Texts
    threads: int
    progress: Progress
    answer_tokens: int = ANSWER_TOKENS
    _choice: dict[str, list[int]] = field(init=False)
    _reported: dict[str, list[int]] = field(init=False)
    _choice_scores: list[Array] = field(init=False)
    _reported_scores: list[Array] = field(init=False)

    def __post_init__(self) -> None:
        """Read the texts with the float model's tokenizer, and score them.

        Raises:
            DataError: a text is too short.
        """
        self.progress.stage("score texts with FP32")
        model = text_engine().load(self.folder, self.spec, threads=self.threads)
        self._choice = _encoded(model, self.texts.choice, CHOICE_TOKENS)
        self._reported = _encoded(model, self.texts.reported, REPORTED_TOKENS)
        model.close()
        scores = self._score(self.folder, [*self._choice.values(), *self._reported.values()])
        self._choice_scores, self._reported_scores = scores[: len(self._choice)], scores[len(self._choice) :]

    @property
    def choice_ids(self) -> list[int]:
        """The first of the texts that are decided on."""
        return next(iter(self._choice.values()))

    def choice_change(self, folder: Path) -> Change:
        """Perplexity of a variant on the texts that are decided on."""
        return change(self._choice_scores, self._score(folder, list(self._choice.values())))

    def reported_changes(self, folder: Path, model: TextModel | None = None) -> Changes:
        """Perplexity of a variant on the reported texts; of one for another engine as the model that it loaded."""
        ids = list(self._reported.values())
        found = self._score(folder, ids) if model is None else [model.score(text) for text in ids]
        rows = zip(self._reported, self._reported_scores, found, strict=True)
        by_text = {name: change([expected], [got]) for name, expected, got in rows}
        return Changes(by_text, change(self._reported_scores, found))

    def answers(self, model: TextModel) -> list[list[int]]:
        """The most likely tokens after each question; as many as fit where the context is short."""
        return [self._answer(model, question) for question in QUESTIONS]

    def agreement(self, model: TextModel, expected: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """How many tokens from the start of each answer are the expected ones."""
        return tuple(agreeing_tokens(tokens, own) for tokens, own in zip(expected, self.answers(model), strict=True))

    def _answer(self, model: TextModel, question: str) -> list[int]:
        prompt = model.render([Message("user", question)]) if self.spec.chat_template else question
        ids = model.encode(prompt)[-(self.spec.context_length - self.answer_tokens) :]
        generation = model.generation(capacity=len(ids) + self.answer_tokens)
        generation.append(ids)
        tokens: list[int] = []
        while len(tokens) < self.answer_tokens and (not tokens or tokens[-1] not in self.spec.eos_ids):
            tokens.append(generation.next())
        generation.close()
        # What comes after an end was never asked for: the end stands for it.
        return tokens + tokens[-1:] * (self.answer_tokens - len(tokens))

    def _score(self, folder: Path, texts: Sequence[Sequence[int]]) -> list[Array]:
        return score(folder, SCORING_GRAPH, self.spec, texts, threads=self.threads)


def _encoded(model: TextModel, texts: Mapping[str, str], most: int) -> dict[str, list[int]]:
    return {name: encoded(model, name, text, most=most) for name, text in texts.items()}
