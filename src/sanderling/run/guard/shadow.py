"""Shadow runs: a share of the requests runs in FP32 as well, and the results are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sanderling.core.progress import Event
from sanderling.core.statistics import relative_error
from sanderling.core.tensor import Array
from sanderling.model.manifest import Variant
from sanderling.model.package import Package
from sanderling.run.guard.fault import Fault

_REFERENCE = "fp32"
_MARGIN = 4.0
_WORD = (1 << 64) - 1


@dataclass(frozen=True)
class ShadowSampler:
    """Which requests run again, by their number: the same in every run, however threads interleave.

    Not every n-th: of cameras that take turns it would always be the same one.

    Attributes:
        share: of all requests, in [0, 1].
        seed: another one takes other requests.

    Source: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014 (SplitMix64).
    """

    share: float
    seed: int = 0

    def takes(self, number: int) -> bool:
        """Whether the request of that number runs again."""
        return _mixed(_mixed(self.seed) + number) < self.share * (_WORD + 1)


@dataclass(frozen=True)
class Tolerance:
    """How far a variant may be from FP32.

    Attributes:
        limits: largest relative error of each output that is compared.
        scales: largest absolute value of FP32's golden outputs: small results are not held against their own size.
        notes: outputs that are not compared, with the reason.
    """

    limits: dict[str, float]
    scales: dict[str, float]
    notes: tuple[Event, ...] = ()

    @classmethod
    def of(cls, package: Package, variant: Variant, given: float | None = None) -> Tolerance:
        """Tolerance of the policy, or of the package's own evidence.

        The golden vectors show how far the variant is from FP32 where it is right. They are few, and an input that
        calibration did not see is clipped and may be much further off. So the limit is four times the worst of them,
        or four times the tolerance of the golden vectors, whichever is more: it finds results that are wrong, and
        leaves the judgement of those that are merely less exact to the budget. Integers (classes, counts) are not
        compared: a changed class is what the budget counts; nor are outputs whose golden vectors have nothing in
        common with FP32's.

        Args:
            package: that runs.
            variant: that is compared with FP32.
            given: the policy's relative error, for every output.

        Raises:
            PackageError: the golden vectors are unreadable.
        """
        golden = package.golden()
        least = package.manifest.golden.tolerance[variant.id]
        limits, scales, notes = {}, {}, []
        for name, reference in golden.outputs[_REFERENCE].items():
            if reference.dtype.kind != "f":
                notes.append(_note(name, f"it is {reference.dtype.name}: only floats are compared"))
                continue
            scales[name] = _largest(reference)
            pairs = zip(reference, golden.outputs[variant.id][name], strict=False)
            worst = max((relative_error(*pair, scale=scales[name]) for pair in pairs), default=0.0)
            if np.isfinite(worst):
                limits[name] = given if given is not None else _MARGIN * max(worst, least)
            else:
                notes.append(_note(name, "its golden vectors and FP32's differ in shape or in infinities"))
        return cls(limits, scales, tuple(notes))


def disagreement(outputs: Mapping[str, Array], reference: Mapping[str, Array], tolerance: Tolerance) -> Fault | None:
    """The first output that is further from FP32 than it may be, or None.

    Args:
        outputs: the variant's.
        reference: FP32's, for the same input.
        tolerance: of the variant.
    """
    for name, limit in tolerance.limits.items():
        error = relative_error(reference[name], outputs[name], scale=tolerance.scales[name])
        if error > limit:
            return Fault("shadow", name, _difference(outputs[name], reference[name], error, limit))
    return None


def _difference(output: Array, reference: Array, error: float, limit: float) -> str:
    if output.shape != reference.shape:
        return f"it has shape {output.shape}, FP32's has {reference.shape}"
    values, wanted = output.astype(np.float64), reference.astype(np.float64)
    with np.errstate(invalid="ignore"):
        differences = np.abs(values - wanted)
    differences[(values == wanted) | (np.isnan(values) & np.isnan(wanted))] = 0.0
    place = np.unravel_index(int(differences.argmax()), differences.shape)  # NaN comes first
    where = f"most at {[int(index) for index in place]}: {values[place]:.6g}, FP32 has {wanted[place]:.6g}"
    return f"relative error {error:.3g}, at most {limit:.3g} is allowed; {where}"


def _largest(values: Array) -> float:
    """The largest absolute value that is finite; 0 without one."""
    numbers = np.abs(values[np.isfinite(values)].astype(np.float64))
    return float(numbers.max()) if numbers.size else 0.0


def _mixed(number: int) -> int:
    """A number of 64 bits, each of which depends on all of ``number``."""
    z = ((number + 1) * 0x9E3779B97F4A7C15) & _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    return z ^ (z >> 31)


def _note(name: str, reason: str) -> Event:
    return Event(kind="guard-limited", subject=name, reason=reason)
