"""The build: from a source to a package, every step checked and kept as evidence."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sanderling.core.errors import OptionError, UnavailableError
from sanderling.core.files import replacing
from sanderling.core.machine import describe_machine, usable_cores
from sanderling.core.precision import Precision
from sanderling.core.progress import Event, Progress, Recorder, Silent
from sanderling.core.statistics import samples_needed
from sanderling.measure.accuracy import within_budget
from sanderling.model.graph import read_graph
from sanderling.model.manifest import Budget, Golden, Manifest, RowCost, Variant
from sanderling.model.package import EVIDENCE, REPORT, file_entries, is_package, write_manifest, write_zip
from sanderling.run.engines import DEFAULT_ENGINE
from sanderling.run.engines.base import Optimization
from sanderling.workshop import preparation, proof
from sanderling.workshop.embedding import add_tokenizer, check_task
from sanderling.workshop.evidence import Evidence, Quantization, Search, SearchPoint, VariantEvidence
from sanderling.workshop.export.source import export
from sanderling.workshop.front import kept_point, known_blocks
from sanderling.workshop.material import Material
from sanderling.workshop.mixed import mix
from sanderling.workshop.optimizer import safe_levels
from sanderling.workshop.options import BuildOptions
from sanderling.workshop.preparation import Export, Workpiece, WrittenVariant, write_variant
from sanderling.workshop.quantize.layers import layer_errors
from sanderling.workshop.report.render import render_report
from sanderling.workshop.search import CONFIDENCE
from sanderling.workshop.variants import float_nodes


@dataclass(frozen=True)
class BuildResult:
    """What a build made: the package's path, its manifest and the evidence."""

    path: Path
    manifest: Manifest
    evidence: Evidence

    @property
    def budget_missed(self) -> bool:
        """Whether reduced precisions were made and every one of them misses the budget."""
        reduced = [variant for variant in self.manifest.variants if variant.precision != Precision.FP32]
        return bool(reduced) and not any(variant.within_budget for variant in reduced)

    def summary(self) -> dict[str, Any]:
        """What ``sanderling build --json`` prints."""
        manifest = self.manifest.model_dump(mode="json", include={"name", "variants", "chosen", "budget"})
        return {
            "package": str(self.path),
            **manifest,
            "reason": self.evidence.choice,
            **self._search(),
            "evaluation_data": self.evidence.evaluation_data,
            **({"finetuning": self.evidence.finetuning.model_dump()} if self.evidence.finetuning else {}),
            "events": [event.model_dump() for event in self.evidence.events],
        }

    def _search(self) -> dict[str, Any]:
        quantization = self.evidence.quantization
        return {"search": quantization.search.summary()} if quantization and quantization.search else {}


def build(options: BuildOptions, progress: Progress | None = None, make_graph: Export = export) -> BuildResult:
    """Build a package.

    Args:
        options: what to build.
        progress: told about stages, steps and events.
        make_graph: brings the source to an ONNX graph.

    Raises:
        InputError: source, options or data cannot be used; nothing is written.
        UnavailableError: an extra is missing.
        OutputError: the package could not be written; nothing is kept.
    """
    check_output(options.output)
    _check_tools()
    check_task(options.task, options.tokenizer)
    point = kept_point(options.mixed_from, options.layers_float)
    recorder = Recorder(progress or Silent())
    with replacing(options.output) as target:
        zipped = options.output.suffix == ".zip"
        folder = target.with_name("package") if zipped else target
        folder.mkdir()
        piece = preparation.make(folder, options, recorder, make_graph)
        result = _package(folder, piece, point, options, recorder)
        if zipped:
            write_zip(folder, target)
    return result


