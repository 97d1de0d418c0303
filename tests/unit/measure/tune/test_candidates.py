from __future__ import annotations

import pytest

from sanderling.core.precision import Precision
from sanderling.measure.tune.candidates import Candidate, list_candidates
from sanderling.run.devices import EngineState
from sanderling.run.engines.base import Availability, Compute, DeviceInfo, DeviceKind, Fidelity
from tests.unit.workshop.test_report import manifest

VARIANTS = tuple(item.model_copy(update={"within_budget": True}) for item in manifest().variants)


def computes_of(*computes: Compute) -> dict[str, set[Compute]]:
    """Arithmetic of each variant's candidates on a device that offers ``computes``."""
    device = DeviceInfo(
        engine="tested",
        device="npu",
        kind=DeviceKind.NPU,
        fidelity=Fidelity.HARDWARE,
        description="",
        memory_bytes=None,
        precisions=tuple(Precision),
        computes=computes,
    )
    state = EngineState("tested", Availability(True, "1"), (device,))
    found, _ = list_candidates(manifest(variants=VARIANTS), [state], "latency")
    assert all(isinstance(candidate, Candidate) for candidate in found)
    return {name: {entry.compute for entry in found if entry.variant == name} for name in ("fp32", "fp16", "int8")}


def test_reduced_arithmetic_is_tried_on_fp32_only():
    both = computes_of(Compute.EXACT, Compute.BF16)
    assert both == {"fp32": {Compute.EXACT, Compute.BF16}, "fp16": {Compute.EXACT}, "int8": {Compute.EXACT}}


@pytest.mark.parametrize("own", [Compute.FP16, Compute.BF16])
def test_device_that_cannot_compute_exactly_runs_every_variant_in_its_own_arithmetic(own):
    assert computes_of(own) == {"fp32": {own}, "fp16": {own}, "int8": {own}}
