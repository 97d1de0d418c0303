"""Tokenizers as the library of that name keeps them, ``tokenizer.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sanderling.core.errors import ModelError, UnavailableError, first_line


def read_tokenizer(path: Path) -> Any:  # noqa: ANN401 - the library is untyped
    """Read a tokenizer, so that it neither cuts texts nor fills them up.

    Raises:
        ModelError: the file is none.
        UnavailableError: ``tokenizers`` is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UnavailableError("reading texts needs 'tokenizers': pip install 'sanderling[text]'") from error
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise ModelError(f"{path} is no tokenizer: {first_line(error)}; expected a tokenizer.json") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
