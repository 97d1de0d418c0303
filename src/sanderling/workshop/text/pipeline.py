"""The build of a language model: from a source to a package, every step measured and kept as evidence."""

from __future__ import annotations

import importlib.util
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sanderling.core.errors import ModelError, UnavailableError
from sanderling.core.files import folder_size_bytes, replacing
from sanderling.core.machine import describe_machine, usable_cores
from sanderling.core.progress import Progress, Recorder, Silent
from sanderling.core.statistics import relative_error
from sanderling.core.tensor import TensorSpec
from sanderling.measure.accuracy import within_budget
from sanderling.measure.perplexity import Change
from sanderling.measure.text import memory_of_folder, time_models
from sanderling.measure.text_golden import golden_outputs, prompt_ids
from sanderling.model.manifest import Golden, Manifest, Source, Variant
from sanderling.model.package import EVIDENCE, REPORT, GoldenVectors, file_entries, write_manifest, write_zip
from sanderling.model.text import TextSpec
from sanderling.run.text.base import TextModel
from sanderling.run.text.engines import DEFAULT_TEXT_ENGINE, text_engine
from sanderling.workshop.pipeline import check_output
from sanderling.workshop.text.conversion import REFERENCE, convert
from sanderling.workshop.text.decoder import DATA, GRAPH, SCORING, Decoder, unpruned
from sanderling.workshop.text.evidence import Proof, TextEvidence, TextSearch, TextVariantEvidence
from sanderling.workshop.text.foreign import (
    ENGINES,
    FILES,
    check_foreign,
    engines_of,
    foreign_precision,
    write_foreign,
)
from sanderling.workshop.text.mixer import Mixer
from sanderling.workshop.text.options import TASK, TextBuildOptions, precision_of
from sanderling.workshop.text.quality import Quality, Texts
from sanderling.workshop.text.report import render_text_report
from sanderling.workshop.text.search import forms_of, search
from sanderling.workshop.text.sensitivity import local_errors
from sanderling.workshop.text.source import TextSource, find_source
from sanderling.workshop.text.storage import Form

_PROOF_TOLERANCE = 1e-3
_TOLERANCES = {
    "fp32": 1e-3,
    "fp16": 1e-3,
    "int8": 5e-2,
    "int8-blocks": 5e-2,
    "int8-residual": 5e-2,
    "int4": 5e-2,
    "gguf": 5e-2,
    "openvino": 5e-2,
}
_FORMS = {"int8": Form.DYNAMIC, "int8-blocks": Form.BLOCKS_8, "int8-residual": Form.RESIDUAL_8}
_WIDE_PARAMETERS = 10**9  # from which on blocks of 128 serve four bits as well
_ROUNDS = 2
_NOT_COPIED = (GRAPH, DATA, SCORING, REFERENCE)


@dataclass(frozen=True)
class TextBuildResult:
    """What a build made: the package's path, its manifest and the evidence."""

    path: Path
    manifest: Manifest
    evidence: TextEvidence

    @property
    def budget_missed(self) -> bool:
        """Whether every variant misses the budget."""
        return not any(variant.within_budget for variant in self.manifest.variants)

    def summary(self) -> dict[str, Any]:
        """What ``sanderling build --json`` prints."""
        manifest = self.manifest.model_dump(mode="json", include={"name", "variants", "chosen", "budget", "text"})
        measured = {
            name: found.model_dump(mode="json", exclude={"search"}) for name, found in self.evidence.variants.items()
        }
        return {
            "package": str(self.path),
            "task": TASK,
            **manifest,
            "reason": self.evidence.choice,
            "measured": measured,
            "events": [event.model_dump() for event in self.evidence.events],
        }


@dataclass(frozen=True)
class _Float:
    """The float model, as it was converted."""

    folder: Path
    spec: TextSpec
    decoder: Decoder
    proof: Proof


@dataclass(frozen=True)
class _Made:
    """One variant on disk."""

    folder: Path
    forms: Mapping[str, Form]
    search: TextSearch | None


def build_text(options: TextBuildOptions, progress: Progress | None = None) -> TextBuildResult:
    """Build a package of a language model.

    Raises:
        InputError: source, options or texts cannot be used; nothing is written.
        UnavailableError: an extra is missing.
        OutputError: the package could not be written; nothing is kept.
    """
    check_output(options.output)
    if importlib.util.find_spec("jinja2") is None:
        raise UnavailableError("a build needs jinja2: pip install 'sanderling[text-build]'")
    recorder = Recorder(progress or Silent())
    texts = Texts.read(options.calibration, options.evaluation)
    recorder.stage("look at the source")
    source = find_source(options.source)
    check_foreign(options.precisions, source)
    with replacing(options.output) as target:
        zipped = options.output.suffix == ".zip"
        folder = target.with_name("package") if zipped else target
        folder.mkdir()
        scratch = target.with_name("scratch")
        scratch.mkdir()
        result = _package(folder, scratch, source, texts, options, recorder)
        shutil.rmtree(scratch)
        if zipped:
            write_zip(folder, target)
    return result


