"""Engines for language models, one file each, found by their file name. What is a vendor's never leaves its file."""

from __future__ import annotations

import importlib
import pkgutil

from sanderling.core.errors import OptionError, UnavailableError
from sanderling.run.text.base import TextEngine

DEFAULT_TEXT_ENGINE = "onnxruntime"
ONNX_ENGINES = ("onnxruntime", "genai")  # that run the folders of ONNX variants, the first by default


def text_engine_names() -> tuple[str, ...]:
    """Names of all text engines that this Sanderling knows, installed or not."""
    return tuple(sorted(module.name.rstrip("_") for module in pkgutil.iter_modules(__path__)))


def text_engine_version(name: str) -> str:
    """Version of a text engine that is installed here; empty where it is not, or is none."""
    if name not in text_engine_names():
        return ""
    state = _engine(name).availability()
    return state.version if state.installed else ""


def text_engine(name: str = DEFAULT_TEXT_ENGINE) -> TextEngine:
    """The text engine of that name.

    Raises:
        OptionError: there is no such engine.
        UnavailableError: it is not installed; the message says how to install it.
    """
    if name not in text_engine_names():
        raise OptionError(f"unknown text engine '{name}': available are {', '.join(text_engine_names())}")
    found = _engine(name)
    state = found.availability()
    if not state.installed:
        raise UnavailableError(f"text engine '{name}' is not installed: {state.hint}")
    return found


def _engine(name: str) -> TextEngine:
    found: TextEngine = importlib.import_module(f"{__name__}.{name}_").ENGINE
    return found
