"""`sanderling learn`: make a task, train it on this device, and build a package of what it learned."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sanderling.cli.output import ANSWER_IS_NO, print_result, reporting_errors

if TYPE_CHECKING:
    from rich.console import Console

    from sanderling.learn.federated import FederatedOptions
    from sanderling.learn.fitting import FitResult

learn = typer.Typer(
    name="learn",
    help="Train a model on a device: prepare a task, run it, apply what was learned.",
    no_args_is_help=True,
    add_completion=False,
)

Task = Annotated[Path, typer.Argument(metavar="TASK", help="Task that learn prepare wrote, a folder or a zip.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="NAME.sdl, or NAME.sdl.zip for a single file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Threads = Annotated[int, typer.Option(min=0, help="Threads of one call; 0 means all usable cores.")]
Seed = Annotated[int, typer.Option(min=0, help="Of everything random.")]


@learn.command()
def prepare(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="package.module:factory, or a pickled module.")],
    inputs: Annotated[
        list[str],
        typer.Option("--input", metavar="NAME=SHAPE[:DTYPE]", help="Such as input=1,3,224,224; repeatable."),
    ],
    loss: Annotated[
        str, typer.Option(help="cross_entropy, mse, bce, cosine or contrastive; as cross_entropy:smoothing=0.1.")
    ],
    output: Output,
    trainable: Annotated[
        str, typer.Option(help="head, lora:r=8, full, or a regular expression that finds parameters.")
    ] = "head",
    weights: Annotated[Path | None, typer.Option(help="Checkpoint of the model.")] = None,
    factory_args: Annotated[str, typer.Option(metavar="JSON", help="Keyword arguments of the factory.")] = "{}",
    optimizers: Annotated[
        list[str], typer.Option("--optimizer", help="sgd or adamw; repeatable; both by default.")
    ] = [],  # noqa: B006 - typer reads the default
    backbone: Annotated[str, typer.Option(help="fp32, fp16 or int8: in what frozen weights are stored.")] = "fp32",
    batch: Annotated[int | None, typer.Option(min=1, help="Samples of a batch; any number without it.")] = None,
    no_private: Annotated[
        bool, typer.Option("--no-private", help="Leave out the step of differential privacy.")
    ] = False,
    calibration: Annotated[Path | None, typer.Option(help="Data that golden vectors are taken from.")] = None,
    preprocess: Annotated[str | None, typer.Option(help="imagenet, unit, JSON, or a file of it.")] = None,
    labels: Annotated[str | None, typer.Option(help="File with one class a line, or imagenet.")] = None,
    trust_pickle: Annotated[
        bool, typer.Option("--trust-pickle", help="Load a pickled module: it runs its code.")
    ] = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Trace a PyTorch model's forward and backward pass once, and write a task that a device trains."""
    with reporting_errors(as_json=as_json):
        from sanderling.api import learn_prepare
        from sanderling.cli.app import _import_from_here
        from sanderling.cli.progress import RichProgress
        from sanderling.core.json_text import json_object

        _import_from_here()
        with RichProgress() as progress:
            result = learn_prepare(
                source,
                output,
                inputs=inputs,
                loss=loss,
                trainable=trainable,
                weights=weights,
                factory_arguments=json_object(factory_args, "--factory-args"),
                optimizers=optimizers or ("sgd", "adamw"),
                backbone=backbone,
                batch=batch,
                private=not no_private,
                calibration=calibration,
                preprocess=preprocess,
                labels=labels,
                trust_pickle=trust_pickle,
                seed=seed,
                progress=progress,
            )
        spec = result.manifest.learning
        assert spec is not None
        value = {"package": str(result.path), "learning": spec.model_dump(mode="json")}
        print_result(value, as_json=as_json, show=lambda console: _show_task(console, str(result.path), spec))


