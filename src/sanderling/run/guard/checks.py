"""Whether outputs can be believed: NaN and infinity, ranges, and the distance from the golden outputs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sanderling.core.errors import OptionError
from sanderling.core.progress import Event
from sanderling.core.tensor import Array, TensorSpec
from sanderling.model.package import Package
from sanderling.run.guard.fault import Fault
from sanderling.run.guard.inner import Extremes
from sanderling.run.guard.limits import InnerLimits, inner_fault, learned_limits
from sanderling.run.policy.document import Guard

_REFERENCE = "fp32"
_MAY_BE_INFINITE = "fcV"  # kinds of dtypes; NumPy calls bfloat16 and the 8-bit floats "V"


class Checks:
    """The policy's checks of one model's results. Build it once; ``fault`` may be called from several threads.

    Attributes:
        notes: what is not checked as the policy says, with the reason.
    """

    def __init__(self, outputs: Sequence[_OutputCheck], guard: Guard, *, lengths_vary: bool) -> None:
        self.notes = tuple(note for check in outputs for note in check.notes)
        self._outputs = [check for check in outputs if check.does_anything]
        self._check_finite = guard.check_finite
        self._lengths_vary = lengths_vary
        self._limits: dict[str, InnerLimits] = {}

    @classmethod
    def of(cls, guard: Guard, package: Package, outputs: Sequence[TensorSpec]) -> Checks:
        """Read the golden outputs, and join them with the policy.

        Where FP32's golden outputs hold infinity (an attention mask), it is no fault; NaN still is, unless they hold
        that too.

        Args:
            guard: of the policy.
            package: that runs.
            outputs: that its results have, without those of watched tensors.

        Raises:
            OptionError: the policy names an output that the model does not have, or that holds text.
            PackageError: the golden vectors are unreadable.
        """
        _check_names(guard, outputs)
        golden = package.golden().outputs[_REFERENCE]
        first = package.manifest.inputs[0] if package.manifest.inputs else None
        checks = [
            _output_check(guard, spec, golden.get(spec.name), has_rows=first is not None and _share_rows(spec, first))
            for spec in outputs
        ]
        return cls(checks, guard, lengths_vary=any(set(spec.dynamic_axes) - {0} for spec in package.manifest.inputs))

    def learn(self, inner_of_golden_calls: Sequence[Mapping[str, Extremes]]) -> None:
        """Take the limits of watched tensors from what the golden inputs gave, see ``limits.learned_limits``."""
        self._limits = learned_limits(inner_of_golden_calls, lengths_vary=self._lengths_vary)

    def fault(self, outputs: Mapping[str, Array], inner: Mapping[str, Extremes] | None = None) -> Fault | None:
        """The first fault of a result, or None.

        Args:
            outputs: an array for every output; a batch is checked as a whole, its first fault is told.
            inner: what ``inner.split`` found of watched tensors, without the rows that only fill a batch up.
        """
        for check in self._outputs:
            found = check.fault(outputs[check.name])
            if found is not None:
                return found
        return inner_fault(self._limits, inner, check_finite=self._check_finite) if inner else None


@dataclass(frozen=True)
class _OutputCheck:
    """What is checked of one output.

    Attributes:
        allows_nan: FP32's golden outputs hold NaN.
        allows_infinity: they hold infinity.
        limits: lowest and highest value.
        golden: mean and standard deviation of the golden outputs.
        distance: from that mean, in standard deviations.
        has_rows: its first axis counts the rows of a batch.
    """

    name: str
    check_finite: bool
    allows_nan: bool
    allows_infinity: bool
    limits: tuple[float, float] | None
    golden: tuple[float, float] | None
    distance: float
    has_rows: bool
    notes: tuple[Event, ...]

    @property
    def does_anything(self) -> bool:
        return self.check_finite or self.limits is not None or self.golden is not None

    def fault(self, array: Array) -> Fault | None:
        # A sum that is finite would tell the same, but is slower, overflows, and warns of it.
        if self.check_finite and array.dtype.kind in _MAY_BE_INFINITE and not np.isfinite(array).all():
            bad = np.isnan(array) if self.allows_infinity else ~np.isfinite(array)
            if bad.any():
                return Fault("not-finite", self.name, _values(array, bad, "not finite"))
        if array.size == 0:
            return None
        return (self._range_fault(array) if self.limits else None) or (
            self._distribution_fault(array) if self.golden else None
        )

    def _range_fault(self, array: Array) -> Fault | None:
        assert self.limits is not None
        low, high = self.limits
        if low <= float(array.min()) and float(array.max()) <= high:  # not so where there is NaN
            return None
        values = array.astype(np.float64)
        bad = ~((values >= low) & (values <= high))
        if self.allows_nan:
            bad &= ~np.isnan(values)
        if not bad.any():
            return None
        return Fault("range", self.name, _values(array, bad, f"outside {low:.6g} to {high:.6g}"))

    def _distribution_fault(self, array: Array) -> Fault | None:
        assert self.golden is not None
        mean, deviation = self.golden
        rows = array.reshape(len(array) if self.has_rows else 1, -1)
        with np.errstate(over="ignore", invalid="ignore"):
            means = np.add.reduce(rows, axis=1, dtype=np.float64) / rows.shape[1]
            distances = np.abs(means - mean) / deviation
        row = int(distances.argmax())  # NaN comes first
        if distances[row] <= self.distance:
            return None
        reason = (
            f"row {row} has mean {means[row]:.6g}, {distances[row]:.3g} standard deviations from the golden outputs' "
            f"{mean:.6g} ± {deviation:.6g}: at most {self.distance:g} are allowed"
        )
        return Fault("distribution", self.name, reason)


def _output_check(guard: Guard, spec: TensorSpec, golden: Array | None, *, has_rows: bool) -> _OutputCheck:
    is_float = spec.dtype.startswith("float")
    values = golden.astype(np.float64) if golden is not None and is_float else np.empty(0)
    has_nan, has_infinity = bool(np.isnan(values).any()), bool(np.isinf(values).any())
    notes = []
    if guard.check_finite and has_nan:
        notes.append(_note(spec, "FP32's golden outputs hold NaN: it is not looked for"))
    if guard.check_finite and has_infinity:
        notes.append(_note(spec, "FP32's golden outputs hold infinity: only NaN is looked for"))
    limits = _rounded(guard.ranges[spec.name], spec) if spec.name in guard.ranges else None
    if limits and values.size and not _within(values, limits):
        reach = f"{np.nanmin(values):.6g} to {np.nanmax(values):.6g}"
        notes.append(_note(spec, f"FP32's golden outputs reach from {reach}, outside the policy's range: they trip"))
    statistics = None
    if guard.distribution is not None and is_float:
        statistics = _statistics(values)
        if statistics is None:
            notes.append(_note(spec, "its golden outputs are missing, constant or not finite: no distribution to keep"))
    return _OutputCheck(
        name=spec.name,
        check_finite=guard.check_finite and not has_nan,
        allows_nan=has_nan,
        allows_infinity=has_infinity,
        limits=limits,
        golden=statistics,
        distance=guard.distribution or 0.0,
        has_rows=has_rows,
        notes=tuple(notes),
    )


def _statistics(values: Array) -> tuple[float, float] | None:
    """Mean and standard deviation of all golden values; None where no distance can be measured with them.

    The values' deviation, not that of the rows' means: four golden rows say little of the latter, and each row of a
    softmax has the same mean.
    """
    if values.size == 0 or not np.isfinite(values).all():
        return None
    mean, deviation = float(values.mean()), float(values.std())
    return (mean, deviation) if deviation > 1e-9 * max(abs(mean), 1e-20) else None


def _rounded(limits: tuple[float, float], spec: TensorSpec) -> tuple[float, float]:
    """The limits as the output's dtype holds them: a float32 output of 0.1 is not above 0.1."""
    if not spec.dtype.startswith("float"):
        return limits
    with np.errstate(over="ignore"):
        low, high = np.array(limits, np.float64).astype(spec.dtype).astype(np.float64).tolist()
    return low, high


