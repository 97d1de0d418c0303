"""The target `ascend`: what it refuses and which variant it takes; `writing.py` writes the files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx

from sanderling.core.errors import ModelError
from sanderling.core.precision import Precision
from sanderling.measure.doctor.operators import Unregistered, unregistered
from sanderling.model.graph import all_nodes, input_specs, opset_of, output_specs
from sanderling.model.lowering import lower
from sanderling.model.package import Package
from sanderling.workshop.quantize.qdq import is_quantized
from sanderling.workshop.targets.ascend import atc
from sanderling.workshop.targets.ascend.deploy import to_deploy
from sanderling.workshop.targets.ascend.settings import KIRIN, OPTIONS, read_settings
from sanderling.workshop.targets.ascend.writing import Writing
from sanderling.workshop.targets.base import Exported, ExportRequest, Refusal, Tool

_NAME = "ascend"
_ROUNDING = ("QuantizeLinear", "DequantizeLinear")
_KIRIN_OPSETS = (7, 18)


class Ascend:
    """Writes what `atc` needs, and runs it where it is on PATH."""

    name = _NAME
    summary = "Huawei's Ascend and Kirin chips: model, AIPP and the command line for atc or omg, run where they are"
    devices = (
        "Ascend310P3",
        "Ascend310P1",
        "Ascend310P5",
        "Ascend310P7",
        "Ascend310",
        "Ascend310B1",
        "Ascend910A",
        "Ascend910B",
        "Ascend910B1",
        "Ascend910B2",
        "Ascend910B3",
        "Ascend910B4",
        "Ascend910_9391",
        KIRIN,
    )
    options = OPTIONS

    def tools(self) -> Sequence[Tool]:
        """`atc` and `omg`, without which the folder is complete as well."""
        found = {name: atc.find_program(name) for name in atc.HINTS}
        return tuple(
            Tool(
                name,
                found=path is not None,
                hint=path or f"not on PATH: {atc.HINTS[name]}, or run convert.sh elsewhere",
            )
            for name, path in found.items()
        )

    def variants(self, package: Package, wanted: str | None) -> tuple[str, ...]:
        """The variant that was asked for, or the chosen one; for FP16 the FP32 graph, which `atc` itself lowers."""
        variant = package.variant(wanted)
        if variant.precision != Precision.FP16:
            return (variant.id,)
        return tuple(each.id for each in package.manifest.variants if each.precision == Precision.FP32)[:1]

    def check(self, model: onnx.ModelProto, device: str) -> tuple[Refusal, ...]:
        """What the tools have no parser for, and tensors that are no numbers."""
        return (*_tensors(model), *(_for_kirin(model) if device == KIRIN else _operators(model)))

    def export(self, request: ExportRequest) -> Exported:
        """Write the model and its settings, prove them, and let `atc` convert them where it is."""
        (variant,) = self.variants(request.package, request.variant)
        return Writing(
            request, request.package.variant(variant), read_settings(request.options, request.device)
        ).written()


def _tensors(model: onnx.ModelProto) -> Iterator[Refusal]:
    """Inputs and outputs that hold text."""
    for kind, specs in (("input", input_specs(model)), ("output", output_specs(model))):
        for spec in specs:
            if spec.dtype == "str":
                yield Refusal(kind, (spec.name,), "it holds text, and an Ascend model numbers", "cut the graph there")


def _operators(model: onnx.ModelProto) -> list[Refusal]:
    """Operators without a parser; those that the export rewrites exactly are marked so."""
    named = unregistered(_NAME, model)
    if not named:
        return []
    try:
        written = lower(model, _NAME)
        written = to_deploy(written) if is_quantized(written) else written
    except ModelError as error:
        return [Refusal(entry.operator, entry.nodes, f"{entry.reason}; {error}") for entry in named]
    left = {entry.operator: entry for entry in unregistered(_NAME, written)}
    brought = [entry for operator, entry in left.items() if operator not in {each.operator for each in named}]
    kept = {node.op_type for node in written.graph.node}
    return [_refusal(entry, left, kept) for entry in (*named, *brought)]


def _for_kirin(model: onnx.ModelProto) -> Iterator[Refusal]:
    """What `omg` is documented not to take: opsets other than 7 to 18, foreign domains, and our INT8."""
    rounding = tuple(node.name for node in all_nodes(model.graph) if node.op_type in _ROUNDING)
    if rounding:
        told = "omg computes in INT8 what its own dopt has quantised"
        yield Refusal("QuantizeLinear", rounding, told, "export the FP32 variant with --variant fp32")
    for node in all_nodes(model.graph):
        if node.domain not in ("", "ai.onnx"):
            yield Refusal(f"{node.domain}.{node.op_type}", (node.name,), "its domain is not ONNX's own")
    opset = opset_of(model)
    if not _KIRIN_OPSETS[0] <= opset <= _KIRIN_OPSETS[1]:
        try:
            lower(model, _NAME)
        except ModelError as error:
            yield Refusal("graph", (model.graph.name,), f"opset {opset}: {error}", "export it with opset 18")
        else:
            told = "declared in opset 18, where it means the same"
            yield Refusal("graph", (model.graph.name,), f"opset {opset} is newer than 18", told, automatic=True)


def _refusal(entry: Unregistered, left: Mapping[str, Unregistered], kept: Collection[str]) -> Refusal:
    if entry.operator in left:
        return Refusal(entry.operator, left[entry.operator].nodes, f"{entry.reason} (atc E16002)")
    rewrite = "written with simpler operators"
    if entry.operator in _ROUNDING:
        rewrite = "becomes AscendQuant, AscendDequant and AscendAntiQuant"
    elif entry.operator in kept:
        rewrite = "declared in opset 18, where it means the same"
    return Refusal(entry.operator, entry.nodes, entry.reason, rewrite, automatic=True)


TARGET = Ascend()