def _package(
    folder: Path, scratch: Path, source: TextSource, texts: Texts, options: TextBuildOptions, recorder: Recorder
) -> TextBuildResult:
    original = _converted(source, scratch / "float", options, recorder)
    quality = Quality(original.folder, original.spec, texts, options.threads, recorder)
    made = {
        name: _foreign_variant(name, source, folder / "variants" / name, scratch / name, original, recorder)
        if name in ENGINES
        else _variant(name, folder / "variants" / name, scratch / name, original, quality, options, recorder)
        for name in options.precisions
    }
    measured, golden = _measured(folder, made, original, quality, options, recorder)
    variants = tuple(_entry(name, made[name], measured[name], source, options) for name in options.precisions)
    chosen, why = _choose(variants, measured)
    recorder.stop()
    evidence = TextEvidence(
        machine=describe_machine(),
        options=options.plain(),
        proof=original.proof,
        parameters=original.decoder.parameters,
        threads=options.threads or usable_cores(),
        texts=texts.origin,
        variants=measured,
        choice=why,
        stage_seconds=recorder.seconds,
        events=tuple(recorder.events),
    )
    (folder / EVIDENCE).write_text(evidence.model_dump_json(indent=1) + "\n", encoding="utf-8")
    manifest = _manifest(source, original.spec, variants, chosen, golden, options)
    (folder / REPORT).write_text(render_text_report(manifest, evidence), encoding="utf-8")
    manifest = manifest.model_copy(update={"files": file_entries(folder)})
    write_manifest(folder, manifest)
    return TextBuildResult(options.output, manifest, evidence)


def _converted(source: TextSource, folder: Path, options: TextBuildOptions, recorder: Recorder) -> _Float:
    """Bring the source to a float graph, and prove it against what PyTorch computes."""
    recorder.stage("convert")
    folder.mkdir()
    spec = convert(source, folder)
    decoder = Decoder(folder)
    (folder / SCORING).write_bytes(unpruned(decoder.model).SerializeToString())
    recorder.stage("compare with PyTorch")
    with np.load(folder / REFERENCE) as reference:
        ids, logits = reference["ids"].tolist(), reference["logits"]
    model = _load(folder, spec, options)
    generation = model.generation(capacity=len(ids))
    generation.append(ids)
    error = relative_error(logits, generation.logits())
    model.close()
    if error > _PROOF_TOLERANCE:
        raise ModelError(
            f"{source.name}: the converted graph does not compute what PyTorch does: relative error {error:.1e} of the "
            f"scores after {len(ids)} tokens, at most {_PROOF_TOLERANCE:.0e}"
        )
    return _Float(folder, spec, decoder, Proof(tokens=len(ids), relative_error=error, tolerance=_PROOF_TOLERANCE))


def _variant(
    name: str,
    target: Path,
    scratch: Path,
    original: _Float,
    quality: Quality,
    options: TextBuildOptions,
    recorder: Recorder,
) -> _Made:
    """Write a variant's folder."""
    found, forms, rest = None, dict[str, Form](), Form.FLOAT
    form = _form_of(name, original.decoder)
    if name in ("int8-blocks", "int8-residual") or (name == "int4" and options.budget is None):
        forms = forms_of(original.decoder, form)
    elif name in ("int8", "int4"):
        found = _search(name, form, scratch, original, quality, options, recorder)
        forms = forms_of(original.decoder, form, found.order[: found.guarded])
    elif name == "fp16":
        rest = Form.HALF
    recorder.stage(f"write {name}")
    target.mkdir(parents=True)
    _copy_companions(original.folder, target)
    mixer = Mixer(original.decoder, target)
    mixer.write(forms, GRAPH, rest=rest, scoring=SCORING)
    mixer.close()
    return _Made(target, forms, found)


def _form_of(name: str, decoder: Decoder) -> Form:
    """What most products of a variant are computed in."""
    if name == "int4":
        return Form.BLOCKS_4_WIDE if decoder.parameters >= _WIDE_PARAMETERS else Form.BLOCKS_4
    return _FORMS.get(name, Form.FLOAT)


def _foreign_variant(
    name: str, source: TextSource, target: Path, scratch: Path, original: _Float, recorder: Recorder
) -> _Made:
    """Write a folder for another engine."""
    recorder.stage(f"write {name}")
    target.mkdir(parents=True)
    _copy_companions(original.folder, target)
    write_foreign(name, source, target, scratch)
    return _Made(target, {}, None)


def _search(
    name: str,
    form: Form,
    scratch: Path,
    original: _Float,
    quality: Quality,
    options: TextBuildOptions,
    recorder: Recorder,
) -> TextSearch:
    recorder.stage(f"find what {name} costs each product")
    errors = local_errors(original.decoder, quality.choice_ids, form)
    recorder.stage(f"choose products of {name}")
    scratch.mkdir()
    _copy_companions(original.folder, scratch)
    mixer = Mixer(original.decoder, scratch)

    def measure(forms: Mapping[str, Form]) -> Change:
        mixer.write(forms, GRAPH, scoring=SCORING)
        return quality.choice_change(scratch)

    found = search(original.decoder, form, errors, options.limit.limit, measure, recorder)
    mixer.close()
    shutil.rmtree(scratch)
    return found