def _within(values: Array, limits: tuple[float, float]) -> bool:
    low, high = limits
    return bool((np.isnan(values) | ((values >= low) & (values <= high))).all())


def _share_rows(output: TensorSpec, first_input: TensorSpec) -> bool:
    """Whether the first axis of both is the batch: a list of boxes has another."""
    return bool(output.shape) and output.shape[:1] == first_input.shape[:1]


def _values(array: Array, bad: Array, what: str) -> str:
    """How many values are bad, where the first is, and what it is."""
    place = np.argwhere(bad)[0].tolist()
    count = int(np.count_nonzero(bad))
    verb = "is" if count == 1 else "are"
    return f"{count} of {array.size} values {verb} {what}, the first at {place}: {float(array[tuple(place)]):.6g}"


def _check_names(guard: Guard, outputs: Sequence[TensorSpec]) -> None:
    known = {spec.name: spec for spec in outputs}
    for name in guard.ranges:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"available are {', '.join(known)}"
            raise OptionError(f"guard.ranges names '{name}', which is no output; {hint}")
        if known[name].dtype == "str":
            raise OptionError(f"guard.ranges names '{name}', which holds text: only numbers have a range")


def _note(spec: TensorSpec, reason: str) -> Event:
    return Event(kind="guard-limited", subject=spec.name, reason=reason)
