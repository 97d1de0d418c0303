"""From the options to variants on disk: export, shapes, data, simplification, precisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from sanderling.core.precision import Precision
from sanderling.core.progress import Progress
from sanderling.core.tensor import Feeds, TensorSpec, random_feeds
from sanderling.model.cost import graph_cost
from sanderling.model.graph import all_nodes, element_count, input_specs, output_specs, write_graph
from sanderling.model.manifest import Source
from sanderling.workshop.detection import settled
from sanderling.workshop.evidence import Cost, ExportEvidence, Finetuning
from sanderling.workshop.export.source import Exported, export
from sanderling.workshop.material import Material, gather
from sanderling.workshop.optimize.names import name_nodes
from sanderling.workshop.optimize.opset import raise_opset_passes
from sanderling.workshop.optimize.passes import PASSES
from sanderling.workshop.optimize.shapes import apply_shapes, has_dynamic_batch, prove_rows_independent
from sanderling.workshop.optimize.simplify import PassRecord, simplify
from sanderling.workshop.options import BuildOptions
from sanderling.workshop.quantize.recipe import Quantized
from sanderling.workshop.quantized_source import divided, int8_as_it_is
from sanderling.workshop.variants import Made, make_variants

Export = Callable[[BuildOptions, Progress], Exported]


@dataclass(frozen=True)
class WrittenVariant:
    """A variant's files, and which of its heavy nodes compute in float."""

    id: str
    precision: Precision
    path: Path
    external_data: str | None
    float_nodes: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the file and of its external data."""
        files = [self.path, *([self.path.with_name(self.external_data)] if self.external_data else [])]
        return sum(file.stat().st_size for file in files)


@dataclass(frozen=True)
class Workpiece:
    """Everything that the workshop leaves behind.

    Attributes:
        quantized: how INT8 was made, held for the search for mixed precision; None without INT8.
    """

    source: Source
    export_check: ExportEvidence | None
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    cost_before: Cost
    cost_after: Cost
    passes: tuple[PassRecord, ...]
    material: Material
    variants: tuple[WrittenVariant, ...]
    quantized: Quantized | None
    finetuning: Finetuning | None = None


def make(folder: Path, options: BuildOptions, progress: Progress, make_graph: Export = export) -> Workpiece:
    """Export, simplify and convert, and write each variant into ``folder``.

    Raises:
        InputError: source, options or data cannot be used.
        UnavailableError: an extra is missing.
    """
    exported = make_graph(options, progress)
    model, quantized = divided(exported, options, progress)
    model = _shaped(model, exported, options)
    inputs, outputs = input_specs(model), output_specs(model)
    material = exported.material or gather(options, inputs, outputs, progress)
    if material.reader is not None:
        reader = settled(material.reader, options.detection, model, material.evaluation, progress)
        material = replace(material, reader=reader)
    cost_before = _cost(model)
    passes = (*raise_opset_passes(model), *PASSES)
    probes = _probes(inputs, material, options)
    simplified, records = simplify(model, probes, progress, passes=passes)
    name_nodes(simplified)
    made: Iterable[Made] = (
        make_variants(simplified, material.calibration, options, progress)
        if quantized is None
        else int8_as_it_is(simplified, _shaped(quantized, exported, options), probes, progress)
    )
    variants, how = _written(folder, made)
    return Workpiece(
        source=exported.source,
        export_check=exported.check,
        inputs=inputs,
        outputs=output_specs(simplified),
        cost_before=cost_before,
        cost_after=_cost(simplified),
        passes=tuple(records),
        material=material,
        variants=variants,
        quantized=how,
        finetuning=exported.finetuning,
    )


def _shaped(model: onnx.ModelProto, exported: Exported, options: BuildOptions) -> onnx.ModelProto:
    """The graph with the shapes that were asked for, and the proof that a dynamic batch works."""
    if exported.source.format == "onnx":
        own = {spec.name: spec.dtype for spec in input_specs(model)}
        asked = [
            spec if spec.dtype_given else spec.model_copy(update={"dtype": own.get(spec.name, spec.dtype)})
            for spec in options.inputs
        ]
    else:
        asked = []
    apply_shapes(model, asked, dynamic_batch=options.dynamic_batch)
    if has_dynamic_batch(input_specs(model)):
        prove_rows_independent(model, seed=options.seed)
    return model


def _probes(inputs: tuple[TensorSpec, ...], material: Material, options: BuildOptions) -> list[Feeds]:
    """Inputs to compare passes on: random ones, in two batch sizes if the batch is dynamic, and a real one."""
    batches = (1, 3) if has_dynamic_batch(inputs) else (1,)
    probes: list[Feeds] = [random_feeds(inputs, batch=batch, seed=options.seed) for batch in batches]
    return [*probes, material.evaluation.one(0)]


def write_variant(
    folder: Path, identifier: str, precision: Precision, model: onnx.ModelProto, float_nodes: tuple[str, ...]
) -> WrittenVariant:
    """Write a variant's graph into the package's folder."""
    path = folder / f"model.{identifier}.onnx"
    return WrittenVariant(identifier, precision, path, write_graph(model, path), float_nodes)


def _written(folder: Path, variants: Iterable[Made]) -> tuple[tuple[WrittenVariant, ...], Quantized | None]:
    """Write each variant as soon as it is made: several copies of the weights would set the build's peak memory."""
    written = []
    quantized = None
    for made in variants:
        written.append(write_variant(folder, str(made.precision), made.precision, made.model, made.float_nodes))
        quantized = made.quantized or quantized
    return tuple(written), quantized


def _cost(model: onnx.ModelProto) -> Cost:
    cost = graph_cost(model)
    return Cost(
        operators=dict(Counter(node.op_type for node in all_nodes(model.graph)).most_common()),
        parameters=sum(element_count(tensor) for tensor in model.graph.initializer),
        macs=cost.macs,
        weight_bytes=sum(node.weight_bytes for node in cost.nodes),
        activation_bytes=sum(node.output_bytes for node in cost.nodes),
        peak_activation_bytes=cost.peak_activation_bytes,
    )
