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


def batch_of(request: ExportRequest, model: onnx.ModelProto) -> int | None:
    """The size that a dynamic batch gets: what ``--option batch`` says, 1 without it; None where none is dynamic.

    Raises:
        OptionError: it is no positive number, or the batch has a size already.
    """
    text = request.options.get("batch", "1")
    if not text.isdecimal() or int(text) < 1:
        raise OptionError(f"--option batch={text}: expected a positive number, such as 4")
    specs = input_specs(model)
    if any(spec.dynamic_axes for spec in specs):
        return int(text)
    if "batch" in request.options:
        known = "; ".join(map(str, specs))
        raise OptionError(f"--option batch={text}: the graph's batch has a size already, inputs are {known}")
    return None


@dataclass(frozen=True)
class FixedRows:
    """Runs any number of rows on what takes ``rows`` at once; None is whatever the call has.

    The last row is repeated where there are fewer, and left out of the outputs.
    """

    inner: Runs
    rows: int | None

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Execute as often as is needed."""
        if self.rows is None:
            return self.inner.run(feeds)
        given = len(next(iter(feeds.values())))
        parts = []
        for start in range(0, given, self.rows):
            chosen = {name: repeated(array[start : start + self.rows], self.rows) for name, array in feeds.items()}
            parts.append(self.inner.run(chosen))
        return {name: np.concatenate([part[name] for part in parts])[:given] for name in parts[0]}


def repeated(array: Array, rows: int | None) -> Array:
    """The first ``rows`` rows, the last of them repeated where there are fewer; all as they are for None."""
    if rows is None:
        return array
    return np.ascontiguousarray(array[np.minimum(np.arange(rows), len(array) - 1)])
