"""Whether an engine computes what a package says: its outputs for the golden vectors."""

from __future__ import annotations

import numpy as np

from sanderling.core.statistics import relative_error, sqnr_db
from sanderling.core.tensor import Array
from sanderling.model.package import GoldenVectors
from sanderling.run.engines.base import Executable

_ALLOWED_LOSS_DB = 3.0
_ENOUGH_DB = 40.0


def wrong_outputs(executable: Executable, golden: GoldenVectors, variant: str, tolerance: float) -> str | None:
    """Say what is wrong with the outputs, or None.

    They are right when they repeat the variant's own golden outputs within their tolerance. Engines, processors and
    levels of optimisation round INT8 and BF16 differently, so they are right as well when they are as close to FP32's
    outputs as that variant was when it was built, less 3 dB, or as 40 dB.
    """
    own, reference = golden.outputs[variant], golden.outputs["fp32"]
    got = [executable.run(golden.call(index)) for index in range(len(golden))]
    for name in reference:
        rows = [outputs.get(name) for outputs in got]
        if any(row is None for row in rows):
            return f"output '{name}' is missing"
        outputs = np.stack([row for row in rows if row is not None])
        if outputs.shape != reference[name].shape:
            return f"output '{name}' has shape {outputs.shape[1:]}: expected {reference[name].shape[1:]}"
        if not np.isfinite(outputs[np.isfinite(reference[name])]).all():
            return f"output '{name}' has NaN or infinite values"
        error = relative_error(own[name], outputs)
        if error > tolerance and not _close(reference[name], own[name], outputs):
            return f"output '{name}' differs from the golden one: relative error {error:.2e}, at most {tolerance:.0e}"
    return None


def _close(reference: Array, own: Array, outputs: Array) -> bool:
    finite = np.isfinite(reference)  # a mask's -inf has no distance: it must be there again
    if not np.array_equal(reference[~finite], outputs[~finite], equal_nan=True):
        return False
    allowed = min(_sqnr_db(reference[finite], own[finite]) - _ALLOWED_LOSS_DB, _ENOUGH_DB)
    return _sqnr_db(reference[finite], outputs[finite]) >= allowed


def _sqnr_db(reference: Array, other: Array) -> float:
    x, y = reference.astype(np.float64), other.astype(np.float64)
    return sqnr_db(float(np.square(x).sum()), float(np.square(x - y).sum()))
