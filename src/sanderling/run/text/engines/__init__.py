"""Engines for language models, one file each, found by their file name. What is a vendor's never leaves its file."""

from __future__ import annotations

import importlib
import pkgutil

from sanderling.core.errors import OptionError, UnavailableError
from sanderling.run.text.base import TextEngine

DEFAULT_TEXT_ENGINE = "genai"


def text_engine_names() -> tuple[str, ...]:
    """Names of all text engines that this Sanderling knows, installed or not."""
    return tuple(sorted(module.name.rstrip("_") for module in pkgutil.iter_modules(__path__)))


def text_engine(name: str = DEFAULT_TEXT_ENGINE) -> TextEngine:
    """The text engine of that name.

    Raises:
        OptionError: there is no such engine.
        UnavailableError: it is not installed; the message says how to install it.
    """
    if name not in text_engine_names():
        raise OptionError(f"unknown text engine '{name}': available are {', '.join(text_engine_names())}")
    found: TextEngine = importlib.import_module(f"{__name__}.{name}_").ENGINE
    state = found.availability()
    if not state.installed:
        raise UnavailableError(f"text engine '{name}' is not installed: {state.hint}")
    return found