def check_output(output: Path) -> None:
    """Refuse a name that is no package's, or that something else has, before long work.

    Raises:
        OptionError: the name, or what is there.
    """
    name = output.name.removesuffix(".zip").removesuffix(".sdl")
    if not output.name.endswith((".sdl", ".sdl.zip")) or not name:
        raise OptionError(f"output '{output}' has the wrong name: expected NAME.sdl (a folder) or NAME.sdl.zip")
    if output.exists() and not is_package(output):
        raise OptionError(f"output '{output}' exists and is no package: choose another name, or remove it yourself")
    if output.is_file() != (output.suffix == ".zip") and output.exists():
        raise OptionError(
            f"output '{output}' exists as another kind of package: choose another name, or remove it yourself"
        )


def _check_tools() -> None:
    missing = [name for name in ("onnxslim", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise UnavailableError(f"a build needs {' and '.join(missing)}: pip install 'sanderling[build]'")


def _package(
    folder: Path, piece: Workpiece, point: SearchPoint | None, options: BuildOptions, recorder: Recorder
) -> BuildResult:
    written = list(piece.variants)
    golden = proof.golden_vectors(folder, written, piece.material)
    levels = safe_levels(folder, _files(written), golden, recorder)
    judged = proof.measure_accuracy(_files(written), levels, piece.material, options, recorder)
    budget = options.budget or proof.default_budget(judged["fp32"].accuracy)
    search = None
    if piece.quantized is not None and (point or not within_budget(judged["int8"].accuracy, budget)):
        search, mixed = _mixed(folder, piece, point, budget, options, recorder)
        if mixed is not None:
            written.append(mixed)
            golden = proof.golden_vectors(folder, written, piece.material)
            levels |= safe_levels(folder, _files([mixed]), golden, recorder)
            pair = _files([written[0], mixed])
            judged["mixed"] = proof.measure_accuracy(pair, levels, piece.material, options, recorder)["mixed"]
    timings, memory = proof.measure_performance(_files(written), levels, piece.material, options, recorder)
    measured = {
        variant.id: VariantEvidence(
            accuracy=judged[variant.id].accuracy,
            latency=timings[variant.id],
            memory_bytes=memory[variant.id],
            confusion=judged[variant.id].confusion,
        )
        for variant in written
    }
    variants = tuple(_variant(variant, measured[variant.id], levels[variant.id], budget) for variant in written)
    chosen, why = proof.choose(variants, budget)
    quantization = _quantization(piece, search)
    recorder.stop()
    evidence = _evidence(piece, measured, quantization, why, options, recorder)
    (folder / EVIDENCE).write_text(evidence.model_dump_json(indent=1) + "\n", encoding="utf-8")
    manifest = _manifest(piece, variants, chosen, budget, golden, options)
    if options.tokenizer is not None:
        spec = add_tokenizer(folder, written[0].path, piece.inputs, piece.outputs, options.tokenizer)
        manifest = manifest.model_copy(update={"embedding": spec})
    (folder / REPORT).write_text(render_report(manifest, evidence), encoding="utf-8")
    manifest = manifest.model_copy(update={"files": file_entries(folder)})
    write_manifest(folder, manifest)
    return BuildResult(options.output, manifest, evidence)


def _files(variants: Sequence[WrittenVariant]) -> dict[str, Path]:
    return {variant.id: variant.path for variant in variants}


def _mixed(
    folder: Path,
    piece: Workpiece,
    point: SearchPoint | None,
    budget: Budget,
    options: BuildOptions,
    recorder: Recorder,
) -> tuple[Search | None, WrittenVariant | None]:
    """Write mixed precision as a variant: as it is asked for, or as a search finds it."""
    assert piece.quantized is not None
    if point is not None:
        graph = piece.quantized.with_float(known_blocks(point, piece.quantized))
        return None, write_variant(folder, "mixed", Precision.INT8, graph, float_nodes(graph))
    if _budget_is_out_of_reach(piece.material, budget, recorder):
        return None, None
    found = mix(read_graph(piece.variants[0].path), piece.quantized, piece.material, budget, options, recorder)
    if found is None or found.graph is None:
        return (found.search if found else None), None
    return found.search, write_variant(folder, "mixed", Precision.INT8, found.graph, float_nodes(found.graph))


def _budget_is_out_of_reach(material: Material, budget: Budget, recorder: Recorder) -> bool:
    """Tell when so few samples are there that no form could be shown to keep the budget, however good."""
    if budget.metric not in ("top1", "agreement"):
        return False
    needed = samples_needed(budget.limit / 100, confidence=CONFIDENCE) if budget.limit > 0 else None
    if needed is not None and needed <= len(material.evaluation):
        return False
    how_many = f"at least {needed} are needed" if needed else "no number is enough: give a budget above 0"
    reason = (
        f"{len(material.evaluation)} evaluation samples cannot show that {budget.metric}={budget.limit:g} holds, even "
        f"if nothing is lost: {how_many}"
    )
    recorder.event(Event(kind="too-few-evaluation-samples", subject="mixed", reason=reason))
    return True


def _quantization(piece: Workpiece, search: Search | None) -> Quantization | None:
    made, calibration = piece.quantized, piece.material.calibration
    if made is None or calibration is None:
        return None
    layers = layer_errors(made.model, made.graph, made.scheme, made.histograms, calibration)
    return Quantization(samples=len(calibration), candidates=made.candidates, layers=tuple(layers), search=search)


def _variant(written: WrittenVariant, measured: VariantEvidence, level: Optimization, budget: Budget) -> Variant:
    return Variant(
        id=written.id,
        precision=written.precision,
        file=written.path.name,
        external_data=written.external_data,
        size_bytes=written.size_bytes,
        engines=(DEFAULT_ENGINE,),
        latency_ms=measured.latency.latency(),
        memory_bytes=measured.memory_bytes,
        accuracy=measured.accuracy,
        within_budget=written.precision == Precision.FP32 or within_budget(measured.accuracy, budget),
        float_nodes=written.float_nodes,
        optimization=level.value,
    )


def _manifest(
    piece: Workpiece,
    variants: tuple[Variant, ...],
    chosen: str,
    budget: Budget,
    golden: Golden,
    options: BuildOptions,
) -> Manifest:
    return Manifest(
        name=options.output.name.split(".sdl")[0],
        source=piece.source,
        inputs=piece.inputs,
        outputs=piece.outputs,
        preprocessing=piece.material.preprocessing,
        sound=piece.material.sound,
        labels=piece.material.labels,
        detection=piece.material.reader.spec if piece.material.reader is not None else None,
        variants=variants,
        chosen=chosen,
        budget=budget,
        golden=golden,
        row_cost=RowCost.model_validate(piece.cost_after.model_dump(include=set(RowCost.model_fields))),
        files={},
    )


def _evidence(
    piece: Workpiece,
    measured: dict[str, VariantEvidence],
    quantization: Quantization | None,
    why: str,
    options: BuildOptions,
    recorder: Recorder,
) -> Evidence:
    return Evidence(
        machine=describe_machine(),
        options=_plain_options(options),
        export=piece.export_check,
        cost_before=piece.cost_before,
        cost_after=piece.cost_after,
        passes=piece.passes,
        quantization=quantization,
        finetuning=piece.finetuning,
        evaluation_data=piece.material.evaluation_origin,
        threads=options.threads or usable_cores(),
        variants=measured,
        choice=why,
        stage_seconds=recorder.seconds,
        events=tuple(recorder.events),
    )


def _plain_options(options: BuildOptions) -> dict[str, Any]:
    """Options as plain values; files and folders by their names only, so that no evidence names a user's disk."""
    plain = asdict(options)
    for key, value in plain.items():
        if isinstance(value, Path):
            plain[key] = value.name
    plain["source"] = Path(options.source).name
    plain["labels"] = Path(options.labels).name if options.labels else None
    for key, text in (("preprocess", options.preprocess), ("detection", options.detection)):
        if text and not text.lstrip().startswith("{"):
            plain[key] = Path(text).name
    plain["inputs"] = [str(spec) for spec in options.inputs]
    plain["budget"] = f"{options.budget.metric}={options.budget.limit:g}" if options.budget else None
    return plain
