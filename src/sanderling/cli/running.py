"""`sanderling run`: each file as a picture or as arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sanderling.core.errors import OptionError
from sanderling.run.feeds import ARRAY_SUFFIXES, read_feeds, write_outputs
from sanderling.run.session import Session, load

if TYPE_CHECKING:
    from rich.console import Console

_PRINTED_ELEMENTS = 1000
Show = Callable[["Console"], None]


def run_files(
    package: Path,
    files: Sequence[Path],
    *,
    variant: str | None,
    top: int,
    out: Path | None,
    threads: int,
    require: str | None,
) -> tuple[dict[str, Any], Show]:
    """Run every file; returns the JSON object, and what prints the same for people.

    Raises:
        OptionError: ``out`` with several files, or with pictures.
    """
    arrays = [file for file in files if file.suffix.lower() in ARRAY_SUFFIXES]
    if out is not None and (len(files) != 1 or not arrays):
        raise OptionError(f"--out takes the raw outputs of one .npz or .npy file: got {len(files)} files")
    results: list[dict[str, Any]] = []
    shows: list[Show] = []
    with load(package, variant=variant, threads=threads, require=require) as session:
        for file in files:
            result, show = _arrays(session, file, out) if file in arrays else _picture(session, file, top)
            results.append(result)
            shows.append(show)
        for event in session.events:
            sys.stderr.write(f"note: {event}\n")
        used = {"variant": session.variant.id, "engine": session.engine}

    def show_all(console: Console) -> None:
        for show in shows:
            show(console)

    return {"package": package.name, **used, "results": results}, show_all


def _picture(session: Session, file: Path, top: int) -> tuple[dict[str, Any], Show]:
    from sanderling.tasks.vision import classify

    found = classify(session, file, top=top)

    def show(console: Console) -> None:
        from sanderling.cli import present

        present.labels(console, file, found)

    return {"file": str(file), "labels": [label.model_dump() for label in found]}, show


def _arrays(session: Session, file: Path, out: Path | None) -> tuple[dict[str, Any], Show]:
    outputs = session.run(read_feeds(file, session.inputs))
    if out is not None:
        write_outputs(out, outputs)
    described = {
        name: {
            "dtype": array.dtype.name,
            "shape": list(array.shape),
            "values": array.tolist() if array.size <= _PRINTED_ELEMENTS else None,
        }
        for name, array in outputs.items()
    }

    def show(console: Console) -> None:
        from sanderling.cli import present

        present.outputs(console, file, outputs)
        if out is not None:
            console.print(f"outputs: {out}", markup=False)

    return {"file": str(file), "outputs": described, "out": str(out) if out else None}, show
