"""From a source to results, with the stages overlapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from sanderling.core.progress import Progress
from sanderling.core.tensor import Feeds
from sanderling.model.preprocessing import Preprocessing
from sanderling.run.session import Session
from sanderling.run.vision.frames import Frame
from sanderling.run.vision.placing import Placement
from sanderling.run.vision.sources import Source

T = TypeVar("T")
Drop = Literal["newest", "none"]
Reader = Callable[[Feeds, Placement, Frame], T]
"""Outputs of the model for one frame, where the frame lies in its input, and the frame → what they mean."""
Drawer = Callable[[Frame, T], Frame]
"""The frame with its result drawn on it, in bgr; the frame that is given is not changed."""


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What came of one frame.

    Attributes:
        frame: the source's.
        placement: where it lay in the model's input.
        value: what the reader made of the outputs.
        drawn: the frame with the overlay; None without a drawer.
        latency_ms: from the frame's capture to this result.
    """

    frame: Frame
    placement: Placement
    value: T
    drawn: Frame | None
    latency_ms: float


class Pipeline(Generic[T]):
    """Runs capture, preprocessing, inference, reading and drawing in threads of their own."""

    def __init__(
        self,
        source: Source,
        session: Session,
        preprocessing: Preprocessing,
        read: Reader[T],
        *,
        draw: Drawer[T] | None = None,
        drop: Drop = "none",
        limit: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Outcome[T]]:
        """Results in the order of the frames."""
        raise NotImplementedError
