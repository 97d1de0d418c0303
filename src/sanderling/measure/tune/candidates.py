"""Every way to run a package here, and why some are out before they start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sanderling.core.machine import usable_cores
from sanderling.model.manifest import Manifest, Variant
from sanderling.model.plan import Objective, short_name
from sanderling.run.devices import EngineState
from sanderling.run.engines.base import Compute, DeviceInfo, EngineOptions, Fidelity, Optimization

_THROUGHPUT_BATCHES = (1, 4, 8, 16)


@dataclass(frozen=True)
class Candidate:
    """Engine × device × variant × arithmetic × threads × batch."""

    engine: str
    device: str
    variant: str
    precision: str
    compute: Compute
    threads: int
    batch: int
    optimization: Optimization = Optimization.ALL

    @property
    def name(self) -> str:
        """Short name, as the plan's entry has it."""
        return short_name(
            self.engine, self.device, self.variant, self.compute, self.threads, self.batch, self.optimization
        )

    @property
    def options(self) -> EngineOptions:
        """How the engine loads it."""
        return EngineOptions(
            device=self.device, threads=self.threads, compute=self.compute, optimization=self.optimization
        )


@dataclass(frozen=True)
class Excluded:
    """Something that does not take part, and why."""

    name: str
    reason: str


def list_candidates(
    manifest: Manifest, states: Sequence[EngineState], objective: Objective
) -> tuple[list[Candidate], list[Excluded]]:
    """All candidates, and what is out with its reason.

    Variants outside the package's accuracy budget, engines that are not installed, devices that are no hardware and
    precisions that a device does not take are out.
    """
    candidates: list[Candidate] = []
    excluded: list[Excluded] = []
    variants = []
    for variant in manifest.variants:
        if variant.within_budget is False:
            excluded.append(Excluded(variant.id, "the variant is outside the package's accuracy budget"))
        else:
            variants.append(variant)
    dynamic = all(spec.shape and isinstance(spec.shape[0], str) for spec in manifest.inputs)
    batches = _THROUGHPUT_BATCHES if objective == "throughput" and dynamic else (1,)
    for state in states:
        if not state.availability.installed:
            excluded.append(Excluded(state.name, f"the engine is not installed: {state.availability.hint}"))
        for device in state.devices:
            for entry in _on_device(device, variants, batches):
                if isinstance(entry, Candidate):
                    candidates.append(entry)
                else:
                    excluded.append(entry)
    return candidates, excluded


def _on_device(
    device: DeviceInfo, variants: Sequence[Variant], batches: Sequence[int]
) -> Iterator[Candidate | Excluded]:
    place = f"{device.engine}/{device.device}"
    if device.fidelity != Fidelity.HARDWARE:
        yield Excluded(place, f"the device is {device.fidelity}: its latency says nothing about hardware")
        return
    for variant in variants:
        if variant.precision not in device.precisions:
            yield Excluded(f"{place}/{variant.id}", f"the device does not take {variant.precision}")
            continue
        for compute in _computes(device, variant):
            for threads in sorted({1, usable_cores()}):
                for batch in batches:
                    yield Candidate(
                        device.engine, device.device, variant.id, variant.precision, compute, threads, batch
                    )


def _computes(device: DeviceInfo, variant: Variant) -> tuple[Compute, ...]:
    """Reduced arithmetic is tried on the FP32 graph only: it replaces a variant, it does not refine one.

    A device that cannot compute exactly runs every variant in the arithmetic that it has.
    """
    exact = Compute.EXACT in device.computes
    return (Compute.EXACT,) if exact and variant.precision != "fp32" else device.computes
