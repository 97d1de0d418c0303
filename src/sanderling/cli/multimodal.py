"""`sanderling ask`, `sanderling match`, and `sanderling build` of models with several branches."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sanderling.cli.output import ANSWER_IS_NO, print_result, reporting_errors
from sanderling.core.errors import OptionError

if TYPE_CHECKING:
    from rich.console import Console

    from sanderling.tasks.matching import Library, Match
    from sanderling.tasks.multimodal import Answer
    from sanderling.workshop.multimodal.pipeline import MultimodalBuildResult

Package = Annotated[Path, typer.Argument(metavar="PKG", help="Package folder, or a zip of one.")]
VariantId = Annotated[str | None, typer.Option("--variant", help="Variant id; the chosen one by default.")]
Threads = Annotated[int, typer.Option(min=0, help="Threads of each branch; 0 divides the cores among them.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def ask(
    package: Package,
    picture: Annotated[Path, typer.Argument(metavar="PICTURE", help="JPEG, PNG, WebP, BMP, TIFF or GIF.")],
    questions: Annotated[list[str], typer.Argument(metavar="QUESTION", help="One or more; each by itself.")],
    top: Annotated[int, typer.Option(min=1, help="Answers to each question.")] = 3,
    variant: VariantId = None,
    threads: Threads = 0,
    as_json: Json = False,
) -> None:
    """Answer questions about a picture."""
    with reporting_errors(as_json=as_json):
        from sanderling.tasks.multimodal import Answerer, told

        with Answerer(package, variant=variant, threads=threads) as answerer:
            answers = answerer.ask(picture, questions, top=top)
            for event in (*answerer.branches.events, *told(answers)):
                sys.stderr.write(f"note: {event}\n")
            value = {
                "package": package.name,
                "variant": answerer.branches.variant.id,
                "picture": str(picture),
                "answers": [answer.model_dump() for answer in answers],
            }
        print_result(value, as_json=as_json, show=lambda console: _show_answers(console, answers))


def match(
    package: Package,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of pictures; folders in it count.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the pictures should show.")],
    top: Annotated[int, typer.Option(min=1, help="How many pictures.")] = 5,
    save: Annotated[Path | None, typer.Option(help="Write a page with these pictures, NAME.html.")] = None,
    keep: Annotated[bool, typer.Option("--keep/--no-keep", help="Keep the features for the next search.")] = True,
    variant: VariantId = None,
    threads: Threads = 0,
    as_json: Json = False,
) -> None:
    """Find the pictures of a folder that a text fits best."""
    with reporting_errors(as_json=as_json):
        from sanderling.cli.progress import RichProgress
        from sanderling.core.files import require_folder
        from sanderling.tasks.matching import Matcher

        if save is not None:
            if save.suffix.lower() not in (".html", ".htm"):
                raise OptionError(f"--save {save} has the wrong name: expected NAME.html")
            require_folder(save)
        with RichProgress() as progress, Matcher(package, keep=keep, variant=variant, threads=threads) as matcher:
            library = matcher.read(folder, progress)
            matches = matcher.match(library, text, top=top)
            unknown, used = matcher.unknown_words(text), matcher.branches.variant.id
        if unknown:
            sys.stderr.write(f"note: unknown-words: {', '.join(unknown)} (the model reads them all alike)\n")
        if save is not None:
            _save_sheet(save, text, matches)
        value = _described(package, used, folder, text, library, matches, save)
        print_result(value, as_json=as_json, show=lambda console: _show_matches(console, library, matches, save))


def build_branches(
    source: str,
    output: Path,
    *,
    task: str,
    weights: Path | None,
    factory_arguments: dict[str, Any],
    precision: str | None,
    budget: str | None,
    calibration: Path | None,
    evaluation: Path | None,
    threads: int,
    repeats: int,
    seed: int,
    as_json: bool,
) -> None:
    """Build, print what was made, and exit with 1 where a budget that was given is missed."""
    from sanderling.api import build_multimodal
    from sanderling.cli.progress import RichProgress

    with RichProgress() as progress:
        result = build_multimodal(
            source,
            output,
            task=task,
            weights=weights,
            factory_arguments=factory_arguments,
            precision=precision,
            budget=budget,
            calibration=calibration,
            evaluation=evaluation,
            threads=threads,
            repeats=repeats,
            seed=seed,
            progress=progress,
        )
    print_result(result.summary(), as_json=as_json, show=lambda console: _show_build(console, result))
    if budget is not None and result.budget_missed:
        raise typer.Exit(ANSWER_IS_NO)


def _described(
    package: Path,
    variant: str,
    folder: Path,
    text: str,
    library: Library,
    matches: Sequence[Match],
    save: Path | None,
) -> dict[str, Any]:
    return {
        "package": package.name,
        "variant": variant,
        "folder": str(folder),
        "text": text,
        "pictures": len(library.files),
        "computed": library.computed,
        "skipped": library.skipped,
        "matches": [found.model_dump() for found in matches],
        "saved": str(save) if save is not None else None,
    }


def _show_answers(console: Console, answers: Sequence[Answer]) -> None:
    for answer in answers:
        best = answer.answers[0]
        others = ", ".join(f"{label.label} {100 * label.probability:.1f} %" for label in answer.answers[1:])
        shown = f"{answer.question}  {best.label} ({100 * best.probability:.1f} %)"
        console.print(f"{shown}  then {others}" if others else shown, markup=False, soft_wrap=True)


def _show_matches(console: Console, library: Library, matches: Sequence[Match], save: Path | None) -> None:
    from sanderling.cli.present import table

    rows = [
        [found.file, f"{found.cosine:.3f}", "–" if found.score is None else f"{100 * found.score:.1f} %"]
        for found in matches
    ]
    console.print(table([("picture", False), ("cosine", True), ("score", True)], rows))
    console.print(
        f"{len(library.files)} pictures, {library.computed} of them computed now"
        + (f", {library.skipped} skipped" if library.skipped else ""),
        soft_wrap=True,
    )
    if save is not None:
        console.print(f"page: {save}", markup=False, soft_wrap=True)


def _save_sheet(path: Path, text: str, matches: Sequence[Match]) -> None:
    from sanderling.core.files import replacing
    from sanderling.tasks.sheet import picture_sheet

    page = picture_sheet(text, matches)
    with replacing(path) as target:
        target.write_text(page, encoding="utf-8")


def _show_build(console: Console, result: MultimodalBuildResult) -> None:
    from sanderling.cli.present import megabytes, table

    manifest = result.manifest
    assert manifest.multimodal is not None
    rows = []
    for variant in manifest.variants:
        found, accuracy = result.evidence.variants[variant.id], variant.accuracy
        chosen = manifest.multimodal.variants[variant.id]
        rows.append(
            [
                f"{'→ ' if variant.id == manifest.chosen else '  '}{variant.id}",
                ", ".join(f"{branch} {name}" for branch, name in chosen.items()),
                megabytes(variant.size_bytes),
                f"{found.first.p50:.2f}",
                f"{found.again.p50:.2f}" if found.again else "–",
                f"{accuracy.value:.2f}" if accuracy else "–",
                f"{accuracy.drop:.2f}" if accuracy else "–",
                f"{accuracy.drop_upper:.2f}" if accuracy else "–",
                "inside" if variant.within_budget else "missed",
            ]
        )
    metric = manifest.budget.metric if manifest.budget else "accuracy"
    titles = ("  variant", "branches", "size", "first ms", "again ms", metric, "drop", "bound", "budget")
    console.print(table([(title, 1 < index < 8) for index, title in enumerate(titles)], rows))
    console.print(f"chosen: {result.evidence.choice}", soft_wrap=True)
    console.print(f"evaluated on {result.evidence.evaluation_data}", soft_wrap=True)
    console.print(f"package: {result.path}", markup=False, soft_wrap=True)
