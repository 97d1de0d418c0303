"""`sanderling classify`: what pictures, videos and cameras show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sanderling.cli.output import print_result, reporting_errors
from sanderling.cli.streaming import DropOption, Limit, Save, ShowFps, Sources, StreamOptions, Words, follow_stream

if TYPE_CHECKING:
    from rich.console import Console

    from sanderling.run.vision.conveyor import Drop
    from sanderling.run.vision.pipeline import Pipeline
    from sanderling.run.vision.sources import Source
    from sanderling.tasks.vision.classification import Label


def classify(
    package: Annotated[Path, typer.Argument(metavar="PKG", help="Package folder NAME.sdl, or a zip of one.")],
    sources: Sources,
    top: Annotated[int, typer.Option(min=1, help="Classes to tell.")] = 5,
    save: Save = None,
    show_fps: ShowFps = False,
    drop: DropOption = None,
    limit: Limit = None,
    variant: Annotated[str | None, typer.Option(help="Variant id; the plan's by default.")] = None,
    threads: Annotated[int, typer.Option(min=0, help="Threads of one call; 0 leaves it to the plan.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Say what pictures, a video or a camera show."""
    with reporting_errors(as_json=as_json):
        from sanderling.run.vision.pipeline import Pipeline
        from sanderling.tasks.vision.classification import Classifier
        from sanderling.tasks.vision.drawing import draw_labels
        from sanderling.tasks.vision.pictures import check_pictures

        options = StreamOptions(tuple(sources), save, show_fps, drop, limit, as_json)
        with Classifier(package, top=top, variant=variant, threads=threads) as classifier:
            session = classifier.session
            preprocessing = check_pictures(session.manifest)

            def make(source: Source, drop: Drop) -> Pipeline[Any]:
                draw = None if save is None else draw_labels
                return Pipeline(source, session, preprocessing, classifier.read, draw=draw, drop=drop, limit=limit)

            told = follow_stream(options, make, Words(_to_json, _show_labels, _told))
            told = {"package": package.name, "variant": session.variant.id, "engine": session.engine, **told}
        print_result(told, as_json=as_json, show=lambda console: show_end(console, save))


def show_end(console: Console, save: Path | None) -> None:
    """Print where frames were saved."""
    if save is not None:
        console.print(f"frames: {save}", markup=False, soft_wrap=True)


def _to_json(labels: Sequence[Label]) -> dict[str, Any]:
    return {"labels": [label.model_dump() for label in labels]}


def _show_labels(console: Console, name: str, labels: Sequence[Label]) -> None:
    from sanderling.cli import present

    present.labels(console, Path(name), labels)


def _told(labels: Sequence[Label]) -> str:
    return ", ".join(f"{label.label} {100 * label.probability:.0f} %" for label in labels)
