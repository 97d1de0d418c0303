"""Where a package runs: the plan of this kind of device, or the default; and whether that keeps a requirement."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sanderling.core.errors import NotMetError, OptionError
from sanderling.core.files import cache_folder
from sanderling.core.machine import fingerprint
from sanderling.core.progress import Event
from sanderling.model.manifest import Variant
from sanderling.model.package import Package
from sanderling.model.plan import PlanEntry
from sanderling.run.engines import engine_names, known_engine
from sanderling.run.engines.base import Compute, DeviceKind, EngineOptions, Optimization, Placement

_REQUIREMENT = re.compile(r"^(?P<kind>cpu|gpu|npu)(=(?P<share>\d+(\.\d+)?)%)?$")
_NAMED_NODES = 5


@dataclass(frozen=True)
class Place:
    """An engine, a variant and how to load it.

    Attributes:
        entry: of the plan that this comes from; None for the default.
        event: why the plan was not followed, when there is one.
    """

    engine: str
    variant: Variant
    options: EngineOptions
    entry: PlanEntry | None = None
    event: Event | None = None


@dataclass(frozen=True)
class Requirement:
    """The least share of multiply–accumulates, or of nodes where these cannot be told, on a kind of hardware."""

    kind: DeviceKind
    share: float


def choose_place(package: Package, *, variant: str | None, threads: int, lean: bool) -> Place:
    """Follow the package's plan for this kind of device, as far as it was measured with the engines that are here.

    A variant that is asked for takes the plan's best entry of that variant. Without a plan that holds, the first
    engine of the variant runs it, and the event says why.
    """
    default = package.variant(variant)
    plain = Place(default.engines[0], default, default_options(default, threads=threads, lean=lean))
    own = fingerprint()
    stale: list[str] = []
    for entry in plan_entries(package, own, stale):
        if variant is None or entry.variant == variant:
            place = follow_entry(package, entry, own, threads=threads, lean=lean)
            return replace(place, event=stale_event(package, stale, entry.name) if stale else None)
    return replace(plain, event=stale_event(package, stale, plain.engine) if stale else None)


def plan_entries(
    package: Package, own: str, stale: list[str] | None = None, *, version: Callable[[str], str] | None = None
) -> Iterator[PlanEntry]:
    """The plan for this kind of device, best entry first, as far as it was measured with the engines that are here.

    Args:
        package: whose plan is read.
        own: fingerprint of this kind of device.
        stale: takes in words which entries were left out.
        version: of an engine that is here, empty for none; those of ``run.engines`` by default.
    """
    version = version or _version
    plan = package.manifest.plans.get(own)
    if plan is None:
        return
    for entry in (plan.winner, *plan.fallbacks):
        have, wanted = version(entry.engine), plan.engine_versions.get(entry.engine, "")
        if have == wanted:
            yield entry
        elif stale is not None:
            stale.append(f"{entry.name} was measured with {entry.engine} {wanted}, here is {have or 'none'}")


def follow_entry(package: Package, entry: PlanEntry, own: str, *, threads: int = 0, lean: bool = False) -> Place:
    """How an entry of the plan is loaded."""
    cache = compiled_cache(package, entry, _version(entry.engine), own)
    options = EngineOptions(
        device=entry.device,
        threads=threads or entry.threads,
        compute=Compute(entry.compute),
        optimization=Optimization(entry.optimization),
        lean=lean,
        cache=cache,
    )
    return Place(entry.engine, package.variant(entry.variant), options, entry)


def default_options(variant: Variant, *, threads: int = 0, lean: bool = False, device: str = "") -> EngineOptions:
    """How a variant is loaded without a plan: at the level of optimisation at which its outputs were right."""
    return EngineOptions(device=device, threads=threads, lean=lean, optimization=Optimization(variant.optimization))


def parse_requirement(text: str) -> Requirement:
    """Read ``npu``, or ``npu=95%``.

    Raises:
        OptionError: another form, or more than 100 %.
    """
    match = _REQUIREMENT.match(text.strip().lower())
    share = float(match["share"] or 100) if match else 101.0
    if match is None or share > 100:
        raise OptionError(
            f"--require '{text}' has the wrong form: expected cpu, gpu or npu with a share, as in npu=95%"
        )
    return Requirement(DeviceKind(match["kind"]), share / 100)


def check_placement(placement: Placement, requirement: Requirement) -> None:
    """Check where a loaded graph runs.

    Raises:
        NotMetError: less than the required share runs on that kind of hardware; nodes that fell back are named.
    """
    share, counted = placement.share(requirement.kind)
    if share + 1e-9 >= requirement.share:
        return
    where = ", ".join(f"{kind} {100 * part:.0f} %" for kind, part in sorted(placement.kinds.items()))
    nodes = ", ".join(placement.fell_back[:_NAMED_NODES])
    more = f" and {len(placement.fell_back) - _NAMED_NODES} more" if placement.fell_back[_NAMED_NODES:] else ""
    fell_back = f"; fell back: {nodes}{more}" if nodes else ""
    required = f"{100 * requirement.share:g} % are required"
    raise NotMetError(f"{100 * share:.0f} % of the {counted} run on {requirement.kind}, {required}: {where}{fell_back}")


def compiled_cache(package: Package, entry: PlanEntry, version: str, device: str) -> Path:
    """Folder for what an engine compiles: another model, engine version, option or kind of device is another folder."""
    digest = package.manifest.files[package.variant(entry.variant).file].sha256
    parts = [digest, entry.name, version, device]
    return cache_folder() / "compiled" / hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def stale_event(package: Package, stale: list[str], taken: str) -> Event:
    """What tells that a plan is followed only in part."""
    reason = f"{'; '.join(stale)}; {taken} runs instead; measure again with sanderling tune"
    return Event(kind="plan-stale", subject=package.manifest.name, reason=reason)


def _version(engine: str) -> str:
    return known_engine(engine).availability().version if engine in engine_names() else ""
