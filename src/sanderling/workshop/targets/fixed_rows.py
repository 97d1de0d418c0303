"""Targets whose graphs have fixed shapes: a dynamic batch becomes a batch of one size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from sanderling.core.errors import ModelError, OptionError
from sanderling.core.tensor import Array, Feeds
from sanderling.measure.golden import Runs
from sanderling.model.graph import input_specs, output_specs
from sanderling.model.rows import check_rows, has_rows
from sanderling.workshop.targets.base import ExportRequest, Refusal


def dynamic_refusals(model: onnx.ModelProto, target: str) -> tuple[Refusal, ...]:
    """What a target of fixed shapes refuses of dynamic axes; a batch whose rows are independent is made 1."""
    inputs = input_specs(model)
    names = tuple(spec.name for spec in inputs if spec.dynamic_axes)
    if not names:
        return ()
    axes = sorted({str(spec.shape[axis]) for spec in inputs for axis in spec.dynamic_axes})
    reason = f"axis {', '.join(axes)} is dynamic, and {target} has fixed shapes"
    try:
        has_rows(inputs, output_specs(model))
        check_rows(model)
    except ModelError as error:
        return (Refusal("input", names, f"{reason}; {error}", "export the graph with fixed shapes"),)
    return (Refusal("input", names, reason, "the batch becomes 1, or what --option batch says", automatic=True),)


def batch_of(request: ExportRequest) -> int:
    """The batch size that ``--option batch`` says; 1 without it.

    Raises:
        OptionError: it is no positive number.
    """
    text = request.options.get("batch", "1")
    if not text.isdecimal() or int(text) < 1:
        raise OptionError(f"--option batch={text}: expected a positive number, such as 4")
    return int(text)


@dataclass(frozen=True)
class FixedRows:
    """Runs fewer rows on what takes ``rows`` at once: the last one is repeated, and left out of the outputs."""

    inner: Runs
    rows: int

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Execute once."""
        given = len(next(iter(feeds.values())))
        if given == self.rows:
            return self.inner.run(feeds)
        indices = np.minimum(np.arange(self.rows), given - 1)
        outputs = self.inner.run({name: np.ascontiguousarray(array[indices]) for name, array in feeds.items()})
        return {name: array[:given] for name, array in outputs.items()}
