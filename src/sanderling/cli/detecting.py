"""`sanderling detect`: what is where on pictures, videos and cameras."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sanderling.cli.output import print_result, reporting_errors
from sanderling.cli.streaming import DropOption, Limit, Save, ShowFps, Sources, StreamOptions, Words, follow_stream
from sanderling.cli.vision import show_end

if TYPE_CHECKING:
    from rich.console import Console

    from sanderling.run.vision.pipeline import Drop, Pipeline
    from sanderling.run.vision.sources import Source
    from sanderling.tasks.vision.detection import Found


def detect(
    package: Annotated[Path, typer.Argument(metavar="PKG", help="Package folder NAME.sdl, or a zip of one.")],
    sources: Sources,
    score: Annotated[float, typer.Option(min=0, max=1, help="Least score of an object.")] = 0.25,
    overlap: Annotated[
        float, typer.Option(min=0, max=1, help="Intersection over union up to which two boxes are two objects.")
    ] = 0.5,
    agnostic: Annotated[bool, typer.Option("--agnostic", help="Hold boxes of different classes too.")] = False,
    track: Annotated[bool, typer.Option("--track", help="Number objects through the stream.")] = False,
    save: Save = None,
    show_fps: ShowFps = False,
    drop: DropOption = None,
    limit: Limit = None,
    variant: Annotated[str | None, typer.Option(help="Variant id; the plan's by default.")] = None,
    threads: Annotated[int, typer.Option(min=0, help="Threads of one call; 0 leaves it to the plan.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Find objects on pictures, a video or a camera's frames: their classes, and boxes in pixels of the frame."""
    with reporting_errors(as_json=as_json):
        from sanderling.run.vision.detections import DetectionRules
        from sanderling.tasks.vision.detection import Detector

        options = StreamOptions(tuple(sources), save, show_fps, drop, limit, as_json)
        rules = DetectionRules(least_score=score, most_overlap=overlap, agnostic=agnostic)
        with Detector(package, rules=rules, variant=variant, threads=threads) as detector:
            session = detector.session

            def make(source: Source, drop: Drop) -> Pipeline[Any]:
                return detector.pipeline(source, track=track, draw=save is not None, drop=drop, limit=limit)

            told = follow_stream(options, make, Words(_to_json, _show_objects, _told_all))
            used = {"variant": session.variant.id, "engine": session.engine, "head": detector.head}
            told = {"package": package.name, **used, **told}
        print_result(told, as_json=as_json, show=lambda console: show_end(console, save))


def _to_json(objects: Sequence[Found]) -> dict[str, Any]:
    return {"objects": [each.model_dump(exclude_none=True) for each in objects]}


def _show_objects(console: Console, name: str, objects: Sequence[Found]) -> None:
    console.print(name, markup=False, soft_wrap=True)
    for told in map(_told, objects) if objects else ("nothing",):
        console.print(f"  {told}", markup=False, soft_wrap=True)


def _told_all(objects: Sequence[Found]) -> str:
    return "; ".join(map(_told, objects)) or "nothing"


def _told(found: Found) -> str:
    left, top, right, bottom = (round(side) for side in found.box)
    number = "" if found.track is None else f"#{found.track} "
    return f"{number}{found.label} {100 * found.score:.0f} % at {left},{top} to {right},{bottom}"
