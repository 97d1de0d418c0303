"""From a package to a language model that is loaded."""

from __future__ import annotations

from pathlib import Path

from sanderling.core.errors import OptionError
from sanderling.model.manifest import Variant
from sanderling.model.package import Package
from sanderling.model.text import TextSpec
from sanderling.run.text.base import TextModel
from sanderling.run.text.engines import text_engine
from sanderling.run.text.session import TextLimits, TextSession
from sanderling.run.text.turns import Turns


def text_spec(package: Package) -> TextSpec:
    """What a package's language model reads and writes.

    Raises:
        OptionError: it is another kind of model.
    """
    if package.manifest.text is None:
        raise OptionError(
            f"package '{package.manifest.name}' generates no text: run it with sanderling run, or build one with "
            "--task text-generation"
        )
    return package.manifest.text


def load_model(package: Package, variant: Variant, *, threads: int = 0) -> TextModel:
    """Load a variant of a language model with the engine that it is for.

    Raises:
        OptionError: the package is another kind of model.
        UnavailableError: the engine is not installed.
        ModelError: the engine does not take its files.
        EngineError: loading failed.
    """
    spec = text_spec(package)
    return text_engine(variant.engines[0]).load(package.file(variant.file).parent, spec, threads=threads)


def load_text(
    path: str | Path,
    *,
    variant: str | None = None,
    threads: int = 0,
    limits: TextLimits | None = None,
    turns: Turns | None = None,
    check_hashes: bool = True,
) -> TextSession:
    """Open a package of a language model, and load it.

    Args:
        path: package folder, or a zip of one.
        variant: id such as ``int8``; the chosen one by default.
        threads: of one call; 0 leaves it to the engine.
        limits: see there.
        turns: by which other models run between its steps.
        check_hashes: compare every file's hash before it is used.

    Raises:
        PackageError: the package is broken or altered.
        OptionError: there is no such variant, or the package is another kind of model.
        UnavailableError: the engine is not installed.
        EngineError: loading failed.
    """
    package = Package.open(path, check_hashes=check_hashes)
    text_spec(package)
    return TextSession(load_model(package, package.variant(variant), threads=threads), limits=limits, turns=turns)
