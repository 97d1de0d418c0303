"""From a package to a language model that is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sanderling.core.errors import OptionError
from sanderling.core.machine import fingerprint
from sanderling.core.progress import Event
from sanderling.model.manifest import Variant
from sanderling.model.package import Package
from sanderling.model.text import TextSpec
from sanderling.run.placing import plan_entries, stale_event
from sanderling.run.text.base import TextModel
from sanderling.run.text.engines import text_engine, text_engine_version
from sanderling.run.text.limits import TextLimits
from sanderling.run.text.session import TextSession
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


@dataclass(frozen=True)
class TextPlace:
    """How a language model runs here.

    Attributes:
        threads: of one call; 0 for all cores.
        event: why the plan of the package was not followed, when there is one.
    """

    engine: str
    variant: Variant
    threads: int = 0
    event: Event | None = None


def text_place(
    package: Package, *, variant: str | None = None, engine: str | None = None, threads: int = 0
) -> TextPlace:
    """Follow the package's plan for this kind of device, as far as it was measured with the engines that are here.

    What is asked for narrows the plan. Without a plan that holds, the first engine of the variant that is installed
    runs it.

    Raises:
        OptionError: there is no such variant, the engine does not take it, or the package is another kind of model.
    """
    text_spec(package)
    default = package.variant(variant)
    stale: list[str] = []
    for entry in plan_entries(package, fingerprint(), stale, version=text_engine_version):
        if entry.variant == (variant or entry.variant) and entry.engine == (engine or entry.engine):
            event = stale_event(package, stale, entry.name) if stale else None
            return TextPlace(entry.engine, package.variant(entry.variant), threads or entry.threads, event)
    if engine is not None and variant is None and engine not in default.engines:
        default = next((each for each in package.manifest.variants if engine in each.engines), default)
    if engine is not None and engine not in default.engines:
        available = ", ".join(sorted({name for each in package.manifest.variants for name in each.engines}))
        raise OptionError(f"engine '{engine}' does not take variant '{default.id}': available are {available}")
    found = engine or next((name for name in default.engines if text_engine_version(name)), default.engines[0])
    return TextPlace(found, default, threads, stale_event(package, stale, found) if stale else None)


def load_model(package: Package, variant: Variant, *, threads: int = 0, engine: str = "") -> TextModel:
    """Load a variant of a language model.

    Args:
        package: that the variant is of.
        variant: to load.
        threads: of one call; 0 for all cores.
        engine: that runs it; without, the first of the variant's that is installed.

    Raises:
        OptionError: the package is another kind of model.
        UnavailableError: the engine is not installed.
        ModelError: the engine does not take its files.
        EngineError: loading failed.
    """
    spec = text_spec(package)
    name = engine or text_place(package, variant=variant.id).engine
    return text_engine(name).load(package.file(variant.file).parent, spec, threads=threads)


def load_text(
    path: str | Path,
    *,
    variant: str | None = None,
    engine: str | None = None,
    threads: int = 0,
    limits: TextLimits | None = None,
    turns: Turns | None = None,
    check_hashes: bool = True,
) -> TextSession:
    """Open a package of a language model, and load it.

    Args:
        path: package folder, or a zip of one.
        variant: id such as ``int8``; the plan's or the chosen one by default.
        engine: such as ``onnxruntime``; the plan's or the variant's first by default.
        threads: of one call; 0 leaves it to the plan, or takes all cores.
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
    place = text_place(package, variant=variant, engine=engine, threads=threads)
    model = load_model(package, place.variant, threads=place.threads, engine=place.engine)
    return TextSession(model, limits=limits, turns=turns, events=(place.event,) if place.event else ())
