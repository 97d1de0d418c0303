"""The examination: every check family in turn, joined to one diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec

from sanderling.core.errors import EngineError, ModelError, NotMetError
from sanderling.core.progress import Progress, Silent
from sanderling.measure.bisect import bisect_graph
from sanderling.measure.doctor.against import Kinship, check_layers_against, check_weights_against
from sanderling.measure.doctor.cycles import check_count, check_cycles
from sanderling.measure.doctor.findings import Check, Diagnosis, Finding, Severity, TargetOperators, fault, worst_first
from sanderling.measure.doctor.graph import check_structure, check_weights
from sanderling.measure.doctor.half import check_epsilons, check_finite, check_overflow, wrong_in_half
from sanderling.measure.doctor.inputs import check_inputs
from sanderling.measure.doctor.intake import read_data
from sanderling.measure.doctor.operators import HALF_TARGETS, check_targets, compatibility
from sanderling.measure.doctor.patient import Patient, admit, described, first_graph
from sanderling.measure.doctor.ranges import observe_ranges
from sanderling.measure.doctor.recalibration import check_calibration
from sanderling.measure.golden import wrong_outputs
from sanderling.measure.samples import Samples
from sanderling.run.engines import DEFAULT_ENGINE, engine
from sanderling.run.placing import default_options

P = ParamSpec("P")
_TOLERANCE = 1e-4
_OTHER_DB = 30.0
_VARIANT_DB = {"fp16": 30.0, "int8": 10.0, "int8-weights": 20.0, "int4-weights": 10.0}
_ROUNDED = ("int8", "int8-weights", "int4-weights")


@dataclass
class _Examination:
    """What has been found so far."""

    findings: list[Finding] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    operators: list[TargetOperators] = field(default_factory=list)

    def add(self, name: str, findings: Sequence[Finding], detail: str) -> None:
        self.findings += findings
        self.checks.append(Check(name=name, ran=True, detail=detail))

    def skip(self, name: str, reason: str) -> None:
        self.checks.append(Check(name=name, ran=False, detail=reason))

    def attempt(self, name: str, check: Callable[P, tuple[list[Finding], str]], *a: P.args, **k: P.kwargs) -> None:
        """Run a check; a graph that does not load or run cannot be observed, which another check has told."""
        try:
            self.add(name, *check(*a, **k))
        except (ModelError, EngineError, NotMetError) as error:
            self.skip(name, str(error))


def doctor(
    path: str | Path,
    *,
    data: str | Path | None = None,
    preprocess: str | None = None,
    against: str | Path | None = None,
    engines: Sequence[str] = (),
    targets: Sequence[str] = (),
    cycles: int = 0,
    progress: Progress | None = None,
) -> Diagnosis:
    """Examine an ONNX file or a package, and say what is wrong with it.

    Args:
        path: the file or package.
        data: folder of pictures, CSV or ``.npz``: what the application feeds, with labels if there are any.
        preprocess: what the application does to pictures: ``imagenet``, ``unit``, JSON or a file of it; the package's
            own by default.
        against: another ONNX file or package with the same tensor names.
        engines: to ask and to compare layer by layer; all that are installed are asked by default.
        targets: engines or tables (``ascend``) that must take the graph.
        cycles: loads and unloads to fit resident memory to; 0 for none.
        progress: told about each step.

    Raises:
        OptionError: an unknown engine, target or preprocessing.
        ModelError: the file cannot be read.
        PackageError: the manifest cannot be read.
        DataError: the data cannot be used.
        UnavailableError: an engine that was named is not installed.
    """
    progress = progress or Silent()
    check_targets([*engines, *targets])
    check_count(cycles)
    progress.stage("read")
    patient = admit(path, preprocess)
    samples, turned = read_data(data, patient, progress) if data is not None else (None, [])
    seen = _Examination()
    progress.stage("look at the graph")
    seen.add("graph", [*check_structure(patient.model), *check_weights(patient.model)], "structure and weights")
    _check_package(patient, seen, progress)
    seen.operators, refused = compatibility(
        patient.model, patient.file, engines=engines, targets=targets, progress=progress
    )
    seen.add("operators", refused, ", ".join(f"{entry.target} ({entry.basis})" for entry in seen.operators))
    seen.attempt("inputs", check_inputs, patient, samples, turned, progress)
    wrong_inputs = any(
        finding.severity == Severity.FAULT and finding.kind.startswith("input-") for finding in seen.findings
    )
    sound = None if wrong_inputs else samples  # ranges and layers of wrong inputs say nothing
    _check_numbers(patient, sound, targets, seen, progress)
    _check_variants(patient, sound, against, seen, progress)
    for name in engines:
        progress.stage(f"compare layers with {name}")
        seen.attempt(f"layers on {name}", _diverging, patient, sound, name, progress)
    if cycles:
        for name in engines or (DEFAULT_ENGINE,):
            progress.stage(f"load and unload {cycles} times with {name}")
            seen.attempt(f"cycles on {name}", check_cycles, patient.file, name, cycles)
    healthy = not any(finding.severity == Severity.FAULT for finding in seen.findings)
    return Diagnosis(
        model=patient.name,
        healthy=healthy,
        findings=worst_first(seen.findings),
        checks=tuple(seen.checks),
        operators=tuple(seen.operators),
    )


def _check_package(patient: Patient, seen: _Examination, progress: Progress) -> None:
    """Hashes, and every variant's golden vectors."""
    if patient.package is None or patient.manifest is None:
        seen.skip("package", "an ONNX file has no hashes and no golden vectors")
        return
    remedy = "build it again, or fetch a whole copy"
    found = [fault("file-changed", patient.name, problem, remedy) for problem in patient.problems]
    if patient.golden is not None:
        progress.stage("golden vectors", len(patient.manifest.variants))
        for variant in patient.manifest.variants:
            tolerance = patient.manifest.golden.tolerance[variant.id]
            try:
                executable = engine(variant.engines[0]).load(
                    patient.package.file(variant.file), default_options(variant)
                )
                wrong = wrong_outputs(executable, patient.golden, variant.id, tolerance)
                executable.close()
            except (EngineError, ModelError) as error:
                wrong = str(error)
            if wrong is not None:
                found.append(fault("golden-differs", variant.id, wrong, "see layer-diverges, and sanderling bisect"))
            progress.advance()
    seen.add("package", found, f"{len(patient.manifest.files)} hashes, {len(patient.manifest.variants)} variants")


