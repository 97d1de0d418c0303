"""The build of a model with several branches: each branch a package, then one choice for all by the answers."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sanderling.core.errors import UnavailableError
from sanderling.core.files import replacing
from sanderling.core.machine import describe_machine, usable_cores
from sanderling.core.precision import Precision
from sanderling.core.progress import Event, Progress, Recorder, Silent
from sanderling.core.statistics import samples_needed
from sanderling.measure.accuracy import within_budget
from sanderling.measure.multimodal import FLOAT, Joint
from sanderling.model.manifest import Budget, Golden, Manifest, Source, Variant
from sanderling.model.multimodal import MultimodalSpec
from sanderling.model.package import EVIDENCE, file_entries, write_manifest, write_zip
from sanderling.run.composite import NAME, variant_file
from sanderling.workshop.multimodal import joint as choosing
from sanderling.workshop.multimodal.branches import BranchedModel
from sanderling.workshop.multimodal.data import Data, read_data
from sanderling.workshop.multimodal.evidence import Choice, MultimodalEvidence, MultimodalVariantEvidence
from sanderling.workshop.multimodal.making import FOLDER, Making
from sanderling.workshop.multimodal.measuring import Call, first_calls, time_variants, write_golden, write_variants
from sanderling.workshop.multimodal.options import MultimodalBuildOptions, check_options
from sanderling.workshop.multimodal.source import load_model, try_branches
from sanderling.workshop.pipeline import check_output
from sanderling.workshop.search import CONFIDENCE as SEARCH_CONFIDENCE

_DEFAULT_LIMITS = {"top1": 1.0, "agreement": 5.0}
_CLEARLY_FASTER = 0.95


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


def build_multimodal(options: MultimodalBuildOptions, progress: Progress | None = None) -> MultimodalBuildResult:
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
    try_branches(model, source.name)
    data = read_data(model, options, recorder)
    with replacing(options.output) as target:
        zipped = options.output.suffix == ".zip"
        folder = target.with_name("package") if zipped else target
        (folder / FOLDER).mkdir(parents=True)
        result = _Build(folder, model, source, data, options, recorder).run()
        if zipped:
            write_zip(folder, target)
    return result


class _Build:
    """One build: its branches, the choice of their variants, and the package of the whole."""

    def __init__(
        self,
        folder: Path,
        model: BranchedModel,
        source: Source,
        data: Data,
        options: MultimodalBuildOptions,
        recorder: Recorder,
    ) -> None:
        self._folder, self._model, self._source = folder, model, source
        self._data, self._options, self._recorder = data, options, recorder
        self._making = Making(folder, model, source, data, options, recorder)

    def run(self) -> MultimodalBuildResult:
        """Make everything, and write manifest and evidence."""
        self._making.make()
        chosen, tried, budget = self._choose(self._making.joint("calibration"), self._making.joint("evaluation"))
        return self._finish(chosen, tried, budget)

    def _choose(
        self, calibration: Joint | None, evaluation: Joint | None
    ) -> tuple[dict[str, Choice], list[Choice], Budget | None]:
        """FP32, INT8, and where that misses the budget what the search finds; and the choices that it tested."""
        packages = self._making.packages
        chosen = {FLOAT: self._choice(choosing.all_in(packages, FLOAT), evaluation)}
        first = chosen[FLOAT].accuracy
        if evaluation is None or first is None:
            return chosen, [], self._options.budget
        budget = self._options.budget or Budget(metric=first.metric, limit=_DEFAULT_LIMITS[first.metric])
        if calibration is None or Precision.INT8 not in self._options.precisions:
            return chosen, [], budget
        reduced = choosing.all_in(packages, choosing.INT8)
        if reduced == chosen[FLOAT].branches:
            reason = "no branch could be made in INT8; the branches' own reports say why"
            self._recorder.event(Event(kind="variant-skipped", subject="int8", reason=reason))
            return chosen, [], budget
        self._recorder.stage("measure accuracy")
        chosen[choosing.INT8] = self._choice(reduced, evaluation, confidence=SEARCH_CONFIDENCE)
        found = chosen[choosing.INT8].accuracy
        assert found is not None
        if within_budget(found, budget) or self._is_out_of_reach(budget, found.samples):
            return chosen, [], budget
        tried = choosing.search(
            choosing.candidates(packages, calibration), evaluation, budget, self._options.seed, self._recorder
        )
        mixed = choosing.passed(tried, budget)
        return chosen | ({"mixed": mixed} if mixed is not None else {}), tried, budget

    def _is_out_of_reach(self, budget: Budget, samples: int) -> bool:
        """Tell when so few rows are there that no choice could be shown to keep the budget, however good."""
        needed = samples_needed(budget.limit / 100, confidence=SEARCH_CONFIDENCE) if budget.limit > 0 else None
        if needed is not None and needed <= samples:
            return False
        least = f"{budget.metric}={budget.limit:g}"
        how_many = f"at least {needed} are needed" if needed else "no number is enough: give a budget above 0"
        reason = f"{samples} cannot show that {least} holds, even if nothing is lost: {how_many}"
        self._recorder.event(Event(kind="too-few-evaluation-samples", subject="mixed", reason=reason))
        return True

    def _choice(self, branches: dict[str, str], joint: Joint | None, confidence: float = 0.95) -> Choice:
        accuracy = joint.accuracy(branches, confidence=confidence, seed=self._options.seed) if joint else None
        return Choice(
            branches=branches, latency_ms=choosing.latency_ms(self._making.packages, branches), accuracy=accuracy
        )

    def _finish(
        self, chosen: Mapping[str, Choice], tried: Sequence[Choice], budget: Budget | None
    ) -> MultimodalBuildResult:
        spec = self._making.spec({name: choice.branches for name, choice in chosen.items()})
        manifest = self._manifest(spec, chosen, budget)
        calls = first_calls(spec, self._making)
        write_variants(self._folder, manifest)
        golden = write_golden(self._folder, manifest, calls, self._recorder)
        manifest = manifest.model_copy(update={"golden": golden})
        measured = self._measured(manifest, chosen, calls[0])
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
            for each in self._making.packages[leaf.name].manifest.inputs
        )
        ends = [spec.fusion] if spec.fusion is not None else list(spec.leaves)
        outputs = tuple(
            each.model_copy(update={"name": f"{end.name}.{each.name}"})
            for end in ends
            for each in self._making.packages[end.name].manifest.outputs
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
        parts = [self._making.packages[branch].variant(variant) for branch, variant in choice.branches.items()]
        memory = [part.memory_bytes for part in parts]
        kept = choice.accuracy is not None and budget is not None and within_budget(choice.accuracy, budget)
        return Variant(
            id=name,
            precision=Precision.FP32 if name == FLOAT else Precision.INT8,
            file=variant_file(name),
            size_bytes=sum(part.size_bytes for part in parts),
            engines=(NAME,),
            memory_bytes=None if None in memory else sum(size for size in memory if size is not None),
            accuracy=choice.accuracy,
            within_budget=name == FLOAT or kept,
            float_nodes=tuple(
                f"{branch}: {variant}" for branch, variant in choice.branches.items() if variant == FLOAT
            ),
        )

    def _measured(
        self, manifest: Manifest, chosen: Mapping[str, Choice], call: Call
    ) -> dict[str, MultimodalVariantEvidence]:
        timed = time_variants(
            self._folder,
            manifest,
            call,
            threads=self._options.threads,
            repeats=self._options.repeats,
            progress=self._recorder,
        )
        return {
            name: MultimodalVariantEvidence(
                accuracy=choice.accuracy, first=timed[f"first {name}"], again=timed.get(f"again {name}")
            )
            for name, choice in chosen.items()
        }


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
