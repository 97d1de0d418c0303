"""What a check says of a result that failed it."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["not-finite", "range", "distribution", "inner", "shadow"]


class Fault(NamedTuple):
    """A result failed a check.

    Attributes:
        kind: of check.
        subject: the output, or the tensor inside the graph.
        reason: how many values, where the first is, and what was allowed.
    """

    kind: Kind
    subject: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject} ({self.reason})"