def _copy_companions(source: Path, target: Path) -> None:
    """Copy the tokenizer, the chat template and the engine's configuration."""
    for path in source.iterdir():
        if path.name not in _NOT_COPIED:
            shutil.copyfile(path, target / path.name)


def _measured(
    folder: Path,
    made: Mapping[str, _Made],
    original: _Float,
    quality: Quality,
    options: TextBuildOptions,
    recorder: Recorder,
) -> tuple[dict[str, TextVariantEvidence], Golden]:
    recorder.stage("measure perplexity", len(made))
    changes = {}
    for name, entry in made.items():
        model = _load(entry.folder, original.spec, options, engines_of(name)[0]) if name in ENGINES else None
        changes[name] = quality.reported_changes(entry.folder, model)
        if model is not None:
            model.close()
        recorder.advance()
    recorder.stage("compare answers with FP32's", len(made) + 1)
    reference = _load(original.folder, original.spec, options)
    expected = quality.answers(reference)
    reference.close()
    models = {name: _load(entry.folder, original.spec, options, engines_of(name)[0]) for name, entry in made.items()}
    agreeing = {name: quality.agreement(model, expected) for name, model in models.items()}
    golden = _golden(folder, models)
    recorder.stage("measure speed", _ROUNDS)
    timings = time_models(models, rounds=_ROUNDS, progress=recorder)
    for model in models.values():
        model.close()
    recorder.stage("measure memory", len(made))
    return {
        name: TextVariantEvidence(
            perplexity=changes[name].by_text,
            overall=changes[name].overall,
            agreeing=agreeing[name],
            answer_tokens=quality.answer_tokens,
            timing=timings[name],
            peak_rss_bytes=memory_of_folder(
                entry.folder, original.spec, engines_of(name)[0], options.threads, recorder
            ),
            forms=dict(Counter(form.value for form in entry.forms.values())),
            search=entry.search,
        )
        for name, entry in made.items()
    }, golden


def _golden(folder: Path, models: Mapping[str, TextModel]) -> Golden:
    prompts = prompt_ids(next(iter(models.values())))
    outputs = {name: golden_outputs(model, prompts) for name, model in models.items()}
    arrays = GoldenVectors({"prompts": prompts}, outputs).to_arrays()
    np.savez_compressed(folder / "golden.npz", **arrays)  # type: ignore[arg-type]
    return Golden(file="golden.npz", samples=len(prompts), tolerance={name: _TOLERANCES[name] for name in models})


def _entry(
    name: str, made: _Made, measured: TextVariantEvidence, source: TextSource, options: TextBuildOptions
) -> Variant:
    accuracy = measured.overall.accuracy()
    file, data = FILES.get(name, (GRAPH, DATA))
    return Variant(
        id=name,
        precision=foreign_precision(name, source) if name in ENGINES else precision_of(name),
        file=f"variants/{name}/{file}",
        external_data=f"variants/{name}/{data}" if data else None,
        size_bytes=folder_size_bytes(made.folder),
        engines=engines_of(name),
        latency_ms=measured.timing.inter_token_ms,
        memory_bytes=measured.peak_rss_bytes,
        accuracy=accuracy,
        within_budget=name == "fp32" or within_budget(accuracy, options.limit),
        float_nodes=tuple(product for product, form in made.forms.items() if form == Form.FLOAT),
    )


def _choose(variants: tuple[Variant, ...], measured: Mapping[str, TextVariantEvidence]) -> tuple[str, str]:
    """Of the variants inside the budget the one that writes fastest; the closest to FP32 where none is."""
    inside = [variant for variant in variants if variant.within_budget]
    if not inside:
        best = min(variants, key=lambda variant: measured[variant.id].overall.percent)
        return best.id, f"{best.id}: no variant is inside the budget, and this one is closest to FP32"
    best = max(inside, key=lambda variant: measured[variant.id].timing.decode_tokens_per_s)
    speed = measured[best.id].timing.decode_tokens_per_s
    alone = "the only variant" if len(variants) == 1 else "the fastest variant"
    return best.id, f"{best.id}: {alone} inside the budget, {speed:.0f} tokens/s"


def _manifest(
    source: TextSource,
    spec: TextSpec,
    variants: tuple[Variant, ...],
    chosen: str,
    golden: Golden,
    options: TextBuildOptions,
) -> Manifest:
    return Manifest(
        name=options.output.name.split(".sdl")[0],
        source=Source(format=source.format, name=source.name, sha256=source.sha256),
        inputs=(TensorSpec(name="input_ids", dtype="int64", shape=("batch", "tokens")),),
        outputs=(TensorSpec(name="logits", dtype="float32", shape=("batch", 1, spec.vocabulary)),),
        variants=variants,
        chosen=chosen,
        budget=options.limit,
        golden=golden,
        text=spec,
        files={},
    )


def _load(folder: Path, spec: TextSpec, options: TextBuildOptions, engine: str = DEFAULT_TEXT_ENGINE) -> TextModel:
    return text_engine(engine).load(folder, spec, threads=options.threads)