def _check_numbers(
    patient: Patient, samples: Samples | None, targets: Sequence[str], seen: _Examination, progress: Progress
) -> None:
    """FP16's range and epsilons, and INT8's ranges."""
    half_target = next((name for name in targets if name in HALF_TARGETS), None)
    seen.add("epsilons", check_epsilons(patient.model, half_target=half_target), "of normalisations")
    progress.stage("observe ranges")
    seen.attempt("ranges", _overflow, patient, samples, half_target)
    seen.attempt("INT8 ranges", _calibration, patient, samples)


def _overflow(patient: Patient, samples: Samples | None, half_target: str | None) -> tuple[list[Finding], str]:
    calls, origin = patient.feeds(samples)
    ranges = observe_ranges(patient.model, calls, origin)
    half = patient.manifest.variant("fp16") if patient.manifest else None
    wrong = None
    if half is not None and patient.package is not None:
        variant = described(patient.package.file(half.file))
        wrong = wrong_in_half(ranges, variant, observe_ranges(variant, calls, origin))
    found = check_overflow(patient.model, ranges, variant_wrong=wrong, half_target=half_target)
    if not any(finding.severity == Severity.FAULT for finding in found):
        found += check_finite(patient.model, ranges, real=samples is not None or patient.real_golden is not None)
    return found, f"{len(ranges.ranges)} tensors on {ranges.origin}"


def _calibration(patient: Patient, samples: Samples | None) -> tuple[list[Finding], str]:
    int8 = patient.manifest.variant("int8") if patient.manifest else None
    if int8 is None or patient.package is None or samples is None:
        raise ModelError("needs a package with an int8 variant, and --data without a fault in the inputs")
    golden = patient.real_golden
    before = [golden.call(index) for index in range(len(golden))] if golden else []
    calls, origin = patient.feeds(samples)
    quantized = described(patient.package.file(int8.file))
    return check_calibration(patient.model, quantized, calls, before), f"of int8 on {origin}"


def _check_variants(
    patient: Patient, samples: Samples | None, against: str | Path | None, seen: _Examination, progress: Progress
) -> None:
    """Weights and layers against the package's other variants, and against another model."""
    package = patient.package
    for variant in package.manifest.variants[1:] if package else ():
        assert package is not None
        progress.stage(f"compare with {variant.id}")
        kinship = Kinship(
            f"the variant {variant.id}", _VARIANT_DB.get(variant.id, _OTHER_DB), expected=variant.id in _ROUNDED
        )
        if variant.id == "fp16":
            seen.attempt("weights of fp16", _weights, patient, package.file(variant.file), kinship)
        seen.attempt(f"layers of {variant.id}", _layers, patient, samples, package.file(variant.file), kinship)
    if against is not None:
        progress.stage(f"compare with {Path(against).name}")
        other, kinship = first_graph(Path(against)), Kinship(Path(against).name)
        seen.add("weights against", *_weights(patient, other, kinship))
        seen.attempt("layers against", _layers, patient, samples, other, kinship)


def _weights(patient: Patient, other: Path, kinship: Kinship) -> tuple[list[Finding], str]:
    return check_weights_against(patient.model, described(other), kinship), f"against {kinship.other}"


def _layers(patient: Patient, samples: Samples | None, other: Path, kinship: Kinship) -> tuple[list[Finding], str]:
    calls, origin = patient.feeds(None if patient.real_golden else samples)
    found = check_layers_against(patient.model, described(other), calls[0], kinship)
    return found, f"against {kinship.other}, on one of {origin}"


def _diverging(patient: Patient, samples: Samples | None, name: str, progress: Progress) -> tuple[list[Finding], str]:
    """The first layer that an engine computes differently."""
    calls, origin = patient.feeds(None if patient.real_golden else samples)
    found = bisect_graph(
        patient.model, calls[0], engine_name=name, variant=patient.file.name, tolerance=_TOLERANCE, progress=progress
    )
    told = f"{found.tensors} tensors on one of {origin}, largest relative error {found.worst:.1e}"
    if found.node is None:
        return [], told
    evidence = (
        f"'{found.tensor}' ({found.op_type}) is the first that {name} computes differently from ONNX Runtime: relative "
        f"error {found.error:.1e}, at most {found.tolerance:.0e} allowed"
    )
    remedy = "run this model on another engine, or keep the node from this one"
    return [fault("layer-diverges", found.node, evidence, remedy, error=found.error or 0.0)], told
