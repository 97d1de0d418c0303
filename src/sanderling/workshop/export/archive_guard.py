"""Refuse a `torch.export` archive that would run code while PyTorch's loader reads it.

The loader evaluates three kinds of content as code: pickles (see ``pickle_guard``), compiled libraries, and the
texts of symbolic sizes and guards. The last two are looked at here, before the loader sees the file.
"""

from __future__ import annotations

import ast
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

_COMPILED = ("/aotinductor/", ".so", ".dll", ".dylib", ".cubin", ".py")
_CODE_KEYS = ("expr_str", "guards_code")
_FUNCTIONS = frozenset(
    {
        *("Symbol", "Dummy", "Integer", "Rational", "Float", "Add", "Mul", "Pow", "Abs", "Min", "Max", "Mod"),
        *("Equality", "Unequality", "StrictLessThan", "LessThan", "StrictGreaterThan", "GreaterThan"),
        *("And", "Or", "Not"),
        *("Eq", "Ne", "Lt", "Le", "Gt", "Ge", "Piecewise", "ExprCondPair", "floor", "ceiling"),
        *("CeilDiv", "CleanDiv", "FloatTrueDiv", "FloorDiv", "Identity", "IntTrueDiv", "ModularIndexing", "PythonMod"),
        *("RShift", "LShift", "ToFloat", "TruncToFloat", "TruncToInt", "Where"),
        *("size", "stride", "dim", "numel", "storage_offset", "isnan", "max", "min", "abs", "int", "float"),
    }
)
_TEXT = re.compile(r"[\w.+-]*")  # a symbol's name, or a number in Float('1.5')
_ATTRIBUTES = _FUNCTIONS | {"shape", "math", "inf", "nan"}
_HARMLESS = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.UAdd, ast.BinOp, ast.Add, ast.Sub,
    ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
    ast.Is, ast.IsNot, ast.Name, ast.Load, ast.Constant, ast.Subscript, ast.Tuple, ast.keyword,
)  # fmt: skip


def what_would_run(path: Path) -> str | None:
    """Say what in the archive would run as code, or None.

    Raises:
        ValueError: the file is no zip, or a description in it is no JSON.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if any(part in name or name.endswith(part) for part in _COMPILED):
                    return f"compiled code or source '{name}'"
            for name in archive.namelist():
                if name.endswith(".json"):
                    for text in _code_texts(json.loads(archive.read(name))):
                        if not _is_arithmetic(text):
                            return f"the expression '{text[:80]}' in '{name}'"
    except (OSError, zipfile.BadZipFile, NotImplementedError, RecursionError, RuntimeError) as error:
        raise ValueError(str(error)) from error
    return None


def _code_texts(value: object) -> Iterator[str]:
    """Every text below a key that the loader evaluates, at any depth."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in _CODE_KEYS:
                yield from _texts(item)
            yield from _code_texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _code_texts(item)


def _texts(value: object) -> Iterator[str]:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str):
            yield item


def _is_arithmetic(text: str) -> bool:
    """Whether a text is arithmetic and comparisons on sizes, and nothing else."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return all(_is_harmless(node) for node in ast.walk(tree))


def _is_harmless(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        return name in _FUNCTIONS
    if isinstance(node, ast.Attribute):
        return node.attr in _ATTRIBUTES
    if isinstance(node, ast.Name):
        return not node.id.startswith("_")
    if isinstance(node, ast.Constant):
        harmless_text = isinstance(node.value, str) and _TEXT.fullmatch(node.value) is not None
        return harmless_text or isinstance(node.value, (bool, int, float, type(None)))
    return isinstance(node, _HARMLESS)
