"""The plan: what was measured to be best on a kind of device, and what to fall back to."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Objective = Literal["latency", "throughput", "memory"]
OptimizationName = Literal["all", "basic", "none"]


def short_name(
    engine: str, device: str, variant: str, compute: str, threads: int, batch: int, optimization: str = "all"
) -> str:
    """Name of one way to run a package, such as ``openvino/cpu/int8/t2/b1`` or ``openvino/cpu/fp32+bf16/t1/b1``.

    A level of optimisation that was lowered comes last: ``onnxruntime/cpu/int8/t2/b1/basic``.
    """
    arithmetic = "" if compute == "exact" else f"+{compute}"
    level = "" if optimization == "all" else f"/{optimization}"
    return f"{engine}/{device}/{variant}{arithmetic}/t{threads}/b{batch}{level}"


class PlanEntry(BaseModel):
    """One way to run a package, with its numbers.

    Attributes:
        compute: arithmetic of float nodes (``exact``, ``bf16``, ``fp16``).
        optimization: how much the engine may rewrite the graph; lowered where more gave wrong outputs.
        p50_ms: of one call with ``batch`` rows.
        throughput_per_s: rows a second.
        memory_bytes: what loading and running adds to a process; None where it was not measured.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: str
    device: str
    variant: str
    precision: str
    compute: str
    threads: int = Field(ge=0)
    batch: int = Field(ge=1)
    p50_ms: float
    p95_ms: float
    throughput_per_s: float
    memory_bytes: int | None = None
    optimization: OptimizationName = "all"

    @property
    def name(self) -> str:
        """Short name, see ``short_name``."""
        return short_name(
            self.engine, self.device, self.variant, self.compute, self.threads, self.batch, self.optimization
        )


class Plan(BaseModel):
    """The winner and ranked fallbacks for one kind of device.

    Attributes:
        machine: the processor, in words.
        engine_versions: of the engines that were measured; another version makes the plan stale.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    objective: Objective
    machine: str
    engine_versions: dict[str, str]
    winner: PlanEntry
    fallbacks: tuple[PlanEntry, ...]
