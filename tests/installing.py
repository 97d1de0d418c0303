"""Engines and tools that are installed on request, as a user would: into the cache folder, once for all sessions."""

from __future__ import annotations

import functools

from sanderling.core.errors import UnavailableError
from sanderling.core.progress import Silent
from sanderling.run.mindspore_lite.library import Libraries
from sanderling.workshop.targets.harmonyos import toolchain


@functools.cache
def install_mindspore() -> str:
    """Fetch and compile what is not here yet; the reason where a compiler or the wheel cannot be had, else nothing."""
    try:
        Libraries().install(Silent())
    except UnavailableError as error:
        return str(error)
    return ""


@functools.cache
def install_arkts() -> str:
    """Fetch the npm packages that check ArkTS; the reason where Node.js or they cannot be had, else nothing."""
    try:
        toolchain.install(Silent())
    except UnavailableError as error:
        return str(error)
    return toolchain.state().hint
