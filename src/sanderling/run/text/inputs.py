"""Texts for a branch that reads them: checked, made into ids, and filled up to the length that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sanderling.core.errors import ContextError, DataError, ModelError, OptionError
from sanderling.core.tensor import Array, TensorSpec
from sanderling.model.multimodal import TokenizerSpec
from sanderling.model.text import EMBEDDING_INPUTS
from sanderling.run.text.tokenizer import read_tokenizer

_IDS, _MASK, _SEGMENTS = EMBEDDING_INPUTS


class TextInputs:
    """Turns texts into the inputs of a branch.

    Args:
        spec: of the tokenizer.
        path: of its file.
        inputs: of the branch: one for ids, or those of a model of sentences.

    Raises:
        ModelError: the file is no tokenizer, or the branch has other inputs.
        UnavailableError: ``tokenizers`` is not installed.
    """

    def __init__(self, spec: TokenizerSpec, path: Path, inputs: Sequence[TensorSpec]) -> None:
        check_text_inputs(inputs, spec.longest)
        self._spec = spec
        self._inputs = inputs
        self._tokenizer = read_tokenizer(path)

    @property
    def vocabulary(self) -> int:
        """Ids are in [0, vocabulary)."""
        return int(self._tokenizer.get_vocab_size())

    def ids(self, text: str) -> list[int]:
        """The ids of a text.

        Raises:
            OptionError: it is empty or no valid Unicode.
            DataError: none of its words is in the vocabulary.
            ContextError: it is too long.
        """
        text = _checked(text)
        ids = [int(token) for token in self._tokenizer.encode(self._cased(text)).ids]
        if not ids:
            raise OptionError(f"the text {text!r} has no words: expected at least one")
        if len(ids) > self._spec.longest:
            raise ContextError(
                f"the text has {len(ids)} tokens: at most {self._spec.longest} are read; make it shorter"
            )
        unknown = self.unknown_words(text)
        if unknown and all(token == self._spec.unknown for token in ids if self._is_word(token)):
            raise DataError(f"none of the words of {text!r} is in the vocabulary of {self.vocabulary}: use other words")
        return ids

    def unknown_words(self, text: str) -> tuple[str, ...]:
        """Parts of a text that the vocabulary lacks: the model reads them all alike."""
        if self._spec.unknown is None:
            return ()
        text = self._cased(text)
        encoded = self._tokenizer.encode(text)
        spans = zip(encoded.ids, encoded.offsets, strict=True)
        return tuple(text[first:last] for token, (first, last) in spans if token == self._spec.unknown)

    def feeds(self, ids: Sequence[int]) -> dict[str, Array]:
        """Inputs of one row."""
        rest = self._spec.longest - len(ids)
        rows = {_MASK: [1] * len(ids) + [0] * rest, _SEGMENTS: [0] * self._spec.longest}
        padded = [*ids, *[self._spec.filling] * rest]
        return {spec.name: np.array([rows.get(spec.name, padded)], dtype=spec.dtype) for spec in self._inputs}

    def _cased(self, text: str) -> str:
        return text.lower() if self._spec.lower else text

    def _is_word(self, token: int) -> bool:
        """Whether an id is more than a punctuation mark or a mark of the model's own."""
        return token == self._spec.unknown or any(map(str.isalnum, self._tokenizer.decode([token])))


def check_text_inputs(inputs: Sequence[TensorSpec], longest: int) -> None:
    """Check that a branch reads ids of one length.

    Raises:
        ModelError: it has other inputs.
    """
    names = [spec.name for spec in inputs]
    if len(names) > 1 and (_IDS not in names or set(names) - set(EMBEDDING_INPUTS)):
        raise ModelError(
            f"a text branch has the inputs {', '.join(names)}: expected one, or {', '.join(EMBEDDING_INPUTS)}"
        )
    for spec in inputs:
        if len(spec.shape) != 2 or spec.shape[1] != longest or not spec.dtype.startswith("int"):
            raise ModelError(f"a text branch has the input {spec}: expected ids, int64[batch, {longest}]")


def _checked(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise OptionError(f"the text is no valid UTF-8 at character {error.start}: expected Unicode") from error
    if not text.strip():
        raise OptionError("the text is empty: expected at least one word")
    return text
