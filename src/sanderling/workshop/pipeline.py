"""The build: from a source to a package, every step checked and kept as evidence."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sanderling.core.errors import OptionError, UnavailableError
from sanderling.core.files import replacing
from sanderling.core.machine import describe_machine, usable_cores
from sanderling.core.precision import Precision
from sanderling.core.progress import Progress, Recorder, Silent
from sanderling.measure.accuracy import within_budget
from sanderling.model.manifest import Budget, Golden, Manifest, Variant
from sanderling.model.package import EVIDENCE, REPORT, file_entries, is_package, write_manifest, write_zip
from sanderling.run.engines import DEFAULT_ENGINE
from sanderling.run.engines.base import Optimization
from sanderling.workshop import preparation, proof
from sanderling.workshop.evidence import Evidence, VariantEvidence
from sanderling.workshop.optimizer import safe_levels
from sanderling.workshop.options import BuildOptions
from sanderling.workshop.preparation import Workpiece, WrittenVariant
from sanderling.workshop.report.render import render_report


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
            "evaluation_data": self.evidence.evaluation_data,
            "events": [event.model_dump() for event in self.evidence.events],
        }


def build(options: BuildOptions, progress: Progress | None = None) -> BuildResult:
    """Build a package.

    Raises:
        InputError: source, options or data cannot be used; nothing is written.
        UnavailableError: an extra is missing.
        OutputError: the package could not be written; nothing is kept.
    """
    _check_output(options.output)
    _check_tools()
    recorder = Recorder(progress or Silent())
    with replacing(options.output) as target:
        zipped = options.output.suffix == ".zip"
        folder = target.with_name("package") if zipped else target
        folder.mkdir()
        piece = preparation.make(folder, options, recorder)
        result = _package(folder, piece, options, recorder)
        if zipped:
            write_zip(folder, target)
    return result


def _check_output(output: Path) -> None:
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


def _package(folder: Path, piece: Workpiece, options: BuildOptions, recorder: Recorder) -> BuildResult:
    files = {str(variant.precision): variant.path for variant in piece.variants}
    golden = proof.golden_vectors(folder, files, piece.material)
    levels = safe_levels(folder, files, golden, recorder)
    measured = proof.measure(files, levels, piece.material, options, recorder)
    budget = options.budget or proof.default_budget(measured["fp32"].accuracy)
    variants = tuple(
        _variant(written, measured[written.precision], levels[written.precision], budget) for written in piece.variants
    )
    chosen, why = proof.choose(variants, budget)
    recorder.stop()
    evidence = _evidence(piece, measured, why, options, recorder)
    (folder / EVIDENCE).write_text(evidence.model_dump_json(indent=1) + "\n", encoding="utf-8")
    manifest = _manifest(piece, variants, chosen, budget, golden, options)
    (folder / REPORT).write_text(render_report(manifest, evidence), encoding="utf-8")
    manifest = manifest.model_copy(update={"files": file_entries(folder)})
    write_manifest(folder, manifest)
    return BuildResult(options.output, manifest, evidence)


def _variant(written: WrittenVariant, measured: VariantEvidence, level: Optimization, budget: Budget) -> Variant:
    return Variant(
        id=written.precision,
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
        labels=piece.material.labels,
        variants=variants,
        chosen=chosen,
        budget=budget,
        golden=golden,
        files={},
    )


def _evidence(
    piece: Workpiece, measured: dict[str, VariantEvidence], why: str, options: BuildOptions, recorder: Recorder
) -> Evidence:
    return Evidence(
        machine=describe_machine(),
        options=_plain_options(options),
        export=piece.export_check,
        cost_before=piece.cost_before,
        cost_after=piece.cost_after,
        passes=piece.passes,
        quantization=next((variant.quantization for variant in piece.variants if variant.quantization), None),
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
    if options.preprocess and not options.preprocess.lstrip().startswith("{"):
        plain["preprocess"] = Path(options.preprocess).name
    plain["inputs"] = [str(spec) for spec in options.inputs]
    plain["budget"] = f"{options.budget.metric}={options.budget.limit:g}" if options.budget else None
    return plain
