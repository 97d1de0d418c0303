"""Embed texts with a package that holds its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sanderling.core.closing import Closing
from sanderling.core.errors import ContextError, OptionError
from sanderling.core.tensor import Array, Feeds
from sanderling.model.manifest import Manifest
from sanderling.model.text import EMBEDDING_INPUTS, EmbeddingSpec
from sanderling.run.session import Session, load
from sanderling.run.text.tokenizer import read_tokenizer

_IDS, _MASK, _SEGMENTS = EMBEDDING_INPUTS
_LEAST_NORM = 1e-12


def embedding_spec(manifest: Manifest) -> EmbeddingSpec:
    """How a package embeds texts.

    Raises:
        OptionError: it is no package that does.
    """
    if manifest.embedding is None:
        raise OptionError(
            f"package '{manifest.name}' embeds no texts: build it with --task embeddings --tokenizer tokenizer.json"
        )
    return manifest.embedding


class TextEncoder:
    """Turns texts into the inputs of a model, and its outputs into embeddings.

    Args:
        session: of a package that embeds texts.

    Raises:
        OptionError: the package is another kind of model.
        ModelError: its tokenizer cannot be read.
        UnavailableError: ``tokenizers`` is not installed.
    """

    def __init__(self, session: Session) -> None:
        self._spec = embedding_spec(session.manifest)
        self._inputs = {spec.name: spec for spec in session.inputs}
        self._output = session.outputs[0].name
        self._tokenizer = read_tokenizer(session.package.file(self._spec.tokenizer))

    def ids(self, text: str | Sequence[int]) -> list[int]:
        """The ids of a text, or ids that are given, checked.

        Raises:
            OptionError: it is empty, no valid Unicode, or has ids that are out of the vocabulary.
            ContextError: it is too long.
        """
        ids = self._encoded(text) if isinstance(text, str) else list(text)
        if not ids or text == "":
            raise OptionError("a text to embed is empty: expected at least one token")
        vocabulary = self._tokenizer.get_vocab_size()
        wrong = next((token for token in ids if not 0 <= token < vocabulary), None)
        if wrong is not None:
            raise OptionError(f"token {wrong} is not in the vocabulary: ids are 0 to {vocabulary - 1}")
        if len(ids) > self._spec.longest:
            raise ContextError(f"a text has {len(ids)} tokens: at most {self._spec.longest} are embedded; split it")
        return ids

    def feeds(self, ids: Sequence[int]) -> dict[str, Array]:
        """Inputs of one row, filled up to the length that the model takes."""
        rows = {_IDS: list(ids), _MASK: [1] * len(ids), _SEGMENTS: [0] * len(ids)}
        filling = [0] * (self._spec.longest - len(ids))
        return {name: np.array([rows[name] + filling], dtype=spec.dtype) for name, spec in self._inputs.items()}

    def embedding(self, outputs: Feeds, count: int) -> Array:
        """The embedding of a row, float32, of length 1: the mean over its tokens where the model does not take it.

        Args:
            outputs: of the model, (1, width) or (1, tokens, width).
            count: tokens that are no filling.
        """
        array = outputs[self._output][0].astype(np.float32)
        vector: Array = array if array.ndim == 1 else array[:count].mean(axis=0)
        return vector / max(float(np.linalg.norm(vector)), _LEAST_NORM)

    def _encoded(self, text: str) -> list[int]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise OptionError(f"the text is not valid Unicode: lone surrogate at character {error.start}") from error
        return list(self._tokenizer.encode(text).ids)


class Embedder(Closing):
    """Embeds texts with a package. Close it, or use it in a ``with`` block.

    Args:
        path: package folder, or a zip of one.
        options: of ``sanderling.load``.
    """

    def __init__(self, path: str | Path, **options: Any) -> None:  # noqa: ANN401 - those of load
        self.session = load(path, **options)
        try:
            self._encoder = TextEncoder(self.session)
        except BaseException:
            self.session.close()
            raise

    def embed(self, texts: Sequence[str]) -> Array:
        """Embeddings of texts, float32, shape (texts, width), each of length 1.

        Raises:
            OptionError: a text is empty.
            ContextError: a text is too long.
        """
        rows = [self._encoder.ids(text) for text in texts]
        futures = [self.session.submit(self._encoder.feeds(ids)) for ids in rows]
        found = [self._encoder.embedding(future.result(), len(ids)) for future, ids in zip(futures, rows, strict=True)]
        return np.stack(found) if found else np.zeros((0, 0), np.float32)

    def close(self) -> None:
        """Close the session."""
        self.session.close()
