"""The commands and their options. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sanderling.cli import detecting, exporting, vision
from sanderling.cli.learning import learn
from sanderling.cli.multimodal import ask, match
from sanderling.cli.output import ANSWER_IS_NO, print_result, reporting_errors
from sanderling.cli.policy import policy
from sanderling.cli.replaying import replay
from sanderling.cli.serving import serve
from sanderling.cli.text import chat, generate

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    name="sanderling",
    help="From a PyTorch or ONNX model to a verified package that runs on an edge device.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(policy)
app.add_typer(learn)

Package = Annotated[Path, typer.Argument(metavar="PKG", help="Package folder NAME.sdl, or a zip of one.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Threads = Annotated[int, typer.Option(min=0, help="Threads of one call; 0 means all usable cores.")]


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Print the version, or go on to the command."""
    if show:
        from sanderling import __version__

        sys.stdout.write(f"sanderling {__version__}\n")
        raise typer.Exit


@app.command()
def inspect(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="ONNX file or package.")],
    inputs: Annotated[
        list[str], typer.Option("--input", metavar="NAME=SHAPE", help="Size for dynamic axes, as x=1,3,320,320.")
    ] = [],  # noqa: B006 - typer reads the default
    as_json: Json = False,
) -> None:
    """Show what a model takes, what it costs, and what looks wrong."""
    with reporting_errors(as_json=as_json):
        from sanderling.core.tensor import parse_shape
        from sanderling.measure.inspection import inspect as run_inspect

        found = run_inspect(model, shapes=dict(map(parse_shape, inputs)))
        print_result(
            found.model_dump(mode="json"), as_json=as_json, show=lambda console: _present().inspection(console, found)
        )


