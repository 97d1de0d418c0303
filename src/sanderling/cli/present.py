"""Results as tables for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from sanderling.core.tensor import Array
    from sanderling.demo.story import Story
    from sanderling.measure.bench import BenchResult
    from sanderling.measure.bisect import Bisection
    from sanderling.measure.doctor import Diagnosis
    from sanderling.measure.inspection import Inspection
    from sanderling.measure.tune import TuneResult
    from sanderling.measure.verify import VerifyResult
    from sanderling.model.learning import LearningSpec
    from sanderling.run.devices import EngineState
    from sanderling.run.emulation.table import LatencyTable
    from sanderling.run.engines.base import Installation
    from sanderling.run.sensors import Survey
    from sanderling.tasks.vision import Label
    from sanderling.workshop.pipeline import BuildResult

_SHOWN_ALIKE = 4


def table(columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]]) -> Table:
    """A plain table; each column is its title, and whether it holds numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for place, (title, number) in enumerate(columns):
        justify: Literal["left", "right"] = "right" if number else "left"
        made.add_column(title, justify=justify, overflow="fold", no_wrap=place == 0 and len(columns) > 3)
    for row in rows:
        made.add_row(*row)
    return made


def megabytes(size_bytes: float) -> str:
    """Bytes as megabytes, or kilobytes below 0.1 MB."""
    return f"{size_bytes / 1e6:.1f} MB" if size_bytes >= 1e5 else f"{size_bytes / 1e3:.1f} kB"


def build_result(console: Console, result: BuildResult) -> None:
    """The variants, the choice and where the package and its report are."""
    manifest = result.manifest
    rows = []
    for variant in manifest.variants:
        accuracy, latency = variant.accuracy, variant.latency_ms
        assert accuracy is not None
        assert latency is not None
        rows.append(
            [
                f"{'→ ' if variant.id == manifest.chosen else '  '}{variant.id}",
                megabytes(variant.size_bytes),
                f"{latency.p50:.2f}",
                f"{latency.p95:.2f}",
                megabytes(variant.memory_bytes) if variant.memory_bytes is not None else "–",
                f"{accuracy.value:.4g}",
                f"{accuracy.drop:.3g}",
                f"{accuracy.drop_upper:.3g}",
                "inside" if variant.within_budget else "missed",
            ]
        )
    metric = manifest.variants[0].accuracy.metric if manifest.variants[0].accuracy else ""
    titles = ("  variant", "size", "p50 ms", "p95 ms", "memory", metric, "drop", "bound", "budget")
    console.print(table([(title, 0 < index < 8) for index, title in enumerate(titles)], rows))
    _search(console, result)
    console.print(f"chosen: {result.evidence.choice}", soft_wrap=True)
    console.print(
        f"accuracy on {result.evidence.evaluation_data}; bound: of the drop, upper 95 % (INT8 and mixed 97.5 %)",
        soft_wrap=True,
    )
    console.print(f"package: {result.path}", soft_wrap=True)
    if result.path.is_dir():
        console.print(f"report:  {result.path / 'report.html'}", soft_wrap=True)


def _search(console: Console, result: BuildResult) -> None:
    """The front of mixed precision, where it was searched."""
    quantization = result.evidence.quantization
    if quantization is None or quantization.search is None:
        return
    search = quantization.search
    rows = [
        [
            f"{'→ ' if index == search.chosen else '  '}{len(point.float_blocks)} of {len(search.blocks)}",
            f"{100 * point.macs_int8_share:.1f} %",
            f"{point.accuracy.drop:.3g}",
            f"{point.accuracy.drop_upper:.3g}",
            f"{point.latency_p50_ms:.2f}" if point.latency_p50_ms is not None else "–",
        ]
        for index, point in enumerate(search.points)
        if point.accuracy is not None
    ]
    titles = ("  blocks in float", "MACs in INT8", "drop", f"bound {100 * search.confidence:g} %", "p50 ms")
    console.print(table([(title, index > 0) for index, title in enumerate(titles)], rows))


def finetune_result(console: Console, result: BuildResult) -> None:
    """Every epoch, and then the build."""
    training = result.evidence.finetuning
    assert training is not None
    rows = [
        [
            f"{'→ ' if number == training.kept else '  '}{number}",
            f"{epoch.loss:.4f}",
            f"{epoch.held_out_percent:.2f} %",
            f"{epoch.seconds:.1f}",
        ]
        for number, epoch in enumerate(training.epochs, 1)
    ]
    titles = ("  epoch", "loss", "held out, right", "s")
    console.print(table([(title, index > 0) for index, title in enumerate(titles)], rows))
    console.print(
        f"trained on {training.samples} samples; the best epoch on {training.held_out} held out was kept",
        soft_wrap=True,
    )
    build_result(console, result)


