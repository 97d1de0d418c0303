"""What commands on pictures, videos and cameras have in common: options, what is printed, and what is saved."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sanderling.core.errors import OptionError, UnavailableError

if TYPE_CHECKING:
    from rich.console import Console

    from sanderling.core.progress import Progress
    from sanderling.run.vision.conveyor import Drop
    from sanderling.run.vision.pipeline import Outcome, Pipeline
    from sanderling.run.vision.sources import Source

Sources = Annotated[
    list[str],
    typer.Argument(metavar="SOURCE…", help="Pictures, folders of them, or one video, animation, camera:0 or URL."),
]
Save = Annotated[
    Path | None, typer.Option(metavar="out.mp4|FOLDER", help="Write the frames with their results on them.")
]
ShowFps = Annotated[bool, typer.Option("--show-fps", help="Tell results a second, on stderr and on saved frames.")]
DropOption = Annotated[
    str | None,
    typer.Option(
        "--drop", metavar="newest|none", help="When the device is too slow: newest for cameras, none for files."
    ),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Results after which to stop.")]

_KEPT_RESULTS = 10_000  # of an endless stream, for --json
_FPS_EVERY_S = 1.0


@dataclass(frozen=True)
class StreamOptions:
    """What the user asks of a stream."""

    sources: tuple[str, ...]
    save: Path | None = None
    show_fps: bool = False
    drop: str | None = None
    limit: int | None = None
    as_json: bool = False


@dataclass(frozen=True)
class Words:
    """How a command says its results.

    Attributes:
        to_json: the result of one frame, as fields beside those of the frame.
        show: prints that of a picture, which has the given name, for people.
        told: that of a frame of a stream, in a line.
    """

    to_json: Callable[[Any], dict[str, Any]]
    show: Callable[[Console, str, Any], None]
    told: Callable[[Any], str]


def follow_stream(
    options: StreamOptions, make: Callable[[Source, Drop], Pipeline[Any]], words: Words
) -> dict[str, Any]:
    """Run a pipeline over the sources, print and save what comes, and return the object for ``--json``.

    Args:
        options: of the command.
        make: the pipeline of a source, with a drawer where ``save`` is given.
        words: how results are said.

    Raises:
        SanderlingError: what a source, the model or the saving raised. Of a camera that stays away, what was saved is
            kept.
    """
    from sanderling.cli.progress import RichProgress
    from sanderling.core.progress import Event, Recorder
    from sanderling.run.vision.opencv import opencv
    from sanderling.run.vision.saving import check_target
    from sanderling.run.vision.sources import open_source

    opencv().setNumThreads(1)  # each stage has a thread already, and the engine has the other cores
    if options.save is not None:
        check_target(options.save, options.sources)
    with RichProgress() as shown, ExitStack() as stack:
        progress = Recorder(shown)
        source = stack.enter_context(open_source(options.sources, progress=progress))
        pipeline = make(source, _drop(options, source))
        follower = _Follower(options, words, source)
        with _saving(options, source, progress) as write:
            follower.follow(pipeline, write)
        if follower.lost is not None:
            kept = "" if options.save is None else f"; what it showed until then is in {options.save}"
            raise UnavailableError(f"{follower.lost}{kept}") from follower.lost
        statistics = pipeline.statistics()
        if statistics.dropped:
            reason = f"{statistics.dropped} of {statistics.frames}: newer ones came before the device was free"
            progress.event(Event(kind="frames-dropped", subject=source.name, reason=reason))
    if options.show_fps or follower.moves:
        sys.stderr.write(_summary(statistics.results, statistics.fps, statistics.dropped, statistics.latency_ms))
    return {
        "source": source.name,
        "results": follower.results,
        "results_left_out": follower.left_out,
        "interrupted": follower.interrupted,
        "statistics": statistics.model_dump(mode="json"),
        "saved": None if options.save is None else str(options.save),
        "events": [event.model_dump() for event in progress.events],
    }


class _Follower:
    """Takes results as they come.

    Attributes:
        moves: whether frames follow each other in time.
        interrupted: whether the user ended a stream that has no end of its own.
        lost: what ended such a stream after its first result.
    """

    def __init__(self, options: StreamOptions, words: Words, source: Source) -> None:
        from sanderling.run.vision.sources import PictureSource

        self.results: list[dict[str, Any]] = []
        self.left_out = 0
        self.moves = not isinstance(source, PictureSource)
        self.interrupted = False
        self.lost: UnavailableError | None = None
        self._options, self._words, self._live = options, words, source.live
        self._start_s: float | None = None
        self._console = None if options.as_json else _console()
        self._since_s, self._count, self._fps = time.monotonic(), 0, 0.0

    def follow(self, pipeline: Pipeline[Any], write: Callable[[Outcome[Any], str], None] | None) -> None:
        """Take all of them."""
        outcomes = pipeline.__iter__()
        try:
            for outcome in outcomes:
                self._tell(outcome)
                fps = self._rate()
                if write is not None:
                    write(outcome, fps)
        except KeyboardInterrupt:
            if not self._live:
                raise
            self.interrupted = True
        except UnavailableError as error:
            if not self._live or self._start_s is None:
                raise
            self.lost = error
        finally:
            outcomes.close()

    def _tell(self, outcome: Outcome[Any]) -> None:
        frame = outcome.frame
        if self._start_s is None:  # clocks of cameras do not start with them
            self._start_s = frame.timestamp_s if self._live else 0.0
        time_s = frame.timestamp_s - self._start_s
        if self._console is not None and self.moves:
            line = f"frame {frame.index} ({time_s:.2f} s): {self._words.told(outcome.value)}"
            self._console.print(line, markup=False, soft_wrap=True)
            return
        if self._console is not None:
            self._words.show(self._console, frame.name, outcome.value)
            return
        self.results.append(
            {
                "file": frame.name,
                "frame": frame.index,
                "time_s": round(time_s, 4),
                "width": frame.width,
                "height": frame.height,
                **self._words.to_json(outcome.value),
            }
        )
        if len(self.results) > _KEPT_RESULTS:
            del self.results[0]
            self.left_out += 1

    def _rate(self) -> str:
        """Results a second, measured anew each second."""
        self._count += 1
        passed_s = time.monotonic() - self._since_s
        if passed_s >= _FPS_EVERY_S:
            self._fps = self._count / passed_s
            self._since_s, self._count = time.monotonic(), 0
            if self._options.show_fps:
                sys.stderr.write(f"{self._fps:.1f} frames/s\n")
        return f"{self._fps:.1f} frames/s" if self._options.show_fps and self._fps else ""


@contextmanager
def _saving(
    options: StreamOptions, source: Source, progress: Progress
) -> Iterator[Callable[[Outcome[Any], str], None] | None]:
    """What saves a result's frame; None where nothing is saved."""
    if options.save is None:
        yield None
        return
    from sanderling.run.vision.saving import saving
    from sanderling.tasks.vision.drawing import draw_text

    with saving(options.save, fps=source.fps, live=source.live, progress=progress) as write:

        def save(outcome: Outcome[Any], fps: str) -> None:
            frame = replace(outcome.drawn or outcome.frame, index=outcome.frame.index, name=outcome.frame.name)
            write(draw_text(frame, fps) if fps else frame)

        yield save


def _drop(options: StreamOptions, source: Source) -> Drop:
    if options.drop is None:
        return "newest" if source.live else "none"
    if options.drop == "newest":
        return "newest"
    if options.drop == "none":
        return "none"
    raise OptionError(f"--drop '{options.drop}' is unknown: expected newest or none")


def _summary(results: int, fps: float, dropped: int, latency_ms: dict[str, float] | None) -> str:
    late = f", {latency_ms['p50']:.1f} ms from frame to result (p95 {latency_ms['p95']:.1f})" if latency_ms else ""
    return f"{results} frames, {fps:.1f}/s, {dropped} dropped{late}\n"


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=False)
