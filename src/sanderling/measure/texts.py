"""Texts to measure language models on that are there on every machine: prose of our own, and Python's documentation."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from sanderling.core.errors import DataError

_REPORTED = ("statistics", "argparse")
_CHOSEN_ON = ("fractions", "string", "queue")
_CODE_CHARACTERS = 6000


def default_texts() -> dict[str, str]:
    """Texts that perplexity is reported on: ``prose`` and ``code``, some thousand tokens each."""
    return {"prose": _prose("prose.txt"), "code": _documentation(_REPORTED)}


def choice_texts() -> dict[str, str]:
    """Other texts of the same kinds, which a build decides on."""
    return {"prose": _prose("prose_choice.txt"), "code": _documentation(_CHOSEN_ON)}


def read_texts(paths: Sequence[str | Path]) -> dict[str, str]:
    """Read files of UTF-8 text, by their names.

    Raises:
        DataError: a file is missing, no UTF-8, or has fewer than two words.
    """
    found: dict[str, str] = {}
    for path in map(Path, paths):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"text {path} is not UTF-8: {error.reason} at byte {error.start}") from error
        except OSError as error:
            raise DataError(f"text {path} cannot be read: {error.strerror}") from error
        if len(text.split()) < 2:
            raise DataError(f"text {path} is too short: expected some hundred words at least")
        found[path.name] = text
    return found


def _prose(name: str) -> str:
    return (resources.files("sanderling.measure") / "data" / name).read_text("utf-8")


def _documentation(modules: Sequence[str]) -> str:
    """Docstrings of modules of the standard library, each below the head of what it documents."""
    parts: list[str] = []
    for name in modules:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        source = Path(spec.origin).read_text(encoding="utf-8")
        parts += [text for node in ast.walk(ast.parse(source)) if (text := _documented(node))]
    return "\n\n".join(parts)[:_CODE_CHARACTERS]


def _documented(node: ast.AST) -> str:
    if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
        return ""
    text = ast.get_docstring(node)
    if not text:
        return ""
    if isinstance(node, ast.FunctionDef):
        return f'def {node.name}({ast.unparse(node.args)}):\n    """{text}"""'
    return text if isinstance(node, ast.Module) else f'class {node.name}:\n    """{text}"""'