def inspection(console: Console, found: Inspection) -> None:
    """Inputs, cost, operators and findings."""
    console.print(f"{found.model}, opset {found.opset}")
    for title, specs in (("inputs", found.inputs), ("outputs", found.outputs)):
        console.print(f"{title}: {'; '.join(map(str, specs))}", markup=False)
    console.print(f"operators: {', '.join(f'{name} {count}' for name, count in found.operators.items())}")
    console.print(
        f"{found.parameters:,} parameters, {megabytes(found.weight_bytes)} of weights, {found.macs:,} MACs, "
        f"{_activations(found)}{found.compute_density:.1f} MACs per byte"
    )
    if found.text is not None:
        console.print(
            f"language model: {found.text.architecture}, context {found.text.context_length:,} tokens, vocabulary "
            f"{found.text.vocabulary:,}, {'with' if found.text.chat_template else 'without'} a chat template",
            soft_wrap=True,
        )
    if found.learning is not None:
        console.print(_trainable(found.learning), soft_wrap=True, markup=False)
    rows = [[node.name, node.op_type, f"{node.macs:,}", megabytes(node.weight_bytes)] for node in found.heaviest]
    if rows:
        console.print(table([("heaviest nodes", False), ("operator", False), ("MACs", True), ("weights", True)], rows))
    for finding in found.findings:
        console.print(f"{finding.kind}: {finding.subject}: {finding.detail}", markup=False)
    if not found.findings:
        console.print("nothing looks wrong")


def _trainable(spec: LearningSpec) -> str:
    """What a task trains, in one line."""
    count = sum(math.prod(parameter.shape) for parameter in spec.parameters)
    adapters = f" of {len(spec.adapters)} adapters" if spec.adapters else ""
    private = "with a private step" if spec.private.file is not None else "without a private step"
    features = f", {100 * spec.features.macs_share:.0f} % of the forward pass cut off" if spec.features else ""
    return (
        f"task: trains {count:,} parameters{adapters} ({spec.trainable}) on {spec.loss.kind} by "
        f"{' or '.join(graph.kind for graph in spec.optimizers)}, {private}{features}"
    )


def _activations(found: Inspection) -> str:
    if found.peak_activation_bytes is None:
        return ""
    return f"peak activations {megabytes(found.peak_activation_bytes)}, "


def labels(console: Console, picture: Path, found: Sequence[Label]) -> None:
    """A picture's best classes."""
    console.print(str(picture), markup=False, soft_wrap=True)
    for label in found:
        console.print(f"  {100 * label.probability:5.1f} %  {label.label}", markup=False, soft_wrap=True)


def outputs(console: Console, source: Path, arrays: dict[str, Array]) -> None:
    """Shapes and ranges of raw outputs."""
    console.print(str(source), markup=False, soft_wrap=True)
    for name, array in arrays.items():
        span = f"{array.min():.4g} … {array.max():.4g}" if array.size and array.dtype.kind in "fiu" else ""
        console.print(f"  {name}: {array.dtype.name}{list(array.shape)} {span}", markup=False)


def bench_result(console: Console, result: BenchResult) -> None:
    """Latency, throughput and memory by variant."""
    rows = []
    for variant in result.variants:
        timing = variant.latency_ms
        memory = megabytes(variant.memory_bytes) if variant.memory_bytes is not None else "–"
        numbers = [f"{value:.2f}" for value in (timing.p50, timing.p95, timing.p99)]
        speed = f"{result.variants[0].latency_ms.p50 / timing.p50:.2f}×"
        rows.append(
            [
                variant.id,
                variant.engine,
                *numbers,
                speed,
                f"{variant.throughput_per_s:.1f}",
                memory,
                megabytes(variant.size_bytes),
            ]
        )
    titles = ("variant", "engine", "p50 ms", "p95 ms", "p99 ms", "speed", "rows/s", "memory", "size")
    console.print(table([(title, index > 1) for index, title in enumerate(titles)], rows))
    repeats = result.variants[0].latency_ms.repeats
    console.print(
        f"batch {result.batch}, {result.threads} threads, {repeats} repeats in turn, {result.machine.processor}"
    )


def tune_result(console: Console, result: TuneResult) -> None:
    """Every candidate with its numbers and its reason, best first."""
    rows = []
    for candidate in result.candidates:
        mark = "→ " if candidate.status == "won" else "  "
        p50 = f"{candidate.p50_ms:.3g}" if candidate.p50_ms is not None else "–"
        spread = f"{candidate.low_ms:.3g} … {candidate.high_ms:.3g}" if candidate.low_ms is not None else "–"
        rows.append([f"{mark}{candidate.name}", p50, spread, str(candidate.repeats), candidate.reason])
    titles = ("  candidate", "p50 ms", "95 %", "repeats", "why")
    console.print(table([(title, 0 < index < 4) for index, title in enumerate(titles)], rows))
    plan = result.plan
    fallbacks = ", ".join(entry.name for entry in plan.fallbacks) or "none"
    console.print(
        f"plan for {plan.machine} by {plan.objective}: {plan.winner.name}; fallbacks: {fallbacks}", soft_wrap=True
    )