@learn.command()
def run(
    task: Task,
    data: Annotated[
        Path, typer.Option(help="Folder with a folder for each class, CSV, or .npz with the inputs and label.")
    ],
    epochs: Annotated[int, typer.Option(min=1, help="In all, those before a resumed checkpoint included.")] = 1,
    batch: Annotated[int, typer.Option(min=1, help="Samples of a micro-batch.")] = 32,
    accumulate: Annotated[int, typer.Option(min=1, help="Micro-batches of an update.")] = 1,
    optimizer: Annotated[str, typer.Option(help="adamw or sgd, with settings as sgd:momentum=0.8.")] = "adamw",
    learning_rate: Annotated[
        float | None, typer.Option("--lr", help="Highest learning rate; 1e-3 for adamw, 1e-2 for sgd by default.")
    ] = None,
    schedule: Annotated[
        str, typer.Option(help="constant, cosine or step, as cosine:warmup=10 or step:every=100,factor=0.5.")
    ] = "constant",
    clip: Annotated[float | None, typer.Option(help="Norm of an update's gradients that is not passed.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Saved here, and gone on from if it is there.")] = None,
    save_every: Annotated[int, typer.Option(min=0, help="Updates between two checkpoints; 0: after each epoch.")] = 0,
    evaluation: Annotated[Path | None, typer.Option("--eval", help="Data that chooses the best parameters.")] = None,
    holdout: Annotated[float, typer.Option(help="Share of the data to evaluate on instead, such as 0.1.")] = 0.0,
    patience: Annotated[
        int, typer.Option(min=0, help="Evaluations without a lower loss that end training; 0: never.")
    ] = 0,
    new_data: Annotated[
        bool, typer.Option("--new-data", help="The data may differ from the checkpoint's: epochs begin anew.")
    ] = False,
    privacy: Annotated[
        str | None, typer.Option("--dp", metavar="TARGET", help="Differential privacy: epsilon=8,delta=1e-5,clip=1.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="Train only while this policy's section training allows it; pause otherwise.")
    ] = None,
    give_up: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="End after so long a pause; never by default.")
    ] = None,
    features: Annotated[
        str, typer.Option(help="Compute the frozen part once: auto (where it pays), on or off.")
    ] = "auto",
    federated: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Train in the rounds of this Flower server.")
    ] = None,
    certificates: Annotated[
        Path | None, typer.Option("--root-certificates", help="That the Flower server is known by.")
    ] = None,
    engine: Annotated[str, typer.Option(help="That computes; it must give PyTorch's own gradients.")] = "onnxruntime",
    threads: Threads = 0,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Train a task on this device, without PyTorch; goes on where its checkpoint stopped."""
    with reporting_errors(as_json=as_json):
        from sanderling.cli.progress import RichProgress

        if federated is not None:
            from sanderling.learn.federated import FederatedOptions

            _refuse_with_federated(
                {
                    "--checkpoint": checkpoint,
                    "--save-every": save_every,
                    "--holdout": holdout,
                    "--patience": patience,
                    "--new-data": new_data,
                    "--dp": privacy,
                    "--policy": policy,
                    "--clip": clip,
                    "--schedule": schedule != "constant",
                    "--features on": features == "on",
                }
            )
            options = FederatedOptions(
                server=federated,
                task=str(task),
                data=str(data),
                evaluation=str(evaluation) if evaluation else None,
                epochs=epochs,
                batch=batch,
                optimizer=optimizer,
                learning_rate=learning_rate,
                accumulate=accumulate,
                seed=seed,
                threads=threads,
                root_certificates=str(certificates) if certificates else None,
            )
            _join(options, as_json=as_json)
            return
        from sanderling.learn.running import learn_run

        if policy is not None:
            _step_back()
        with RichProgress() as progress:
            result = learn_run(
                task,
                data,
                epochs=epochs,
                batch=batch,
                optimizer=optimizer,
                learning_rate=learning_rate,
                schedule=schedule,
                accumulate=accumulate,
                clip_norm=clip,
                evaluation=evaluation,
                holdout=holdout,
                patience=patience,
                checkpoint=checkpoint,
                save_every=save_every,
                new_data=new_data,
                privacy=privacy,
                policy=policy,
                give_up_s=math.inf if give_up is None else give_up,
                features=_switch(features),
                engine=engine,
                threads=threads,
                seed=seed,
                progress=progress,
            )
        print_result(
            result.model_dump(mode="json"), as_json=as_json, show=lambda console: _show_run(console, task, result)
        )


@learn.command()
def apply(
    task: Task,
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="That learn run wrote.")],
    output: Output,
    calibration: Annotated[Path | None, typer.Option(help="Folder of pictures, CSV or .npz; INT8 needs it.")] = None,
    evaluation: Annotated[
        Path | None, typer.Option("--eval", help="Folder, CSV or .npz to measure accuracy on.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="top1=0.8, agreement=2 (points) or cosine=0.001; held against FP32.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="Such as fp32,int8; all that the data allows by default.")
    ] = None,
    threads: Threads = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Timed calls of each variant.")] = 100,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Put trained parameters into the model, fold adapters, and build a verified package of it."""
    with reporting_errors(as_json=as_json):
        from sanderling.api import learn_apply
        from sanderling.cli.progress import RichProgress

        with RichProgress() as progress:
            applied = learn_apply(
                task,
                checkpoint,
                output,
                calibration=calibration,
                evaluation=evaluation,
                budget=budget,
                precision=precision,
                threads=threads,
                repeats=repeats,
                seed=seed,
                progress=progress,
            )
        value = {**applied.result.summary(), "updates": applied.step, "folded": list(applied.folded)}

        def show(console: Console) -> None:
            from sanderling.cli import present

            present.build_result(console, applied.result)
            folded = f", {len(applied.folded)} adapters folded" if applied.folded else ""
            console.print(f"trained: {applied.step} updates{folded}", soft_wrap=True, markup=False)

        print_result(value, as_json=as_json, show=show)
        if budget is not None and applied.result.budget_missed:
            raise typer.Exit(ANSWER_IS_NO)


