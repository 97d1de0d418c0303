"""The build of a model with several branches: each branch a package, then one choice for all by the answers."""

from __future__ import annotations

import importlib.util
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sanderling.core.arrays import write_npz
from sanderling.core.errors import ModelError, OptionError, UnavailableError
from sanderling.core.files import replacing
from sanderling.core.machine import describe_machine, usable_cores
from sanderling.core.precision import Precision
from sanderling.core.progress import Event, Recorder, Silent
from sanderling.core.progress import Progress as ProgressProtocol
from sanderling.core.tensor import Feeds, TensorSpec, random_feeds
from sanderling.measure.accuracy import within_budget
from sanderling.measure.latency import Timing, time_interleaved
from sanderling.measure.multimodal import FLOAT, Joint, known_texts, picture_samples, text_samples
from sanderling.measure.multimodal_golden import contents_of, golden_outputs
from sanderling.measure.questions import Asked, read_asked
from sanderling.measure.samples import Samples
from sanderling.model.manifest import Budget, Golden, Manifest, Source, Variant
from sanderling.model.multimodal import QUESTIONS, BranchSpec, MultimodalSpec, joint_fault
from sanderling.model.package import EVIDENCE, GoldenVectors, Package, file_entries, write_manifest, write_zip
from sanderling.model.preprocessing import parse_preprocessing
from sanderling.run.branches import Branches
from sanderling.run.composite import NAME as COMPOSITE_NAME
from sanderling.run.composite import variant_file
from sanderling.run.features import digest_of
from sanderling.run.text.inputs import TextInputs, check_text_inputs
from sanderling.workshop.export.source import Exported
from sanderling.workshop.material import Material, random_samples
from sanderling.workshop.multimodal import joint as choosing
from sanderling.workshop.multimodal.branches import Branch, BranchedModel
from sanderling.workshop.multimodal.evidence import Choice, MultimodalEvidence, MultimodalVariantEvidence
from sanderling.workshop.multimodal.options import MultimodalBuildOptions, check_options
from sanderling.workshop.multimodal.source import export_branch, load_model, write_tokenizer
from sanderling.workshop.options import BuildOptions, parse_input
from sanderling.workshop.pipeline import build, check_output
from sanderling.workshop.proof import GOLDEN_TOLERANCE
from sanderling.workshop.search import CONFIDENCE as SEARCH_CONFIDENCE

FOLDER = "branches"
_DEFAULT_LIMITS = {"top1": 1.0, "agreement": 5.0}
_BRANCH_BUDGET = Budget(metric="cosine", limit=0.01)
_HELD_OUT_SHARE = 0.25
_LEAST_PICTURES = 4
_GOLDEN_SAMPLES = 4
_WARMUP = 5
_TIMING_SECONDS = 15.0
_CLEARLY_FASTER = 0.95
_TOLERANCE = {FLOAT: GOLDEN_TOLERANCE[Precision.FP32]}
_OTHERS_TOLERANCE = GOLDEN_TOLERANCE[Precision.INT8]


@dataclass(frozen=True)
class MultimodalBuildResult:
    """What a build made: the package's path, its manifest and the evidence."""

    path: Path
    manifest: Manifest
    evidence: MultimodalEvidence

    @property
    def budget_missed(self) -> bool:
        """Whether reduced precisions were made and every one of them misses the budget."""
        reduced = [variant for variant in self.manifest.variants if variant.id != FLOAT]
        return bool(reduced) and not any(variant.within_budget for variant in reduced)

    def summary(self) -> dict[str, Any]:
        """What ``sanderling build --json`` prints."""
        manifest = self.manifest.model_dump(mode="json", include={"name", "variants", "chosen", "budget", "multimodal"})
        return {
            "package": str(self.path),
            **manifest,
            "reason": self.evidence.choice,
            "evaluation_data": self.evidence.evaluation_data,
            "events": [event.model_dump() for event in self.evidence.events],
        }


@dataclass(frozen=True)
class _Data:
    """Rows to decide on, and others to report on; None where there are none."""

    calibration: Asked | None
    evaluation: Asked | None
    origin: str