@app.command()
def build(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="FILE.onnx, FILE.pt2, package.module:factory, pickled module; language model: folder or GGUF.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="NAME.sdl, or NAME.sdl.zip for a single file.")],
    inputs: Annotated[
        list[str],
        typer.Option("--input", metavar="NAME=SHAPE[:DTYPE]", help="Such as input=1,3,224,224; repeatable."),
    ] = [],  # noqa: B006 - typer reads the default
    weights: Annotated[Path | None, typer.Option(help="Checkpoint for a factory: .safetensors, .pt or .pth.")] = None,
    factory_args: Annotated[str, typer.Option(metavar="JSON", help="Keyword arguments of the factory.")] = "{}",
    reference: Annotated[
        Path | None, typer.Option(help="FILE.onnx: the float model that a quantised source was made from.")
    ] = None,
    dynamic: Annotated[list[str], typer.Option(help="Axes to make dynamic; 'batch' is the only one.")] = [],  # noqa: B006
    opset: Annotated[int, typer.Option(help="ONNX operator set of the export.")] = 18,
    calibration: Annotated[Path | None, typer.Option(help="Folder of pictures, CSV or .npz; INT8 needs it.")] = None,
    evaluation: Annotated[
        Path | None, typer.Option("--eval", help="Folder, CSV or .npz to measure accuracy on.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="top1=0.8, map=1, agreement=2 (points), cosine=0.001, or perplexity=5 (percent).")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="Such as fp32,int8,int4-weights; all that data and model allow by default."),
    ] = None,
    group_size: Annotated[int, typer.Option(help="Of int8-weights and int4-weights: 16, 32, 64, 128 or 256.")] = 32,
    float_embeddings: Annotated[
        bool, typer.Option("--float-embeddings", help="Leave embedding tables in float in these two.")
    ] = False,
    mixed_from: Annotated[
        Path | None, typer.Option(help="Package with a search: take another point of its front, without a new search.")
    ] = None,
    layers_float: Annotated[
        int | None, typer.Option(min=1, help="That point, by its number of blocks in float.")
    ] = None,
    preprocess: Annotated[str | None, typer.Option(help="imagenet, unit, JSON, or a file of it.")] = None,
    labels: Annotated[str | None, typer.Option(help="File with one class a line, or imagenet.")] = None,
    detection: Annotated[
        str | None,
        typer.Option(help="How a detector's outputs are read: yolox, another family, JSON, or a file of it."),
    ] = None,
    trust_pickle: Annotated[
        bool, typer.Option("--trust-pickle", help="Load a pickled module: it runs its code.")
    ] = False,
    task: Annotated[
        str | None,
        typer.Option(
            help="text-generation, embeddings (with --tokenizer), visual-question-answering or image-text-matching."
        ),
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="tokenizer.json of a model of sentences.")] = None,
    threads: Threads = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Timed calls of each variant.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 0,
    tune_seconds: Annotated[
        float,
        typer.Option("--tune", min=0, metavar="SECONDS", help="Then choose engine, threads and variant by a race."),
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Build a verified package: export, simplify, quantise, measure, choose, report."""
    with reporting_errors(as_json=as_json):
        if task == "text-generation":
            from sanderling.cli.text_building import build_language_model, refuse_others

            others = {
                "--input": inputs,
                "--weights": weights,
                "--factory-args": factory_args != "{}",
                "--reference": reference,
                "--dynamic": dynamic,
                "--mixed-from": mixed_from,
                "--layers-float": layers_float,
                "--preprocess": preprocess,
                "--labels": labels,
                "--detection": detection,
                "--trust-pickle": trust_pickle,
                "--float-embeddings": float_embeddings,
                "--tokenizer": tokenizer,
                "--tune": tune_seconds,
            }
            refuse_others(others, f"--task {task}")
            build_language_model(
                source,
                output,
                precision=precision,
                budget=budget,
                calibration=calibration,
                evaluation=evaluation,
                threads=threads,
                as_json=as_json,
            )
            return
        from sanderling.api import build as run_build
        from sanderling.api import tune as run_tune
        from sanderling.cli.progress import RichProgress
        from sanderling.core.json_text import json_object
        from sanderling.model.multimodal import TASKS

        _import_from_here()
        if task in TASKS:
            from sanderling.cli.multimodal import build_branches
            from sanderling.cli.text_building import refuse_others

            others = {
                "--input": inputs,
                "--reference": reference,
                "--dynamic": dynamic,
                "--mixed-from": mixed_from,
                "--layers-float": layers_float,
                "--preprocess": preprocess,
                "--labels": labels,
                "--trust-pickle": trust_pickle,
                "--float-embeddings": float_embeddings,
                "--tokenizer": tokenizer,
                "--tune": tune_seconds,
            }
            refuse_others(others, f"--task {task}")
            build_branches(
                source,
                output,
                task=task,
                weights=weights,
                factory_arguments=json_object(factory_args, "--factory-args"),
                precision=precision,
                budget=budget,
                calibration=calibration,
                evaluation=evaluation,
                threads=threads,
                repeats=repeats,
                seed=seed,
                as_json=as_json,
            )
            return
        with RichProgress() as progress:
            result = run_build(
                source,
                output,
                inputs=inputs,
                weights=weights,
                reference=reference,
                factory_arguments=json_object(factory_args, "--factory-args"),
                dynamic=dynamic,
                opset=opset,
                calibration=calibration,
                evaluation=evaluation,
                budget=budget,
                precision=precision,
                group_size=group_size,
                float_embeddings=float_embeddings,
                mixed_from=mixed_from,
                layers_float=layers_float,
                preprocess=preprocess,
                labels=labels,
                detection=detection,
                trust_pickle=trust_pickle,
                task=task,
                tokenizer=tokenizer,
                threads=threads,
                repeats=repeats,
                seed=seed,
                progress=progress,
            )
            tuned = run_tune(result.path, seconds=tune_seconds, progress=progress) if tune_seconds else None

        def show(console: Console) -> None:
            _present().build_result(console, result)
            if tuned is not None:
                _present().tune_result(console, tuned)

        print_result({**(tuned.summary() if tuned else {}), **result.summary()}, as_json=as_json, show=show)
        if budget is not None and result.budget_missed:
            raise typer.Exit(ANSWER_IS_NO)


@app.command("finetune-quantized")
def finetune_quantized(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="package.module:factory.")],
    data: Annotated[Path, typer.Option(help="Labelled training data: folder of pictures, CSV or .npz.")],
    inputs: Annotated[
        list[str],
        typer.Option("--input", metavar="NAME=SHAPE[:DTYPE]", help="Such as input=1,3,224,224; repeatable."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="NAME.sdl, or NAME.sdl.zip for a single file.")],
    weights: Annotated[Path | None, typer.Option(help="Checkpoint of the float model, which is trained on.")] = None,
    factory_args: Annotated[str, typer.Option(metavar="JSON", help="Keyword arguments of the factory.")] = "{}",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training data.")] = 2,
    learning_rate: Annotated[float, typer.Option("--lr", help="Highest learning rate of AdamW.")] = 1e-4,
    batch: Annotated[int, typer.Option(min=2, help="Samples a training step.")] = 128,
    distillation: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the loss that asks for the float model's outputs.")
    ] = 0.9,
    samples: Annotated[int, typer.Option(min=0, help="Most training samples of an epoch; 0 means all.")] = 10_000,
    dynamic: Annotated[list[str], typer.Option(help="Axes to make dynamic; 'batch' is the only one.")] = [],  # noqa: B006
    opset: Annotated[int, typer.Option(help="ONNX operator set of the export.")] = 18,
    evaluation: Annotated[
        Path | None, typer.Option("--eval", help="Folder, CSV or .npz to measure accuracy on; never trained on.")
    ] = None,
    budget: Annotated[str | None, typer.Option(help="top1=0.8 or agreement=2 (points), or cosine=0.001.")] = None,
    preprocess: Annotated[str | None, typer.Option(help="imagenet, unit, JSON, or a file of it.")] = None,
    labels: Annotated[str | None, typer.Option(help="File with one class a line, or imagenet.")] = None,
    threads: Annotated[int, typer.Option(min=0, help="0: by the model's size to train, all cores to measure.")] = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Timed calls of each variant.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 0,
    as_json: Json = False,
) -> None:
    """Train a classifier for INT8 and build a package of it."""
    with reporting_errors(as_json=as_json):
        from sanderling.api import finetune_quantized as run_finetune
        from sanderling.cli.progress import RichProgress
        from sanderling.core.json_text import json_object

        _import_from_here()
        with RichProgress() as progress:
            result = run_finetune(
                source,
                output,
                data=data,
                inputs=inputs,
                weights=weights,
                factory_arguments=json_object(factory_args, "--factory-args"),
                epochs=epochs,
                learning_rate=learning_rate,
                batch=batch,
                distillation=distillation,
                samples=samples,
                dynamic=dynamic,
                opset=opset,
                evaluation=evaluation,
                budget=budget,
                preprocess=preprocess,
                labels=labels,
                threads=threads,
                repeats=repeats,
                seed=seed,
                progress=progress,
            )
        print_result(
            result.summary(), as_json=as_json, show=lambda console: _present().finetune_result(console, result)
        )
        if budget is not None and result.budget_missed:
            raise typer.Exit(ANSWER_IS_NO)


@app.command()
def run(
    package: Package,
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Pictures, or .npz/.npy for raw outputs.")],
    variant: Annotated[str | None, typer.Option(help="Variant id; the chosen one by default.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many classes to show.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Write raw outputs to this .npz.")] = None,
    threads: Threads = 0,
    require: Annotated[str | None, typer.Option(help="Where it must run, such as npu=95%; fails otherwise.")] = None,
    as_json: Json = False,
) -> None:
    """Run a package on pictures or arrays."""
    with reporting_errors(as_json=as_json):
        from sanderling.cli.running import run_files

        results, show = run_files(package, files, variant=variant, top=top, out=out, threads=threads, require=require)
        print_result(results, as_json=as_json, show=show)


@app.command()
def bench(
    package: Package,
    variants: Annotated[list[str], typer.Option("--variant", help="Variant id; repeatable; all by default.")] = [],  # noqa: B006
    threads: Threads = 0,
    batch: Annotated[int, typer.Option(min=1, help="Rows of one call.")] = 1,
    warmup: Annotated[int, typer.Option(min=0, help="Untimed calls of each variant first.")] = 10,
    repeats: Annotated[int, typer.Option(min=1, help="Timed calls of each variant.")] = 100,
    lean: Annotated[bool, typer.Option("--lean", help="Prefer little memory to the last percent of speed.")] = False,
    table: Annotated[
        Path | None, typer.Option(help="Then time batches on every device here, and add them to this latency table.")
    ] = None,
    batches: Annotated[str, typer.Option(help="Rows of a call that --table times.")] = "1,2,4,8",
    texts: Annotated[
        list[Path], typer.Option("--text", help="Of a language model: file that perplexity is measured on; repeatable.")
    ] = [],  # noqa: B006 - typer reads the default
    on: Annotated[
        str | None,
        typer.Option(metavar="ssh:HOST|hdc:KEY", help="Measure on this device, and keep the result in the package."),
    ] = None,
    command: Annotated[str, typer.Option(help="That starts Sanderling on the device.")] = "sanderling",
    runner: Annotated[
        Path | None, typer.Option(help="Folder of the C++ runner, for a device without Sanderling.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure latency, throughput and memory of each variant, here or on a device."""
    with reporting_errors(as_json=as_json):
        if on is not None or runner is not None:
            from sanderling.cli.remote import bench_there
            from sanderling.measure.remote.devices import RemoteOptions

            there = RemoteOptions(tuple(variants), threads, batch, warmup, repeats, command, runner)
            bench_there(package, on, there, measured_here=lean or table is not None, as_json=as_json)
            return
        from sanderling.cli.text_building import bench_language_model, is_language_model, refuse_others

        if is_language_model(package):
            others = {"--batch": batch > 1, "--lean": lean, "--table": table}
            refuse_others(others, "a language model")
            bench_language_model(
                package, variants=variants, threads=threads, repeats=repeats, texts=texts, as_json=as_json
            )
            return
        refuse_others({"--text": texts}, "a model that is no language model")
        from sanderling.cli.progress import RichProgress
        from sanderling.core.files import require_folder
        from sanderling.measure.batches import measure_table, parse_batches
        from sanderling.measure.bench import bench as run_bench
        from sanderling.run.emulation.table import read_table, write_table

        sizes, measured = parse_batches(batches), None
        if table is not None:
            require_folder(table)
            if table.exists():
                read_table(table)  # a file that is no table is refused before anything is measured
        with RichProgress() as progress:
            result = run_bench(
                package,
                variants=variants,
                threads=threads,
                batch=batch,
                warmup=warmup,
                repeats=repeats,
                lean=lean,
                progress=progress,
            )
            if table is not None:
                measured = measure_table(
                    package, batches=sizes, threads=threads, warmup=warmup, repeats=repeats, progress=progress
                )
                write_table(table, measured)

        def show(console: Console) -> None:
            _present().bench_result(console, result)
            if measured is not None:
                _present().latency_table(console, measured)
                console.print(f"table: {table}", markup=False, soft_wrap=True)

        value = result.model_dump(mode="json")
        print_result(
            value if measured is None else {**value, "table": measured.model_dump(mode="json")},
            as_json=as_json,
            show=show,
        )


@app.command()
def tune(
    package: Package,
    objective: Annotated[str, typer.Option(help="latency, throughput or memory.")] = "latency",
    seconds: Annotated[float, typer.Option(min=0.1, help="For the race; loading and checking come on top.")] = 60.0,
    engines: Annotated[
        list[str], typer.Option("--engine", help="Only this engine; repeatable; all installed by default.")
    ] = [],  # noqa: B006 - typer reads the default
    as_json: Json = False,
) -> None:
    """Measure which engine, variant, threads and batch are best here, and keep the plan in the package."""
    with reporting_errors(as_json=as_json):
        from sanderling.api import tune as run_tune
        from sanderling.cli.progress import RichProgress
        from sanderling.measure.tune import parse_objective

        with RichProgress() as progress:
            result = run_tune(
                package, objective=parse_objective(objective), seconds=seconds, engines=engines, progress=progress
            )
        print_result(result.summary(), as_json=as_json, show=lambda console: _present().tune_result(console, result))


@app.command()
def bisect(
    package: Package,
    engine: Annotated[str, typer.Option("--engine", help="The engine to look at.")],
    variant: Annotated[str | None, typer.Option(help="Variant id; the chosen one by default.")] = None,
    as_json: Json = False,
) -> None:
    """Find the first node whose output an engine computes differently; exit 1 when there is one."""
    with reporting_errors(as_json=as_json):
        from sanderling.cli.progress import RichProgress
        from sanderling.measure.bisect import bisect as run_bisect

        with RichProgress() as progress:
            found = run_bisect(package, engine_name=engine, variant=variant, progress=progress)
        print_result(found.model_dump(), as_json=as_json, show=lambda console: _present().bisection(console, found))
        if found.node is not None:
            raise typer.Exit(ANSWER_IS_NO)


@app.command()
def verify(
    package: Package,
    evaluation: Annotated[
        Path | None, typer.Option("--eval", help="Folder, CSV, .npz, or a language model's text file: measure again.")
    ] = None,
    threads: Threads = 0,
    as_json: Json = False,
) -> None:
    """Check that hashes, golden vectors and accuracy still hold here; exit 1 when one does not."""
    with reporting_errors(as_json=as_json):
        from sanderling.cli.progress import RichProgress
        from sanderling.measure.verify import verify as run_verify

        with RichProgress() as progress:
            result = run_verify(package, evaluation=evaluation, threads=threads, progress=progress)
        print_result(
            result.model_dump(mode="json"),
            as_json=as_json,
            show=lambda console: _present().verify_result(console, result),
        )
        if not result.passed:
            raise typer.Exit(ANSWER_IS_NO)


@app.command()
def doctor(
    model: Annotated[Path, typer.Argument(metavar="MODEL|PKG", help="ONNX file or package.")],
    data: Annotated[
        Path | None,
        typer.Option("--data", "--calibration", help="Folder of pictures, CSV or .npz: what the application feeds."),
    ] = None,
    preprocess: Annotated[
        str | None, typer.Option(help="What the application does to pictures: imagenet, unit, JSON, or a file of it.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(metavar="MODEL|PKG", help="Compare weights and layers with this model.")
    ] = None,
    engines: Annotated[list[str], typer.Option("--engine", help="Compare layers with this engine; repeatable.")] = [],  # noqa: B006 - typer reads the default
    targets: Annotated[
        list[str], typer.Option("--target", help="Engine, or ascend, that must take the model; repeatable.")
    ] = [],  # noqa: B006 - typer reads the default
    cycles: Annotated[int, typer.Option(min=0, help="Load and unload so often, and look for memory that stays.")] = 0,
    as_json: Json = False,
) -> None:
    """Find out what is wrong: graph, weights, inputs, FP16 and INT8 ranges, operators, leaks; exit 1 on a fault."""
    with reporting_errors(as_json=as_json):
        from sanderling.cli.progress import RichProgress
        from sanderling.measure.doctor import doctor as run_doctor

        with RichProgress() as progress:
            found = run_doctor(
                model,
                data=data,
                preprocess=preprocess,
                against=against,
                engines=engines,
                targets=targets,
                cycles=cycles,
                progress=progress,
            )
        print_result(
            found.model_dump(mode="json"), as_json=as_json, show=lambda console: _present().diagnosis(console, found)
        )
        if not found.healthy:
            raise typer.Exit(ANSWER_IS_NO)


@app.command()
def devices(
    install: Annotated[
        str | None,
        typer.Option(metavar="ENGINE", help="Make the environment of its own that this engine needs, such as rknn."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List engines, whether they are installed, the devices that they reach, and the machine's sensors."""
    with reporting_errors(as_json=as_json):
        from dataclasses import asdict

        from sanderling.run.devices import list_engines
        from sanderling.run.sensors import survey_sensors

        if install is not None:
            _install(install, as_json=as_json)
            return
        states, sensors = list_engines(), survey_sensors()
        value = {"engines": [asdict(state) for state in states], "sensors": asdict(sensors)}
        print_result(value, as_json=as_json, show=lambda console: _present().engines(console, states, sensors))


app.command()(exporting.export)
app.command()(exporting.check)
app.command()(replay)
app.command()(serve)
app.command()(generate)
app.command()(chat)
app.command()(ask)
app.command()(match)
app.command()(vision.classify)
app.command()(detecting.detect)


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the package and the photos.")] = Path(
        "demo-output"
    ),
    as_json: Json = False,
) -> None:
    """Take EfficientNet-Lite0 from PyTorch to INT8, prove it, and classify real photos."""
    with reporting_errors(as_json=as_json):
        from sanderling.cli.progress import RichProgress
        from sanderling.demo.story import tell

        with RichProgress() as progress:
            story = tell(output, progress)
        print_result(story.summary(), as_json=as_json, show=lambda console: _present().story(console, story))


def _install(name: str, *, as_json: bool) -> None:
    from sanderling.cli.progress import RichProgress
    from sanderling.core.files import folder_size_bytes
    from sanderling.learn.federated import ENVIRONMENT as FLOWER
    from sanderling.run.engines import environment_of

    environment = FLOWER if name == FLOWER.name else environment_of(name)
    with RichProgress() as progress:
        environment.install(progress)
    size_bytes = folder_size_bytes(environment.folder)
    value = {"environment": {"name": name, "folder": str(environment.folder), "size_bytes": size_bytes}}
    print_result(value, as_json=as_json, show=lambda console: _present().environment(console, environment, size_bytes))


def _present() -> Any:  # noqa: ANN401 - a module
    from sanderling.cli import present

    return present


def _import_from_here() -> None:
    """Let factories be imported from the folder that the command runs in, as ``python -m`` would."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