def _show_task(console: Console, path: str, spec: Any) -> None:  # noqa: ANN401 - a LearningSpec
    from sanderling.cli.present import megabytes, table

    count = sum(math.prod(parameter.shape) for parameter in spec.parameters)
    rows = [
        ["trains", f"{spec.trainable}: {len(spec.parameters)} parameters, {megabytes(4 * count)}"],
        ["loss", spec.loss.kind],
        ["optimisers", ", ".join(graph.kind for graph in spec.optimizers)],
        ["gradients", f"largest relative error {spec.golden.error:.1e}, {spec.golden.tolerance:g} is allowed"],
        ["privacy", spec.private.refused or f"clips each sample ({spec.private.route})"],
    ]
    if spec.features is not None:
        rows.append(["features", f"{100 * spec.features.macs_share:.0f} % of the forward pass can be computed once"])
    rows += [["note", note] for note in spec.notes]
    console.print(table([("task", False), (path, False)], rows))
    console.print(
        f"next: sanderling learn run {path} --data DIR --checkpoint ck.safetensors", soft_wrap=True, markup=False
    )


def _show_run(console: Console, task: Path, result: FitResult) -> None:
    from sanderling.cli.present import table

    first = result.epochs - len(result.losses) + 1
    rows = []
    for place, loss in enumerate(result.losses):
        found = result.evaluations[place] if place < len(result.evaluations) else None
        accuracy = f"{100 * found.accuracy:.1f} %" if found is not None and found.accuracy is not None else "–"
        told = f"{loss:.4g}" if loss is not None else "–"
        rows.append([str(first + place), told, f"{found.loss:.4g}" if found else "–", accuracy])
    if rows:
        console.print(table([("epoch", True), ("loss", True), ("evaluation", True), ("accuracy", True)], rows))
    told = f"{result.updates} updates on {result.samples} samples"
    resumed = f", {result.resumed_from} of them from the checkpoint" if result.resumed_from else ""
    console.print(f"{told}{resumed}{'; stopped early' if result.stopped_early else ''}", soft_wrap=True)
    if result.privacy is not None:
        spent = result.privacy
        console.print(
            f"privacy: epsilon {spent.epsilon:.3g} at delta {spent.delta:g} for each of {spent.samples} samples, by "
            "Poisson sampling, clipping and noise; losses shown here are not part of it",
            soft_wrap=True,
        )
    best = result.best_checkpoint or result.checkpoint
    if best is not None:
        console.print(f"next: sanderling learn apply {task} {best} -o adapted.sdl", soft_wrap=True, markup=False)
    else:
        console.print("nothing was saved: give --checkpoint ck.safetensors", soft_wrap=True)


def _join(options: FederatedOptions, *, as_json: bool) -> None:
    from dataclasses import asdict

    from sanderling.cli.progress import RichProgress
    from sanderling.learn.federated import join

    with RichProgress() as progress:
        rounds = join(options, progress)
    told = f"{rounds.fits} rounds trained, {rounds.evaluations} evaluated with {options.server}"
    last = f"; last loss {rounds.loss:.4g}" if rounds.loss is not None else ""
    print_result(asdict(rounds), as_json=as_json, show=lambda console: console.print(told + last, soft_wrap=True))


def _refuse_with_federated(others: dict[str, object]) -> None:
    from sanderling.core.errors import OptionError

    given = [name for name, value in others.items() if value]
    if given:
        raise OptionError(f"{given[0]} has no meaning with --federated: the server keeps rounds and parameters")


def _step_back() -> None:
    """Let every other process go first: the lowest priority that the system has."""
    import psutil

    try:
        psutil.Process().nice(19 if sys.platform != "win32" else psutil.IDLE_PRIORITY_CLASS)
    except (psutil.Error, OSError) as error:
        sys.stderr.write(f"note: priority-kept: this process (the system does not let it step back: {error})\n")


def _switch(text: str) -> bool | None:
    from sanderling.core.errors import OptionError

    known = {"auto": None, "on": True, "off": False}
    if text not in known:
        raise OptionError(f"--features '{text}' is unknown: expected auto, on or off")
    return known[text]
