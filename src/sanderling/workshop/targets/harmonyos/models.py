"""The model part of the target `harmonyos`: a package's variants as ``.ms``, run in MindSpore Lite's real runtime."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sanderling.core.errors import ModelError, OptionError, SanderlingError
from sanderling.core.precision import Precision
from sanderling.core.progress import Event, Progress
from sanderling.measure.golden import wrong_outputs
from sanderling.model.graph import read_graph
from sanderling.model.manifest import Variant
from sanderling.model.package import Package
from sanderling.run.mindspore_lite import library
from sanderling.workshop.targets.base import Proof
from sanderling.workshop.targets.ms.converter import Converter, find_converter, require_tflite_writer
from sanderling.workshop.targets.ms.quantization import kept_weights, own_activations, own_weights
from sanderling.workshop.targets.ms.reader import Description, MsModel, describe, read
from sanderling.workshop.targets.ms.running import opened
from sanderling.workshop.targets.ms.writing import Shapes, write_float, write_int8
from sanderling.workshop.targets.proving import golden_proof

PRECISIONS = (Precision.FP32, Precision.FP16, Precision.INT8)
_MOST_ROWS = 64
_READER = "Sanderling's reader of .ms"


@dataclass(frozen=True)
class ModelFile:
    """One ``.ms``.

    Attributes:
        variant: id in the package.
        file: its name.
        batch: rows that it was converted for; 1 where no axis counts rows.
        resizable: whether the runtime was seen to compute the same after a resize to more rows.
        channels_last: inputs that it takes with their channels last; none, as all keep the package's order.
        description: what it holds.
    """

    variant: str
    precision: Precision
    file: str
    batch: int
    resizable: bool
    channels_last: tuple[str, ...]
    size_bytes: int
    description: Description

    def to_json(self) -> dict[str, Any]:
        """What records say of it, as plain values."""
        told = self.description
        return {
            "variant": self.variant,
            "precision": str(self.precision),
            "file": self.file,
            "format": "ms",
            "batch": self.batch,
            "resizable": self.resizable,
            "channelsLast": list(self.channels_last),
            "sizeBytes": self.size_bytes,
            "inputs": [{"name": one.name, "dtype": one.dtype, "shape": list(one.shape)} for one in told.inputs],
            "outputs": [{"name": one.name, "dtype": one.dtype, "shape": list(one.shape)} for one in told.outputs],
            "operators": told.operators,
            "weightBytes": told.weight_bytes,
            "quantizedShare": round(told.quantized_share, 4),
        }


@dataclass(frozen=True)
class ExportedModels:
    """What was written, and what is known of it.

    Attributes:
        files: name to what it is.
        tool: the converter that was used.
        remaining: what only a device, or a runtime that is not here, can show.
    """

    models: tuple[ModelFile, ...]
    files: dict[str, str]
    proofs: tuple[Proof, ...]
    tool: str
    remaining: tuple[str, ...]


def exportable_variants(package: Package, wanted: str | None) -> tuple[str, ...]:
    """Ids of the variants that ``.ms`` has a form for; only ``wanted`` where it is named.

    Raises:
        OptionError: the package has no such variant, or it keeps its weights in a form that the runtime refuses.
    """
    taken = tuple(variant.id for variant in package.manifest.variants if variant.precision in PRECISIONS)
    if wanted is None:
        return taken
    if package.variant(wanted).id not in taken:
        raise OptionError(
            f"variant '{wanted}' is {package.variant(wanted).precision}, which MindSpore Lite's runtime does not load: "
            f"available are {', '.join(taken)}"
        )
    return (wanted,)


def read_batches(text: str) -> tuple[int, ...]:
    """Read ``1,4``: numbers of rows, one file for each.

    Raises:
        OptionError: something else, a number twice, or one outside 1 to 64.
    """
    parts = [part.strip() for part in text.split(",")]
    numbers = tuple(int(part) for part in parts if part.isdecimal() and part.isascii())
    fits = len(numbers) == len(parts) == len(set(numbers)) and all(1 <= number <= _MOST_ROWS for number in numbers)
    if not fits:
        raise OptionError(f"batch '{text}' has the wrong form: expected different numbers from 1 to {_MOST_ROWS}: 1,4")
    return numbers


def export_models(
    package: Package,
    folder: Path,
    *,
    progress: Progress,
    variants: Sequence[str] | None = None,
    batches: Sequence[int] = (),
) -> ExportedModels:
    """Write the package's variants as ``.ms`` into a folder, and run the golden vectors on each.

    Args:
        package: opened.
        folder: exists.
        progress: told about each file.
        variants: ids; all that have a form by default.
        batches: numbers of rows, a file for each; that of the golden vectors by default.

    Raises:
        OptionError: a variant has no form, or the package's number of rows is fixed and another one is wanted.
        UnavailableError: no converter is here, or what INT8 needs is not.
        ModelError: an operator has no form; the message names it.
        EngineError: the converter or the runtime crashed or took too long.
    """
    chosen = [package.variant(name) for name in variants or exportable_variants(package, None)]
    for variant in chosen:
        exportable_variants(package, variant.id)
    converter = find_converter()
    if any(variant.precision is Precision.INT8 for variant in chosen):
        require_tflite_writer()
    rows = _rows(package, batches)
    models, proofs = [], []
    progress.stage("write and run .ms", len(chosen) * len(rows))
    for variant in chosen:
        for count in rows:
            model, proved = _Export(package, folder, converter, progress).write(variant, count, first=count == rows[0])
            models.append(model)
            proofs += proved
            progress.advance()
    return ExportedModels(
        tuple(models),
        {model.file: _what(model) for model in models},
        tuple(proofs),
        converter.label,
        _remaining(library.state().usable),
    )


def _rows(package: Package, batches: Sequence[int]) -> tuple[int, ...]:
    """Numbers of rows; one where no axis counts them."""
    own = _golden_rows(package)
    dynamic = any(spec.dynamic_axes[:1] == (0,) for spec in package.manifest.inputs)
    if not dynamic and set(batches) - {own}:
        raise OptionError(
            f"batch {', '.join(map(str, batches))}: package '{package.manifest.name}' has {own} rows, which are fixed; "
            "build it with a dynamic first axis"
        )
    return tuple(batches) or (own,)


def _golden_rows(package: Package) -> int:
    """Rows of one golden call."""
    shapes = [array.shape[1:] for array in package.golden().inputs.values()]
    return next((shape[0] for shape in shapes if shape), 1)


@dataclass(frozen=True)
class _Export:
    package: Package
    folder: Path
    converter: Converter
    progress: Progress

    def write(self, variant: Variant, rows: int, *, first: bool) -> tuple[ModelFile, list[Proof]]:
        """Write one file, read it back, and run it."""
        file = self.folder / (f"{variant.id}.ms" if first else f"{variant.id}.b{rows}.ms")
        try:
            self._convert(variant, file, rows)
        except ModelError as error:
            raise ModelError(f"variant '{variant.id}': {error}") from error
        model = read(file)
        proofs = list(self._read_back(variant, file, model))
        resizable = False
        if library.state().usable:
            proofs.append(self._run(variant, file, rows))
            resizable = self._resizes(variant, file, rows)
        size = file.stat().st_size
        return ModelFile(variant.id, variant.precision, file.name, rows, resizable, (), size, describe(model)), proofs

    def _convert(self, variant: Variant, file: Path, rows: int) -> None:
        shapes = self._shapes(rows)
        if variant.precision is Precision.INT8:
            write_int8(read_graph(self.package.file(variant.file)), file, shapes, self.converter)
            return
        half = variant.precision is Precision.FP16
        source = self._float32() if half else variant
        write_float(read_graph(self.package.file(source.file)), file, shapes, self.converter, half=half)

    def _float32(self) -> Variant:
        return next(variant for variant in self.package.manifest.variants if variant.precision is Precision.FP32)

    def _shapes(self, rows: int) -> Shapes:
        """Of the inputs: as the golden vectors have them, with other rows where they are dynamic."""
        golden = self.package.golden()
        return {
            spec.name: tuple(
                rows if axis == 0 and isinstance(spec.shape[0], str) else size
                for axis, size in enumerate(golden.inputs[spec.name].shape[1:])
            )
            for spec in self.package.manifest.inputs
        }

    def _read_back(self, variant: Variant, file: Path, model: MsModel) -> Iterator[Proof]:
        wanted = {spec.name for spec in self.package.manifest.outputs}
        known = {spec.name for spec in self.package.manifest.inputs}
        fits = {one.name for one in model.outputs} == wanted and {one.name for one in model.inputs} <= known
        yield Proof(f"{file.name}: inputs and outputs are the package's", _READER, None, None, passed=fits)
        if variant.precision is Precision.INT8:
            graph = read_graph(self.package.file(variant.file))
            for what, share in (
                ("eight-bit weights that are the variant's, by codes and scales", own_weights(graph, model)),
                ("eight-bit activations whose scale and zero point are the variant's", own_activations(graph, model)),
            ):
                yield Proof(f"{file.name}: share of its {what}", _READER, share, 1.0, passed=share >= 1.0)
            kept = f"{file.name}: share of the variant's eight-bit weights that stay in eight bits"
            yield Proof(kept, _READER, kept_weights(graph, model), None, passed=True)

    def _run(self, variant: Variant, file: Path, rows: int) -> Proof:
        on = f"MindSpore Lite {library.VERSION} on {platform.machine()}"
        with opened(file, self.package.manifest.outputs, blocks=self._blocks(rows)) as runtime:
            proof = golden_proof(runtime, self.package, variant.id, on=on)
        return Proof(f"{file.name}: {proof.what}", proof.on, proof.value, proof.limit, passed=proof.passed)

    def _resizes(self, variant: Variant, file: Path, rows: int) -> bool:
        """Whether the file computes the same for one more block of rows."""
        if not any(spec.dynamic_axes[:1] == (0,) for spec in self.package.manifest.inputs):
            return False
        golden, tolerance = self.package.golden(), self.package.manifest.golden.tolerance[variant.id]
        try:
            with opened(file, self.package.manifest.outputs, blocks=self._blocks(rows) + 1) as runtime:
                wrong = wrong_outputs(runtime, golden, variant.id, tolerance)
        except SanderlingError as error:
            wrong = str(error)
        if wrong is not None:
            self.progress.event(Event(kind="not-resizable", subject=file.name, reason=wrong))
        return wrong is None

    def _blocks(self, rows: int) -> int:
        own = _golden_rows(self.package)
        if rows % own:
            raise OptionError(f"batch {rows}: the golden vectors have {own} rows, of which it must be a multiple")
        return rows // own


def _what(model: ModelFile) -> str:
    kinds = {Precision.FP32: "float32", Precision.FP16: "weights in float16", Precision.INT8: "INT8"}
    rows = f", {model.batch} rows" if model.batch > 1 else ""
    return f"variant '{model.variant}' for MindSpore Lite, {kinds[model.precision]}{rows}"


def _remaining(executed: bool) -> tuple[str, ...]:
    device = (
        "that the device's own MindSpore Lite loads each .ms, on the processor and by Neural Network Runtime",
        "latency, memory and which operators its accelerator takes",
    )
    if executed:
        return device
    return (
        "the outputs: no runtime of MindSpore Lite is here to run a .ms (sanderling devices --install mindspore)",
        *device,
    )
