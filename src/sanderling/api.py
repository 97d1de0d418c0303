"""The public functions, as `sanderling.NAME`; each says the same as the command of its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from sanderling.core.errors import OptionError
from sanderling.core.precision import parse_precisions
from sanderling.core.progress import Progress, Silent
from sanderling.learn.running import learn_run
from sanderling.measure.bench import bench
from sanderling.measure.doctor import doctor, leaks
from sanderling.measure.inspection import inspect
from sanderling.measure.text import bench_text
from sanderling.measure.tune import TuneResult
from sanderling.measure.tune import tune as measure_candidates
from sanderling.measure.verify import verify
from sanderling.model.learning import Backbone, OptimizerKind
from sanderling.model.plan import Objective
from sanderling.run.policy.document import Policy, read_policy
from sanderling.run.pool import Pool
from sanderling.run.session import load

if TYPE_CHECKING:
    from sanderling.measure.remote.results import DeviceBench
    from sanderling.workshop.learning.apply import Applied
    from sanderling.workshop.multimodal.pipeline import MultimodalBuildResult
    from sanderling.workshop.pipeline import BuildResult
    from sanderling.workshop.targets.checking import CheckResult
    from sanderling.workshop.targets.exporting import ExportResult
    from sanderling.workshop.text.pipeline import TextBuildResult

__all__ = [
    "Policy",
    "Pool",
    "bench",
    "bench_on",
    "bench_text",
    "build",
    "build_multimodal",
    "build_text",
    "check",
    "doctor",
    "export",
    "finetune_quantized",
    "inspect",
    "leaks",
    "learn_apply",
    "learn_prepare",
    "learn_run",
    "load",
    "read_policy",
    "tune",
    "verify",
]


def bench_on(
    path: str | Path,
    on: str,
    *,
    variants: Sequence[str] = (),
    threads: int = 0,
    batch: int = 1,
    warmup: int = 10,
    repeats: int = 100,
    command: str = "sanderling",
    runner: str | Path | None = None,
    progress: Progress | None = None,
) -> DeviceBench:
    """Verify and time a package on a device, keep the numbers in the package's evidence, and show them in its report.

    Args:
        path: the package, a folder or a zip.
        on: ``ssh:[USER@]HOST[:PORT]`` or ``hdc:KEY``.
        variants: ids; all without any.
        threads: of one call; 0 means all cores there.
        batch: rows of one call.
        warmup: untimed calls of each.
        repeats: timed calls of each.
        command: that starts Sanderling there.
        runner: folder with `bin/sanderling-run` and `lib/libonnxruntime.so` for a device without Sanderling, built by
            the scripts of an export to ``openharmony``.
        progress: told about each step.

    Raises:
        OptionError: an unknown variant, or ``on`` names no device.
        PackageError: the package is broken.
        UnavailableError: the device does not answer, or has not what is needed.
        EngineError: something failed or took too long there.
        NotMetError: the device does not compute what the package says; nothing is kept.
    """
    from sanderling.measure.remote.bench import bench_on as run_bench_on
    from sanderling.measure.remote.devices import RemoteOptions
    from sanderling.workshop.report.refresh import refresh_report

    there = RemoteOptions(
        tuple(variants), threads, batch, warmup, repeats, command, Path(runner) if runner is not None else None
    )
    found = run_bench_on(path, on, there, progress)
    refresh_report(path, progress or Silent())
    return found


def build(
    source: str | Path,
    output: str | Path,
    *,
    inputs: Sequence[str] = (),
    weights: str | Path | None = None,
    reference: str | Path | None = None,
    factory_arguments: Mapping[str, Any] | None = None,
    dynamic: Sequence[str] = (),
    opset: int = 18,
    calibration: str | Path | None = None,
    evaluation: str | Path | None = None,
    budget: str | None = None,
    precision: str | None = None,
    group_size: int = 32,
    float_embeddings: bool = False,
    mixed_from: str | Path | None = None,
    layers_float: int | None = None,
    preprocess: str | None = None,
    labels: str | None = None,
    detection: str | None = None,
    trust_pickle: bool = False,
    task: str | None = None,
    tokenizer: str | Path | None = None,
    threads: int = 0,
    repeats: int = 100,
    seed: int = 0,
    progress: Progress | None = None,
) -> BuildResult:
    """Build a package; the arguments are the options of ``sanderling build``.

    Args:
        source: ``FILE.onnx``, ``FILE.pt2``, ``package.module:factory``, or a pickled module.
        output: ``NAME.sdl`` (a folder) or ``NAME.sdl.zip``.
        inputs: ``NAME=1,3,224,224`` or ``NAME=1,16:int64`` each.
        weights: checkpoint for a factory.
        reference: ONNX file of the float model that a quantised source was made from.
        factory_arguments: keyword arguments of the factory.
        dynamic: ``["batch"]`` makes the first axis dynamic.
        opset: of the export.
        calibration: folder of pictures, CSV or ``.npz``.
        evaluation: folder, CSV or ``.npz``, with labels if there are any.
        budget: ``top1=0.8``, ``map=1``, ``agreement=2`` or ``cosine=0.001``.
        precision: a part of ``fp32,fp16,int8,int8-weights,int4-weights``; all that the data allows by default, the last
            two for transformers only.
        group_size: 16, 32, 64, 128 or 256 weights share a scale in ``int8-weights`` and ``int4-weights``.
        float_embeddings: leave embedding tables in float in these two.
        mixed_from: package of the same model that holds a search for mixed precision: ``mixed`` is made like the point
            of its front with ``layers_float`` blocks in float, without a new search.
        layers_float: number of blocks in float of that point.
        preprocess: ``imagenet``, ``unit``, JSON or a file of it.
        labels: a file with one class a line, or ``imagenet``.
        detection: a family of detectors, such as ``yolox``, JSON of how the outputs are read, or a file of it; needed
            where the outputs' shapes do not show it.
        trust_pickle: allow a pickled module, which runs code from its file.
        task: ``embeddings`` for a model of sentences, whose package holds its tokenizer.
        tokenizer: ``tokenizer.json`` of that model.
        threads: of each measured call; 0 means all usable cores.
        repeats: timed calls of each variant.
        seed: of everything random.
        progress: told about stages, steps and events.

    Raises:
        InputError: source, options or data cannot be used; nothing is written.
        UnavailableError: an extra is missing.
    """
    from sanderling.workshop.options import BuildOptions, check_group_size, parse_budget, parse_dynamic, parse_input
    from sanderling.workshop.pipeline import build as run_build

    options = BuildOptions(
        source=str(source),
        output=Path(output),
        weights=Path(weights) if weights else None,
        reference=Path(reference) if reference else None,
        factory_arguments=dict(factory_arguments or {}),
        inputs=tuple(parse_input(text) for text in inputs),
        dynamic_batch=parse_dynamic(list(dynamic)),
        opset=opset,
        calibration=Path(calibration) if calibration else None,
        evaluation=Path(evaluation) if evaluation else None,
        budget=parse_budget(budget) if budget else None,
        precisions=parse_precisions(precision) if precision else None,
        group_size=check_group_size(group_size),
        float_embeddings=float_embeddings,
        mixed_from=Path(mixed_from) if mixed_from else None,
        layers_float=layers_float,
        preprocess=preprocess,
        labels=labels,
        detection=detection,
        trust_pickle=trust_pickle,
        task=task,
        tokenizer=Path(tokenizer) if tokenizer else None,
        threads=threads,
        repeats=repeats,
        seed=seed,
    )
    return run_build(options, progress)


def build_text(
    source: str | Path,
    output: str | Path,
    *,
    precision: str | None = None,
    budget: str | None = None,
    calibration: str | Path | None = None,
    evaluation: str | Path | None = None,
    threads: int = 0,
    progress: Progress | None = None,
) -> TextBuildResult:
    """Build a package of a language model: ``sanderling build --task text-generation``.

    Args:
        source: a Hugging Face folder with safetensors, or a GGUF file.
        output: ``NAME.sdl`` (a folder) or ``NAME.sdl.zip``.
        precision: a part of ``fp32,fp16,int8,int4``; ``int8`` by default.
        budget: ``perplexity=5``: by how many percent perplexity may rise over FP32's. Without one int8 is held to 5,
            and int4 has four bits everywhere but in the head and the embedding.
        calibration: text file to decide on; prose and docstrings that are always there by default.
        evaluation: text file to report on; other such texts by default.
        threads: of each measured call; 0 means all usable cores.
        progress: told about stages, steps and events.

    Raises:
        InputError: source, options or texts cannot be used; nothing is written.
        UnavailableError: an extra is missing.
    """
    from sanderling.workshop.options import parse_budget
    from sanderling.workshop.text.options import TextBuildOptions, check_budget, parse_text_precisions
    from sanderling.workshop.text.pipeline import build_text as run_build

    options = TextBuildOptions(
        source=str(source),
        output=Path(output),
        precisions=parse_text_precisions(precision),
        budget=check_budget(parse_budget(budget) if budget else None),
        calibration=Path(calibration) if calibration else None,
        evaluation=Path(evaluation) if evaluation else None,
        threads=threads,
    )
    return run_build(options, progress)


def build_multimodal(
    source: str | Path,
    output: str | Path,
    *,
    task: str,
    weights: str | Path | None = None,
    factory_arguments: Mapping[str, Any] | None = None,
    precision: str | None = None,
    budget: str | None = None,
    calibration: str | Path | None = None,
    evaluation: str | Path | None = None,
    threads: int = 0,
    repeats: int = 100,
    seed: int = 0,
    progress: Progress | None = None,
) -> MultimodalBuildResult:
    """Build a package of several branches: ``sanderling build --task visual-question-answering`` and the like.

    Args:
        source: ``package.module:factory`` that returns a ``sanderling.workshop.multimodal.BranchedModel``, or for
            matching a Hugging Face folder of a CLIP or SigLIP.
        output: ``NAME.sdl`` (a folder) or ``NAME.sdl.zip``.
        task: ``visual-question-answering`` or ``image-text-matching``.
        weights: checkpoint of a factory's branches; its keys begin with their names.
        factory_arguments: keyword arguments of the factory.
        precision: ``fp32`` or ``fp32,int8``; both by default.
        budget: of the whole: ``top1=1`` or ``agreement=2``.
        calibration: CSV with the columns picture, question (or text) and answer; INT8 needs it.
        evaluation: another one; a quarter of the calibration pictures is held out without it.
        threads: of each measured call; 0 means all usable cores.
        repeats: timed calls of each variant.
        seed: of everything random.
        progress: told about stages, steps and events.

    Raises:
        InputError: source, options or data cannot be used; nothing is written.
        UnavailableError: an extra is missing.
    """
    from sanderling.workshop.multimodal.options import MultimodalBuildOptions
    from sanderling.workshop.multimodal.pipeline import build_multimodal as run_build
    from sanderling.workshop.options import parse_budget

    options = MultimodalBuildOptions(
        source=str(source),
        output=Path(output),
        task=task,
        weights=Path(weights) if weights else None,
        factory_arguments=dict(factory_arguments or {}),
        calibration=Path(calibration) if calibration else None,
        evaluation=Path(evaluation) if evaluation else None,
        budget=parse_budget(budget) if budget else None,
        precisions=parse_precisions(precision or "fp32,int8"),
        threads=threads,
        repeats=repeats,
        seed=seed,
    )
    return run_build(options, progress)


def finetune_quantized(
    source: str,
    output: str | Path,
    *,
    data: str | Path,
    inputs: Sequence[str],
    weights: str | Path | None = None,
    factory_arguments: Mapping[str, Any] | None = None,
    epochs: int = 2,
    learning_rate: float = 1e-4,
    batch: int = 128,
    distillation: float = 0.9,
    samples: int = 10_000,
    dynamic: Sequence[str] = (),
    opset: int = 18,
    evaluation: str | Path | None = None,
    budget: str | None = None,
    preprocess: str | None = None,
    labels: str | None = None,
    threads: int = 0,
    repeats: int = 100,
    seed: int = 0,
    progress: Progress | None = None,
) -> BuildResult:
    """Train a classifier with INT8's rounding in its forward pass, and build a package of the result.

    Args:
        source: ``package.module:factory``.
        output: ``NAME.sdl`` (a folder) or ``NAME.sdl.zip``.
        data: labelled training data: folder of pictures, CSV or ``.npz``.
        inputs: ``NAME=1,3,224,224`` for each argument of ``forward()``.
        weights: checkpoint of the trained float model.
        factory_arguments: keyword arguments of the factory.
        epochs: passes over the training data.
        learning_rate: highest one of AdamW; it falls to 0 along a cosine.
        batch: samples a step.
        distillation: share of the loss that asks for the float model's outputs instead of the labels.
        samples: most training samples of an epoch, others in each; 0 means all.
        dynamic: ``["batch"]`` makes the first axis dynamic.
        opset: of the export.
        evaluation: data to measure accuracy on; a quarter of ``data`` is held out without it.
        budget: ``top1=0.8``, ``agreement=2`` or ``cosine=0.001``.
        preprocess: ``imagenet``, ``unit``, JSON or a file of it.
        labels: a file with one class a line, or ``imagenet``.
        threads: of training and of each measured call; 0 chooses by the model's size, and all usable cores.
        repeats: timed calls of each variant.
        seed: of everything random.
        progress: told about stages, steps and events.

    Raises:
        InputError: source, options or data cannot be used; nothing is written.
        NotMetError: the loss is not finite; nothing is written.
        UnavailableError: an extra is missing.
    """
    from sanderling.workshop.finetuning import finetune
    from sanderling.workshop.options import BuildOptions, TrainingOptions, parse_budget, parse_dynamic, parse_input

    options = BuildOptions(
        source=source,
        output=Path(output),
        weights=Path(weights) if weights else None,
        factory_arguments=dict(factory_arguments or {}),
        inputs=tuple(parse_input(text) for text in inputs),
        dynamic_batch=parse_dynamic(list(dynamic)),
        opset=opset,
        calibration=Path(data),
        evaluation=Path(evaluation) if evaluation else None,
        budget=parse_budget(budget) if budget else None,
        preprocess=preprocess,
        labels=labels,
        threads=threads,
        repeats=repeats,
        seed=seed,
    )
    training = TrainingOptions(epochs, learning_rate, batch, distillation, samples)
    return finetune(options, training, progress)


def learn_prepare(
    source: str,
    output: str | Path,
    *,
    inputs: Sequence[str],
    loss: str,
    trainable: str = "head",
    weights: str | Path | None = None,
    factory_arguments: Mapping[str, Any] | None = None,
    optimizers: Sequence[str] = ("sgd", "adamw"),
    backbone: str = "fp32",
    batch: int | None = None,
    private: bool = True,
    calibration: str | Path | None = None,
    preprocess: str | None = None,
    labels: str | None = None,
    trust_pickle: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> BuildResult:
    """Trace a model's forward and backward pass once, and write a task that a device trains.

    Args:
        source: ``package.module:factory``, or a pickled module.
        output: ``NAME.sdl`` (a folder) or ``NAME.sdl.zip``.
        inputs: ``NAME=1,3,224,224`` for each argument of ``forward()``.
        loss: ``cross_entropy``, ``mse``, ``bce``, ``cosine`` or ``contrastive``, with options as
            ``cross_entropy:smoothing=0.1``.
        trainable: ``head``, ``lora:r=8``, ``full``, or a regular expression that finds parameters.
        weights: checkpoint of the model.
        factory_arguments: keyword arguments of the factory.
        optimizers: kinds to make graphs for.
        backbone: ``fp32``, ``fp16`` or ``int8``: in what frozen weights are stored.
        batch: samples of a training batch; any number without it.
        private: make the gradient step of differential privacy as well, where that is possible.
        calibration: data that golden vectors are taken from.
        preprocess: ``imagenet``, ``unit``, JSON or a file of it.
        labels: a file with one class a line, or ``imagenet``.
        trust_pickle: allow a pickled module, which runs code from its file.
        seed: of everything random.
        progress: told about stages, steps and events.

    Raises:
        InputError: source or options cannot be used, or an operator has no backward; nothing is written.
        NotMetError: the graphs' gradients are not PyTorch's; nothing is written.
        UnavailableError: an extra is missing.
    """
    from sanderling.workshop.learning.options import LearningOptions, parse_loss
    from sanderling.workshop.learning.prepare import prepare
    from sanderling.workshop.options import BuildOptions, parse_input

    options = BuildOptions(
        source=source,
        output=Path(output),
        weights=Path(weights) if weights else None,
        factory_arguments=dict(factory_arguments or {}),
        inputs=tuple(parse_input(text) for text in inputs),
        calibration=Path(calibration) if calibration else None,
        preprocess=preprocess,
        labels=labels,
        trust_pickle=trust_pickle,
        seed=seed,
    )
    learning = LearningOptions(
        loss=parse_loss(loss),
        trainable=trainable,
        optimizers=_known("optimizer", optimizers, OptimizerKind),
        backbone=_known("backbone", [backbone], Backbone)[0],
        private=private,
        batch=batch,
    )
    return prepare(options, learning, progress)


def learn_apply(
    path: str | Path,
    checkpoint: str | Path,
    output: str | Path,
    *,
    calibration: str | Path | None = None,
    evaluation: str | Path | None = None,
    budget: str | None = None,
    precision: str | None = None,
    threads: int = 0,
    repeats: int = 100,
    seed: int = 0,
    progress: Progress | None = None,
) -> Applied:
    """Put what a device learned into the task's model, and build a package of it: ``sanderling learn apply``.

    Args:
        path: the task, a folder or a zip.
        checkpoint: that ``learn_run`` wrote.
        output: ``NAME.sdl`` (a folder) or ``NAME.sdl.zip``.
        calibration: folder of pictures, CSV or ``.npz``.
        evaluation: folder, CSV or ``.npz``, with labels if there are any.
        budget: ``top1=0.8``, ``agreement=2`` or ``cosine=0.001``.
        precision: a part of ``fp32,fp16,int8``; all that the data allows by default.
        threads: of each measured call; 0 means all usable cores.
        repeats: timed calls of each variant.
        seed: of everything random.
        progress: told about stages, steps and events.

    Raises:
        PackageError: the package is broken, or is no task.
        WeightsError: the checkpoint is unreadable, or of another task.
        InputError: options or data cannot be used; nothing is written.
    """
    from sanderling.workshop.learning.apply import apply
    from sanderling.workshop.options import BuildOptions, parse_budget

    options = BuildOptions(
        source=str(path),
        output=Path(output),
        calibration=Path(calibration) if calibration else None,
        evaluation=Path(evaluation) if evaluation else None,
        budget=parse_budget(budget) if budget else None,
        precisions=parse_precisions(precision) if precision else None,
        threads=threads,
        repeats=repeats,
        seed=seed,
    )
    return apply(options, Path(checkpoint), progress)


def tune(
    path: str | Path,
    *,
    objective: Objective = "latency",
    seconds: float = 60.0,
    engines: Sequence[str] = (),
    progress: Progress | None = None,
) -> TuneResult:
    """Measure what runs the package best here, write plan and numbers into it, and show them in its report.

    The report stays as it is where the ``build`` extra is missing; a ``report-not-updated`` event says so.

    Args:
        path: the package, a folder or a zip.
        objective: ``latency`` of one row, ``throughput`` in rows a second over batch sizes, or ``memory``.
        seconds: for the race; loading and checking come on top.
        engines: only these; all that are installed without any.
        progress: told about each step.

    Raises:
        OptionError: an unknown engine, or a time that is not positive.
        NotMetError: no candidate loads and computes what the package says.
    """
    from sanderling.model.package import Package
    from sanderling.workshop.report.refresh import refresh_report

    result = measure_candidates(path, objective=objective, seconds=seconds, engines=engines, progress=progress)
    if Package.open(path, check_files=False).manifest.text is None:  # a language model's report is of its build
        refresh_report(path, progress or Silent())
    return result


def check(
    path: str | Path,
    *,
    target: str,
    device: str | None = None,
    variant: str | None = None,
    progress: Progress | None = None,
) -> CheckResult:
    """Say what a target refuses of a model, before anything is converted.

    Args:
        path: an ONNX file, or a package (a folder or a zip).
        target: such as ``openvino``; ``sanderling export --list`` lists them.
        device: one of the target's; its first by default.
        variant: id; by default those that ``export`` would take.
        progress: told about stages and steps.

    Raises:
        OptionError: an unknown target, device or variant.
        ModelError: the file cannot be read.
        PackageError: the package is broken.
    """
    from sanderling.workshop.targets.checking import check as run_check

    return run_check(path, target_name=target, device=device, variant=variant, progress=progress)


def export(
    path: str | Path,
    output: str | Path,
    *,
    target: str,
    device: str | None = None,
    variant: str | None = None,
    options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> ExportResult:
    """Write what the devices of a target run, proved here as far as a machine without them can.

    Args:
        path: the package, a folder or a zip.
        output: folder; one that an earlier export wrote is replaced.
        target: such as ``openvino``; ``sanderling export --list`` lists them.
        device: one of the target's; its first by default.
        variant: id; the target's own choice by default.
        options: of the target, by name.
        progress: told about stages, steps and events.

    Raises:
        OptionError: an unknown target, device, variant or option, or values that exclude each other.
        PackageError: the package is broken.
        ModelError: the target refuses an operator, a shape or a dtype; nothing is written.
        UnavailableError: a tool is missing; the message says how to get it.
        EngineError: a tool failed, crashed or took too long.
        NotMetError: the files do not compute what the package says; nothing is kept.
        OutputError: the folder cannot be written, or is no export.
    """
    from sanderling.workshop.targets.exporting import export as run_export

    return run_export(
        path, output, target_name=target, device=device, variant=variant, options=options, progress=progress
    )


def _known(what: str, given: Sequence[str], kinds: Any) -> tuple[Any, ...]:  # noqa: ANN401 - a Literal
    """What was given, each one of a Literal's values.

    Raises:
        OptionError: one is none of them.
    """
    wrong = [each for each in given if each not in get_args(kinds)]
    if wrong or not given:
        raise OptionError(f"{what} '{wrong[0] if wrong else ''}' is unknown: expected {', '.join(get_args(kinds))}")
    return tuple(given)