def bisection(console: Console, found: Bisection) -> None:
    """The first tensor that diverges, with the last that agrees."""
    if found.node is None:
        told = f"no tensor diverges: largest relative error {found.worst:.1e} over {found.tensors} tensors"
        console.print(f"{found.engine} on {found.variant}: {told}", soft_wrap=True)
        return
    console.print(
        f"{found.engine} on {found.variant}: node '{found.node}' ({found.op_type}) is the first whose output diverges: "
        f"'{found.tensor}' has relative error {found.error:.1e}, at most {found.tolerance:.0e} allowed",
        markup=False,
        soft_wrap=True,
    )


def verify_result(console: Console, result: VerifyResult) -> None:
    """Each check with its numbers."""
    for check in result.checks:
        console.print(
            f"{'ok    ' if check.passed else 'FAILED'}  {check.name}: {check.detail}",
            markup=False,
            soft_wrap=True,
        )
    console.print("the package holds here" if result.passed else "the package does not hold here any more")


def diagnosis(console: Console, found: Diagnosis) -> None:
    """Findings with their remedies, who takes the graph, and what was not looked at."""
    rows: list[list[str]] = []
    for (severity, kind), same in groupby(found.findings, lambda entry: (entry.severity, entry.kind)):
        alike = list(same)
        rows += [[severity, kind, entry.subject, entry.evidence, entry.remedy] for entry in alike[:_SHOWN_ALIKE]]
        if alike[_SHOWN_ALIKE:]:
            rows.append([severity, kind, f"… and {len(alike) - _SHOWN_ALIKE} more", "see --json", ""])
    if rows:
        titles = ("severity", "finding", "where", "evidence", "what to do")
        console.print(table([(title, False) for title in titles], rows), markup=False)
    for entry in found.operators:
        refused = "; ".join(f"{name}: {reason}" for name, reason in entry.refused.items())
        console.print(f"{entry.target}: {'takes it' if entry.accepted else f'refuses {refused}'}", markup=False)
    for check in found.checks:
        console.print(f"{'checked    ' if check.ran else 'not checked'}  {check.name}: {check.detail}", markup=False)
    console.print("healthy: no fault was found" if found.healthy else "not healthy")


def latency_table(console: Console, found: LatencyTable) -> None:
    """Milliseconds of a call by model, device and rows."""
    rows = [
        [model, device, f"{size}", f"{latency_ms:.2f}", f"{size * 1e3 / latency_ms:.1f}"]
        for model, entries in found.models.items()
        for device, entry in entries.items()
        for size, latency_ms in entry.latency_ms.items()
    ]
    titles = ("model", "device", "rows", "p50 ms", "rows/s")
    console.print(table([(title, index > 1) for index, title in enumerate(titles)], rows))


def engines(console: Console, states: Sequence[EngineState], sensors: Survey) -> None:
    """Engines with their devices, how to install the others, and what the sensors say."""
    rows = []
    for state in states:
        for device in state.devices:
            memory = f"{device.memory_bytes / 1e9:.0f} GB" if device.memory_bytes else ""
            name = f"{state.name} {state.availability.version.partition('+')[0]}"
            takes, computes = "\n".join(device.precisions), "\n".join(device.computes)
            rows.append([name, device.device, device.kind, device.fidelity, memory, takes, computes])
    titles = ("engine", "device", "kind", "fidelity", "memory", "precisions", "arithmetic")
    console.print(table([(title, title == "memory") for title in titles], rows))
    for state in states:
        if not state.availability.installed:
            console.print(f"{state.name} is not installed: {state.availability.hint}", markup=False, soft_wrap=True)
    _sensors(console, sensors)


def _sensors(console: Console, found: Survey) -> None:
    told = ", ".join(f"{entry.sensor} {entry.temperature_c:.1f} °C" for entry in found.temperatures)
    memory, power = found.memory, found.power
    console.print(f"temperatures: {told or 'none here'}", markup=False, soft_wrap=True)
    used, limit = f"{memory.used_bytes / 1e9:.1f}", f"{memory.limit_bytes / 1e9:.1f} GB"
    console.print(f"memory: {used} of {limit} used ({memory.scope})", markup=False, soft_wrap=True)
    console.print(f"power: {power.reason or ', '.join(power.sources)}", markup=False, soft_wrap=True)
    for entry in found.lost:
        console.print(entry, markup=False, soft_wrap=True)


def environment(console: Console, made: Installation, size_bytes: int) -> None:
    """Where an environment is."""
    console.print(f"environment '{made.name}' is ready: {made.folder}, {megabytes(size_bytes)}", soft_wrap=True)


def story(console: Console, told: Story) -> None:
    """The demonstration: the build's table, the verification, and the photos' labels."""
    build_result(console, told.result)
    verify_result(console, told.verification)
    for name, found in told.labels.items():
        labels(console, Path(name), found)
    console.print(f"report: {told.result.path / 'report.html'}", soft_wrap=True)
