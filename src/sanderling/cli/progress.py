"""Progress on stderr, with rich: bars on a terminal, one line a stage elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from sanderling.core.progress import Event

_SHOWN_OF_A_KIND = 3


class RichProgress:
    """Shows stages as they come; use it in a ``with`` block."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None
        self._counts: dict[str, int] = {}

    def stage(self, name: str, total: int = 0) -> None:
        """Begin a stage and complete the one before."""
        self._finish()
        if self._console.is_terminal:
            self._task = self._bars.add_task(name, total=total or None)
        else:
            self._console.print(name, soft_wrap=True)

    def advance(self, steps: int = 1) -> None:
        """Move the bar."""
        if self._task is not None:
            self._bars.advance(self._task, steps)

    def event(self, event: Event) -> None:
        """Print an event; of one kind only the first few, as all of them are in the evidence."""
        self._counts[event.kind] = self._counts.get(event.kind, 0) + 1
        if self._counts[event.kind] <= _SHOWN_OF_A_KIND:
            self._console.print(f"note: {event}", markup=False, soft_wrap=True)
        elif self._counts[event.kind] == _SHOWN_OF_A_KIND + 1:
            self._console.print(
                f"note: more of the kind {event.kind} are in the evidence", markup=False, soft_wrap=True
            )

    def _finish(self) -> None:
        if self._task is not None:
            task = next(task for task in self._bars.tasks if task.id == self._task)
            done = task.total if task.total is not None else 1
            self._bars.update(self._task, total=done, completed=done)
            self._task = None

    def __enter__(self) -> RichProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        self._bars.stop()
