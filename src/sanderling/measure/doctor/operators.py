"""Which engines and targets take a graph, and which operators they refuse."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import onnx

from sanderling.core.errors import OptionError, SanderlingError
from sanderling.core.progress import Progress
from sanderling.measure.doctor.findings import Finding, TargetOperators, advice, fault, named_first
from sanderling.model.graph import all_nodes, opset_of
from sanderling.run.engines import DEFAULT_ENGINE, engine, engine_names, known_engine
from sanderling.run.engines.base import Compute, EngineOptions
from sanderling.run.isolated import Worker

TABLES = ("ascend",)
HALF_TARGETS = ("ascend",)  # they compute in FP16 unless told otherwise
_ENDS = 2
_UNCHECKED = ("Constant", "Loop")  # read by the parser itself, not by a registered operator


def check_targets(names: Sequence[str]) -> None:
    """Check that every target is an engine or has a table.

    Raises:
        OptionError: an unknown name.
    """
    known = (*TABLES, *(name for name in engine_names() if name != "null"))
    for name in names:
        if name not in known:
            raise OptionError(f"unknown target '{name}': available are {', '.join(sorted(known))}")


def compatibility(
    model: onnx.ModelProto, file: Path, *, engines: Sequence[str], targets: Sequence[str], progress: Progress
) -> tuple[list[TargetOperators], list[Finding]]:
    """Ask engines to load the graph, each in a process of its own, and look targets up in their tables.

    Args:
        model: the graph.
        file: where it lies.
        engines: that must take it: a refusal is a fault. All others that are installed are asked too.
        targets: with a table, such as ``ascend``, or engines.

    Raises:
        OptionError: an unknown engine.
        UnavailableError: an engine that was named is not installed.
    """
    tables = [name for name in targets if name in TABLES]
    wanted = {DEFAULT_ENGINE, *engines, *(name for name in targets if name not in TABLES)}
    for name in wanted:
        engine(name)
    installed = [name for name in engine_names() if name != "null" and known_engine(name).availability().installed]
    asked = sorted({*installed, *wanted}) if not engines else sorted(wanted)
    progress.stage("ask engines", len(asked))
    results = []
    for name in asked:
        results.append(_loaded(name, file))
        progress.advance()
    results += [by_table(name, model) for name in tables]
    findings = [_finding(result, must=result.target in (*wanted, *tables)) for result in results if not result.accepted]
    return results, findings


@dataclass(frozen=True)
class Unregistered:
    """An operator that a target's table lacks, in the graph's opset or at all."""

    operator: str
    reason: str
    nodes: tuple[str, ...]


def by_table(target: str, model: onnx.ModelProto) -> TargetOperators:
    """Look every operator up in a target's table of registered operators and opsets."""
    refused = {entry.operator: entry.reason for entry in unregistered(target, model)}
    return TargetOperators(target=target, basis="table", accepted=not refused, refused=refused)


def unregistered(target: str, model: onnx.ModelProto) -> list[Unregistered]:
    """Operators that a target's table lacks, in the graph's order, with their nodes."""
    text = resources.files("sanderling.measure.doctor").joinpath(f"data/{target}_operators.json").read_text("utf-8")
    table: dict[str, list[int]] = json.loads(text)
    opset = opset_of(model)
    reasons: dict[str, str] = {}
    nodes: dict[str, list[str]] = {}
    for node in all_nodes(model.graph):
        foreign = node.domain not in ("", "ai.onnx")
        if not foreign and node.op_type in _UNCHECKED:
            continue
        reason = _refusal(table.get(node.op_type), None if foreign else opset)
        if reason:
            name = f"{node.domain}.{node.op_type}" if foreign else node.op_type
            reasons[name] = reason
            nodes.setdefault(name, []).append(node.name or next(iter(node.output), ""))
    return [Unregistered(name, reason, tuple(nodes[name])) for name, reason in reasons.items()]


def _refusal(opsets: list[int] | None, opset: int | None) -> str:
    """Why an operator is refused in an opset, or in any; two entries are the first and the last, more are each."""
    if opsets is None:
        return "not registered"
    if opset is None or opset in opsets or (len(opsets) == _ENDS and opsets[0] <= opset <= opsets[1]):
        return ""
    listed = " to ".join(map(str, opsets)) if len(opsets) == _ENDS else ", ".join(map(str, opsets))
    return f"registered for opsets {listed}, the graph has {opset}"


def _loaded(name: str, file: Path) -> TargetOperators:
    worker = Worker()
    computes = [compute for device in known_engine(name).devices() for compute in device.computes]
    try:
        worker.load(name, file, EngineOptions(threads=1, compute=[*computes, Compute.EXACT][0])).close()
    except SanderlingError as error:
        return TargetOperators(target=name, basis="loaded", accepted=False, refused={"the graph": str(error)})
    finally:
        worker.close()
    return TargetOperators(target=name, basis="loaded", accepted=True)


def _finding(result: TargetOperators, *, must: bool) -> Finding:
    told = named_first([f"{name}: {reason}" for name, reason in result.refused.items()])
    make = fault if must else advice
    remedy = "export another opset or form of these operators, or take another engine"
    return make("operators-refused", result.target, told, remedy, operators=len(result.refused))
