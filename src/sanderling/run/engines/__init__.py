"""Engines, one file each, found by their file name. A vendor's name or error never leaves its file."""

from __future__ import annotations

import importlib
import pkgutil

from sanderling.core.errors import OptionError, UnavailableError
from sanderling.run.engines.base import Engine

DEFAULT_ENGINE = "onnxruntime"


def engine_names() -> tuple[str, ...]:
    """Names of all engines that this Sanderling knows, installed or not."""
    found = (module.name for module in pkgutil.iter_modules(__path__) if module.name != "base")
    return tuple(sorted(name.rstrip("_") for name in found))


def engine(name: str = DEFAULT_ENGINE) -> Engine:
    """The engine of that name.

    Raises:
        OptionError: there is no such engine.
        UnavailableError: it is not installed; the message says how to install it.
    """
    if name not in engine_names():
        raise OptionError(f"unknown engine '{name}': available are {', '.join(engine_names())}")
    found = known_engine(name)
    state = found.availability()
    if not state.installed:
        raise UnavailableError(f"engine '{name}' is not installed: {state.hint}")
    return found


def known_engine(name: str) -> Engine:
    """The engine of that name, installed or not."""
    module = importlib.import_module(f"{__name__}.{name}_")
    found: Engine = module.ENGINE
    return found
