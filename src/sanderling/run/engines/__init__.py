"""Engines, one file each, found by their file name. A vendor's name or error never leaves its file."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from sanderling.core.errors import OptionError, UnavailableError
from sanderling.run.engines.base import Engine, Installation

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
    found: Engine = _module(name).ENGINE
    return found


def environment_of(name: str) -> Installation:
    """The environment of its own that an engine needs, made or not.

    Raises:
        OptionError: there is no such engine, or it needs none.
    """
    own = {known: getattr(_module(known), "ENVIRONMENT", None) for known in engine_names()}
    found: Installation | None = own.get(name)
    if found is not None:
        return found
    known = ", ".join(engine for engine, environment in own.items() if environment is not None)
    if name not in own:
        raise OptionError(f"unknown engine '{name}': engines with an environment of their own are {known}")
    hint = known_engine(name).availability().hint
    told = f"it is installed with {hint}" if hint else "it is installed"
    raise OptionError(f"engine '{name}' needs no environment of its own, {told}: those that do are {known}")


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}_")