def build_multimodal(
    options: MultimodalBuildOptions, progress: ProgressProtocol | None = None
) -> MultimodalBuildResult:
    """Build a package of a model with several branches.

    Raises:
        InputError: source, options or data cannot be used; nothing is written.
        UnavailableError: an extra is missing.
        OutputError: the package could not be written; nothing is kept.
    """
    check_output(options.output)
    check_options(options)
    missing = [name for name in ("onnxslim", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise UnavailableError(f"a build needs {' and '.join(missing)}: pip install 'sanderling[build]'")
    recorder = Recorder(progress or Silent())
    recorder.stage("load the branches")
    model, source = load_model(options)
    data = _read_data(model, options, recorder)
    with replacing(options.output) as target:
        zipped = options.output.suffix == ".zip"
        folder = target.with_name("package") if zipped else target
        (folder / FOLDER).mkdir(parents=True)
        result = _Build(folder, model, source, data, options, recorder).run()
        if zipped:
            write_zip(folder, target)
    return result


def _read_data(model: BranchedModel, options: MultimodalBuildOptions, recorder: Recorder) -> _Data:
    answers = model.answers if options.task == QUESTIONS else None
    if options.task == QUESTIONS and not answers:
        raise ModelError(f"{options.source} says no answers: give BranchedModel(answers=…), one for each score")
    calibration = read_asked(options.calibration, answers) if options.calibration else None
    evaluation = read_asked(options.evaluation, answers) if options.evaluation else None
    if calibration is None and evaluation is None:
        reason = "no --calibration and no --eval: only FP32 is made, and no accuracy is known"
        recorder.event(Event(kind="no-data", subject="accuracy", reason=reason))
        return _Data(None, None, "no data")
    if calibration is not None and evaluation is None:
        if len(calibration.pictures) < _LEAST_PICTURES:
            raise OptionError(
                f"{calibration.name} has {len(calibration.pictures)} pictures: at least {_LEAST_PICTURES} are needed"
            )
        calibration, evaluation = calibration.divided(_HELD_OUT_SHARE, options.seed)
        return _Data(calibration, evaluation, f"{len(evaluation)} rows of {evaluation.name}, on pictures held out")
    assert evaluation is not None
    return _Data(calibration, evaluation, f"{len(evaluation)} rows of {evaluation.name}")


class _Build:
    """One build: its branches are made in their order, each with what those before it give."""

    def __init__(
        self,
        folder: Path,
        model: BranchedModel,
        source: Source,
        data: _Data,
        options: MultimodalBuildOptions,
        recorder: Recorder,
    ) -> None:
        self._folder, self._model, self._source = folder, model, source
        self._data, self._options, self._recorder = data, options, recorder
        self._packages: dict[str, Package] = {}
        self._specs: list[BranchSpec] = []
        self._samples: dict[str, dict[str, Samples]] = {"calibration": {}, "evaluation": {}}

    def run(self) -> MultimodalBuildResult:
        """Make everything, and write manifest and evidence."""
        for branch in self._model.branches:
            if branch.modality != "fusion":
                self._leaf(branch)
        for branch in self._model.branches:
            if branch.modality == "fusion":
                self._fusion(branch)
        spec = self._spec({})
        joints = {name: self._joint(spec, name) for name in ("calibration", "evaluation")}
        chosen, tried, budget = self._choose(joints)
        return self._finish(chosen, tried, budget, joints["evaluation"])

    def _leaf(self, branch: Branch) -> None:
        inputs = tuple(parse_input(text) for text in branch.inputs)
        data = {"calibration": self._data.calibration, "evaluation": self._data.evaluation}
        preprocessing, tokenizer = None, None
        read: Callable[[Asked], Samples]
        if branch.modality == "picture":
            assert branch.preprocess is not None
            preprocessing = parse_preprocessing(branch.preprocess, inputs[0])
            read = partial(picture_samples, spec=inputs[0], preprocessing=preprocessing)
        else:
            longest = inputs[0].concrete_shape()[1]
            check_text_inputs(inputs, longest)
            tokenizer = write_tokenizer(branch, longest, self._folder, f"{branch.name}.tokenizer.json")
            reader = TextInputs(tokenizer, self._folder / tokenizer.file, inputs)
            read = partial(text_samples, reader=reader)
            for asked in data.values():
                if asked is not None:
                    known_texts(asked, reader, self._recorder)
        self._recorder.stage(f"read data of {branch.name}")
        for name, asked in data.items():
            if asked is not None:
                self._samples[name][branch.name] = read(asked)
        spec = BranchSpec(name=branch.name, modality=branch.modality, folder=self._place(branch), tokenizer=tokenizer)
        self._make(branch, spec, inputs, self._material(inputs, branch.name, preprocessing))

    def _fusion(self, branch: Branch) -> None:
        inputs = tuple(parse_input(text) for text in branch.inputs)
        outputs = {name: package.manifest.outputs[0] for name, package in self._packages.items()}
        unknown = sorted(set(branch.takes.values()) - set(outputs))
        if unknown:
            raise ModelError(f"fusion '{branch.name}' takes from '{unknown[0]}': branches are {', '.join(outputs)}")
        fault = joint_fault(branch.name, branch.takes, inputs, outputs)
        if fault is not None:
            raise ModelError(f"{self._source.name}: {fault}")
        spec = BranchSpec(name=branch.name, modality="fusion", folder=self._place(branch), takes=dict(branch.takes))
        partial_spec = MultimodalSpec.model_construct(
            task=self._options.task, branches=(*self._specs, spec), variants={}
        )
        for name in ("calibration", "evaluation"):
            joint = self._joint(partial_spec, name)
            if joint is not None:
                feeds = joint.fusion_feeds(spec, joint.float_leaves())
                count = len(next(iter(feeds.values())))
                self._samples[name][branch.name] = Samples(feeds, None, tuple(map(str, range(count))))
        self._make(branch, spec, inputs, self._material(inputs, branch.name, None))
        scores = self._packages[branch.name].manifest.outputs[0].shape[1]
        if scores != len(self._model.answers):
            raise ModelError(
                f"fusion '{branch.name}' gives {scores} scores: there are {len(self._model.answers)} answers"
            )

    def _place(self, branch: Branch) -> str:
        return f"{FOLDER}/{branch.name}.sdl"

    def _material(self, inputs: tuple[TensorSpec, ...], name: str, preprocessing: Any) -> Material:  # noqa: ANN401
        calibration, evaluation = (self._some(kind, name) for kind in ("calibration", "evaluation"))
        return Material(
            preprocessing=preprocessing,
            labels=tuple(self._model.answers) if self._is_fusion(name) else None,
            calibration=calibration,
            evaluation=evaluation or random_samples(inputs, self._options.seed),
            evaluation_origin=self._data.origin,
            metric="cosine",
        )

    def _is_fusion(self, name: str) -> bool:
        return any(branch.name == name and branch.modality == "fusion" for branch in self._model.branches)

    def _some(self, kind: str, name: str) -> Samples | None:
        """At most as many samples as a branch is calibrated, or compared, on."""
        samples = self._samples[kind].get(name)
        if samples is None:
            return None
        order = np.random.default_rng(self._options.seed).permutation(len(samples))
        return samples.pick(np.sort(order[: self._options.calibration_limit]))

    def _make(self, branch: Branch, spec: BranchSpec, inputs: tuple[Any, ...], material: Material) -> None:
        """Build the branch's package as any other model's."""
        precisions = self._options.precisions if material.calibration is not None else (Precision.FP32,)
        output = self._folder / spec.folder
        branch_options = BuildOptions(
            source=f"{self._source.name}, {branch.name}",
            output=output,
            inputs=inputs,
            dynamic_batch=True,
            precisions=precisions,
            budget=_BRANCH_BUDGET,
            threads=self._options.threads,
            repeats=self._options.repeats,
            seed=self._options.seed,
        )

        def make_graph(options: BuildOptions, progress: ProgressProtocol) -> Exported:
            progress.stage(f"export {branch.name}")
            exported = export_branch(branch, options, self._source)
            return Exported(exported.model, exported.source, exported.check, material=material)

        build(branch_options, self._recorder, make_graph)
        self._packages[branch.name] = Package.open(output, check_hashes=False)
        self._specs.append(spec)

    def _joint(self, spec: MultimodalSpec, kind: str) -> Joint | None:
        asked = getattr(self._data, kind)
        if asked is None:
            return None
        return Joint(spec, self._packages, asked, self._samples[kind], threads=self._options.threads)

    def _spec(self, variants: Mapping[str, dict[str, str]]) -> MultimodalSpec:
        order = {branch.name: at for at, branch in enumerate(self._model.branches)}
        return MultimodalSpec(
            task=self._options.task,  # type: ignore[arg-type] - checked before
            branches=tuple(sorted(self._specs, key=lambda spec: order[spec.name])),
            variants=dict(variants),
            scale=self._model.scale,
            bias=self._model.bias,
            score=self._model.score,
        )

    def _choose(self, joints: Mapping[str, Joint | None]) -> tuple[dict[str, Choice], list[Choice], Budget | None]:
        """FP32, INT8, and where that misses the budget what the search finds."""
        chosen = {FLOAT: self._choice(choosing.all_in(self._packages, FLOAT), joints["evaluation"])}
        evaluation, calibration = joints["evaluation"], joints["calibration"]
        first = chosen[FLOAT].accuracy
        if evaluation is None or first is None:
            return chosen, [], self._options.budget
        budget = self._options.budget or Budget(metric=first.metric, limit=_DEFAULT_LIMITS[first.metric])
        reduced = choosing.all_in(self._packages, choosing.INT8)
        if calibration is None or Precision.INT8 not in self._options.precisions:
            return chosen, [], budget
        if reduced == chosen[FLOAT].branches:
            reason = "no branch could be made in INT8; the branches' own reports say why"
            self._recorder.event(Event(kind="variant-skipped", subject="int8", reason=reason))
            return chosen, [], budget
        self._recorder.stage("measure accuracy")
        chosen[choosing.INT8] = self._choice(reduced, evaluation, confidence=SEARCH_CONFIDENCE)
        found = chosen[choosing.INT8].accuracy
        if found is not None and within_budget(found, budget):
            return chosen, [], budget
        tried = choosing.search(
            choosing.candidates(self._packages, calibration), evaluation, budget, self._options.seed, self._recorder
        )
        mixed = choosing.passed(tried, budget)
        if mixed is not None:
            chosen["mixed"] = mixed
        return chosen, tried, budget

    def _choice(self, branches: dict[str, str], joint: Joint | None, confidence: float = 0.95) -> Choice:
        accuracy = joint.accuracy(branches, confidence=confidence, seed=self._options.seed) if joint else None
        return Choice(branches=branches, latency_ms=choosing.latency_ms(self._packages, branches), accuracy=accuracy)

    def _finish(
        self, chosen: Mapping[str, Choice], tried: Sequence[Choice], budget: Budget | None, joint: Joint | None
    ) -> MultimodalBuildResult:
        spec = self._spec({name: choice.branches for name, choice in chosen.items()})
        manifest = self._manifest(spec, chosen, budget)
        feeds = self._first_calls(spec)
        golden = self._write_golden(manifest, feeds)
        manifest = manifest.model_copy(update={"golden": golden})
        measured = self._measured(manifest, chosen, feeds)
        variants = tuple(
            variant.model_copy(update={"latency_ms": measured[variant.id].first.latency()})
            for variant in manifest.variants
        )
        best, why = _best(variants, budget)
        self._recorder.stop()
        evidence = MultimodalEvidence(
            machine=describe_machine(),
            options=self._options.plain(),
            evaluation_data=self._data.origin,
            threads=self._options.threads or usable_cores(),
            variants=measured,
            tried=tuple(tried),
            choice=why,
            stage_seconds=self._recorder.seconds,
            events=tuple(self._recorder.events),
        )
        (self._folder / EVIDENCE).write_text(evidence.model_dump_json(indent=1) + "\n", encoding="utf-8")
        manifest = manifest.model_copy(
            update={"variants": variants, "chosen": best, "files": file_entries(self._folder)}
        )
        write_manifest(self._folder, manifest)
        return MultimodalBuildResult(self._options.output, manifest, evidence)

    def _manifest(self, spec: MultimodalSpec, chosen: Mapping[str, Choice], budget: Budget | None) -> Manifest:
        inputs = tuple(
            each.model_copy(update={"name": f"{leaf.name}.{each.name}"})
            for leaf in spec.leaves
            for each in self._packages[leaf.name].manifest.inputs
        )
        ends = [spec.fusion] if spec.fusion is not None else list(spec.leaves)
        outputs = tuple(
            each.model_copy(update={"name": f"{end.name}.{each.name}"})
            for end in ends
            for each in self._packages[end.name].manifest.outputs
        )
        return Manifest(
            name=self._options.output.name.split(".sdl")[0],
            source=self._source,
            inputs=inputs,
            outputs=outputs,
            labels=tuple(self._model.answers) or None,
            variants=tuple(self._variant(name, choice, budget) for name, choice in chosen.items()),
            chosen=FLOAT,
            budget=budget,
            golden=Golden(file="golden.npz", samples=0, tolerance={}),
            multimodal=spec,
            files={},
        )

    def _variant(self, name: str, choice: Choice, budget: Budget | None) -> Variant:
        parts = [self._packages[branch].variant(variant) for branch, variant in choice.branches.items()]
        memory = [part.memory_bytes for part in parts]
        kept = choice.accuracy is not None and budget is not None and within_budget(choice.accuracy, budget)
        return Variant(
            id=name,
            precision=Precision.FP32 if name == FLOAT else Precision.INT8,
            file=variant_file(name),
            size_bytes=sum(part.size_bytes for part in parts),
            engines=(COMPOSITE_NAME,),
            memory_bytes=None if None in memory else sum(size for size in memory if size is not None),
            accuracy=choice.accuracy,
            within_budget=name == FLOAT or kept,
            float_nodes=tuple(
                f"{branch}: {variant}" for branch, variant in choice.branches.items() if variant == FLOAT
            ),
        )

    def _first_calls(self, spec: MultimodalSpec) -> list[dict[str, Feeds]]:
        """Inputs of the branches that read pictures and texts, for a few calls."""
        found = []
        for at in range(_GOLDEN_SAMPLES):
            call: dict[str, Feeds] = {}
            for leaf in spec.leaves:
                samples = self._samples["evaluation"].get(leaf.name)
                inputs = self._packages[leaf.name].manifest.inputs
                call[leaf.name] = samples.one(at % len(samples)) if samples else random_feeds(inputs, seed=at)
            found.append(call)
        return found

    def _write_golden(self, manifest: Manifest, calls: Sequence[Mapping[str, Feeds]]) -> Golden:
        """Compute and write the golden vectors of all variants."""
        self._recorder.stage("golden vectors", len(manifest.variants))
        assert manifest.multimodal is not None
        for name, chosen in manifest.multimodal.variants.items():
            (self._folder / variant_file(name)).write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")
        write_manifest(self._folder, manifest.model_copy(update={"files": file_entries(self._folder)}))
        package = Package.open(self._folder, check_hashes=False)
        stacked = {
            f"{branch}.{name}": np.stack([call[branch][name] for call in calls])
            for branch in calls[0]
            for name in calls[0][branch]
        }
        outputs = {}
        for variant in manifest.variants:
            outputs[variant.id] = golden_outputs(package, variant.id, calls, threads=1)
            self._recorder.advance()
        write_npz(self._folder / "golden.npz", GoldenVectors(stacked, outputs).to_arrays())
        tolerance = {variant.id: _TOLERANCE.get(variant.id, _OTHERS_TOLERANCE) for variant in manifest.variants}
        return Golden(file="golden.npz", samples=len(calls), tolerance=tolerance)

    def _measured(
        self, manifest: Manifest, chosen: Mapping[str, Choice], calls: Sequence[Mapping[str, Feeds]]
    ) -> dict[str, MultimodalVariantEvidence]:
        """Time each variant's first call and, where there is a fusion, one on a picture that it has seen."""
        package = Package.open(self._folder, check_hashes=False)
        self._recorder.stage("measure latency", self._options.repeats)
        opened = {
            variant.id: Branches(package, variant=variant.id, threads=self._options.threads)
            for variant in manifest.variants
        }
        timed: dict[str, Timing] = {}
        try:
            timed = time_interleaved(
                {
                    f"{when} {name}": partial(_ask, branches, calls[0], seen=when == "again")
                    for name, branches in opened.items()
                    for when in (("first", "again") if branches.spec.fusion else ("first",))
                },
                warmup=_WARMUP,
                repeats=self._options.repeats,
                seconds=_TIMING_SECONDS,
                progress=self._recorder,
            )
        finally:
            for branches in opened.values():
                branches.close()
        return {
            name: MultimodalVariantEvidence(
                accuracy=choice.accuracy, first=timed[f"first {name}"], again=timed.get(f"again {name}")
            )
            for name, choice in chosen.items()
        }


_ASKED = itertools.count()


def _ask(branches: Branches, call: Mapping[str, Feeds], *, seen: bool) -> None:
    """Ask what was never asked; about a picture that was asked about before where ``seen``."""
    contents = contents_of(call, digest_of(str(next(_ASKED)).encode()))
    if seen:
        picture = branches.spec.leaf("picture").name
        contents[picture] = replace(contents[picture], digest=b"seen")
    if branches.spec.fusion is not None:
        branches.run([contents])
    else:
        branches.leaves([contents])


def _best(variants: tuple[Variant, ...], budget: Budget | None) -> tuple[str, str]:
    """The fastest variant inside the budget; a less exact one must be faster by a clear margin."""
    if len(variants) == 1 or budget is None:
        return FLOAT, "fp32: the only variant"
    best, reasons = variants[0], []
    for variant in variants[1:]:
        found = variant.accuracy
        assert found is not None
        if not variant.within_budget:
            reasons.append(
                f"{variant.id} misses it: {found.metric} drop {found.drop:.3g}, bound {found.drop_upper:.3g}"
            )
        elif _p50(variant) < _CLEARLY_FASTER * _p50(best):
            best = variant
        else:
            reasons.append(f"{variant.id} is inside it, but not clearly faster ({_p50(variant):.2f} ms)")
    chosen = f"{best.id} ({_p50(best):.2f} ms) is the fastest inside the budget {budget.metric}={budget.limit:g}"
    return best.id, "; ".join([chosen, *reasons])


def _p50(variant: Variant) -> float:
    return variant.latency_ms.p50 if variant.latency_ms else float("inf")
