"""What the values of a picture input say by themselves, without running the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sanderling.core.tensor import Array
from sanderling.measure.doctor.encoding import Encoding, by_range, declared, read_off, usual
from sanderling.measure.doctor.findings import Finding, fault, warning
from sanderling.model.preprocessing import Preprocessing

_ROUGHER = 0.6
_LAYOUT_SAMPLES, _LEAST_SIDE = 32, 8
_SAME_PICTURE = 0.02
_OVERSHOOT = 0.1  # of the span: bicubic resampling goes a little beyond it
_FAR_STD = 1.5
_SPREAD_RATIO = 3.0
_LARGE_FACTOR = 20.0
_CLOSER = 3.0
_CLEAR_LEVELS = 8.0


@dataclass(frozen=True)
class Pictures:
    """Inputs as the model gets them, and what is known of how they must be made.

    Attributes:
        name: of the input.
        values: float32, four axes, the first counts the samples.
        axis: of the channels.
        preprocessing: that made them; None for arrays.
        reference: how they must be made.
        golden: inputs of the package's golden vectors, same axes.
    """

    name: str
    values: npt.NDArray[np.float32]
    axis: int
    preprocessing: Preprocessing | None
    reference: Preprocessing | None
    golden: Array | None

    @property
    def channels(self) -> int:
        """1 or 3."""
        return int(self.values.shape[self.axis])

    @property
    def expected(self) -> Encoding | None:
        """What the package says, or what its golden inputs show."""
        if self.reference is not None:
            return declared(self.reference, "the preprocessing")
        if self.golden is None:
            return None
        return read_off(self.golden, self.axis, "the golden inputs")

    @property
    def actual(self) -> Encoding | None:
        """How these values were made, if it is declared or shows."""
        if self.preprocessing is not None:
            return declared(self.preprocessing, "the preprocessing that was given")
        return read_off(self.values, self.axis, "the data")

    @property
    def proved(self) -> bool:
        """Whether scale and normalisation are what they must be: declared alike, or shown by the values."""
        if self.expected is None:
            return False
        if self.preprocessing is not None:
            return declared(self.preprocessing, "").equals(self.expected)
        return self.expected.holds(self.values, self.axis)

    @property
    def guessed(self) -> Encoding | None:
        """The same, or else what the range suggests."""
        return self.actual or by_range(self.values, self.channels)


def check_declared(given: Preprocessing | None, reference: Preprocessing | None, name: str) -> list[Finding]:
    """Compare the preprocessing that an application uses with the one that the package says."""
    if given is None or reference is None or given == reference:
        return []
    found = []
    if given.color != reference.color:
        evidence = f"pictures are made {given.color.upper()}, the package says {reference.color.upper()}"
        found.append(fault("input-channel-order", name, evidence, f"convert pictures to {reference.color.upper()}"))
    if given.layout != reference.layout:
        evidence = f"pictures are made {given.layout}, the package says {reference.layout}"
        found.append(fault("input-layout", name, evidence, f"transpose pictures to {reference.layout}"))
    if len(given.mean) == len(reference.mean):
        found += _encoding_findings(
            declared(given, "the preprocessing that was given"), declared(reference, "the package"), name
        )
    others = [
        field
        for field in ("width", "height", "resize", "resize_to", "interpolation")
        if getattr(given, field) != getattr(reference, field)
    ]
    if others:
        told = "; ".join(f"{key} {getattr(given, key)}, the package says {getattr(reference, key)}" for key in others)
        found.append(warning("input-resize", name, told, "resize and crop pictures as the package says"))
    return found


def check_values(pictures: Pictures) -> list[Finding]:
    """Layout, scale, normalisation and channel order, as far as the values alone prove them."""
    layout = _layout(pictures)
    if layout:
        return layout
    expected, actual = pictures.expected, pictures.actual
    found: list[Finding] = []
    if expected is not None and not pictures.proved:
        if actual is not None:
            found = _encoding_findings(actual, expected, pictures.name)
        else:
            found = _range_findings(pictures, expected)
    if not any(finding.kind == "input-channel-order" for finding in found):
        found += _order_against_golden(pictures)
    return found or unlike_golden(pictures.name, pictures.values, pictures.golden)


def _layout(pictures: Pictures) -> list[Finding]:
    """Whether the values get much smoother when their memory is read in the other order of axes.

    Neighbours in a picture are alike; read in the wrong order, neighbours are other channels and far pixels.
    """
    values = pictures.values[:_LAYOUT_SAMPLES]
    if (
        pictures.channels == 1
        or min(values.shape[place] for place in (1, 2, 3) if place != pictures.axis) < _LEAST_SIDE
    ):
        return []
    other = reread(values, pictures.axis)
    own, turned = _roughness(values, pictures.axis), _roughness(other, pictures.axis)
    if turned >= _ROUGHER * own:
        return []
    have, want = ("NHWC", "NCHW") if pictures.axis == 1 else ("NCHW", "NHWC")
    return [
        fault(
            "input-layout",
            pictures.name,
            f"neighbouring values differ by {own:.2f} standard deviations, and by {turned:.2f} when the same memory is "
            f"read as {have}: the values were put in as {have} and called {want}",
            f"transpose inputs from {have} to {want} instead of giving them another shape",
            difference=own,
            difference_other_layout=turned,
        )
    ]


def reread(values: Array, axis: int) -> Array:
    """The same memory read in the other order of axes, turned to the model's."""
    if axis == 1:
        count, channels, height, width = values.shape
        return values.reshape(count, height, width, channels).transpose(0, 3, 1, 2)
    count, height, width, channels = values.shape
    return values.reshape(count, channels, height, width).transpose(0, 2, 3, 1)


def _roughness(values: Array, axis: int) -> float:
    """Mean difference between neighbours, in standard deviations of all values."""
    spatial = [place for place in (1, 2, 3) if place != axis]
    steps = [float(np.abs(np.diff(values, axis=place)).mean()) for place in spatial]
    return sum(steps) / len(steps) / (float(values.std()) or 1.0)


def _encoding_findings(actual: Encoding, expected: Encoding, name: str) -> list[Finding]:
    """Name the difference between how values were made and how they must be made."""
    if actual.equals(expected):
        return []
    told = f"{actual.name}: {actual.told()}; {expected.name}: {expected.told()} (after a division by 255)"
    numbers = {"step": actual.step[0], "step_expected": expected.step[0]}
    numbers |= {"offset": actual.offset[0], "offset_expected": expected.offset[0]}
    if actual.equals(expected.reversed):
        remedy = "swap the first and third channel before the normalisation"
        return [fault("input-channel-order", name, f"mean and std are in opposite order: {told}", remedy, **numbers)]
    factor = float(np.median(np.asarray(actual.step) / np.asarray(expected.step)))
    if factor > _LARGE_FACTOR:
        evidence = f"values are {factor:.3g} times too large: the division by 255 is missing; {told}"
        return [fault("input-scale", name, evidence, _prepare(expected), factor=factor, **numbers)]
    if factor < 1 / _LARGE_FACTOR:
        evidence = f"values are {1 / factor:.3g} times too small: they were divided by 255 twice; {told}"
        return [fault("input-scale", name, evidence, _prepare(expected), factor=factor, **numbers)]
    known = next((entry.name for entry in usual(len(actual.step)) if entry.equals(actual)), None)
    known = f" (that is '{known}')" if known else ""
    return [fault("input-normalization", name, f"wrong mean or std{known}: {told}", _prepare(expected), **numbers)]


def _prepare(expected: Encoding) -> str:
    return f"make inputs as (level / 255 - mean) / std with {expected.told()}"


def _range_findings(pictures: Pictures, expected: Encoding) -> list[Finding]:
    """What the range proves where grey levels do not show: resampled pictures, cameras with more than 8 bits."""
    low, high = float(pictures.values.min()), float(pictures.values.max())
    start, end = expected.span
    width = end - start
    inside = low >= start - _OVERSHOOT * width and high <= end + _OVERSHOOT * width
    guess = by_range(pictures.values, pictures.channels)
    numbers = {"low": low, "high": high, "low_expected": start, "high_expected": end}
    told = f"values go from {low:.3g} to {high:.3g}, {expected.name} can give {start:.3g} to {end:.3g}"
    if high - low < width / _LARGE_FACTOR:
        evidence = f"{told}: they were divided by 255 twice"
        return [fault("input-scale", pictures.name, evidence, _prepare(expected), **numbers)]
    if inside:
        return []
    if high - low > _LARGE_FACTOR * width:
        evidence = f"{told}: the division by 255 is missing"
        return [fault("input-scale", pictures.name, evidence, _prepare(expected), **numbers)]
    like = f"; they look like '{guess.name}'" if guess else ""
    evidence = f"{told}: another mean or std was used{like}"
    return [fault("input-normalization", pictures.name, evidence, _prepare(expected), **numbers)]


def _order_against_golden(pictures: Pictures) -> list[Finding]:
    """Whether a golden picture is in the data with its channels reversed, or the colours lean to the other side."""
    if pictures.golden is None or pictures.channels != 3:
        return []
    own, mirrored = (
        _matches(pictures, pictures.golden, reverse=False),
        _matches(pictures, pictures.golden, reverse=True),
    )
    if mirrored > own:
        evidence = f"{mirrored} golden pictures are in the data with their channels reversed, {own} as they are"
        remedy = "swap the first and third channel when pictures are read (BGR instead of RGB, or the reverse)"
        return [fault("input-channel-order", pictures.name, evidence, remedy, reversed=mirrored, same=own)]
    if own:
        return []
    data, golden = _channel_means(pictures.values, pictures), _channel_means(pictures.golden, pictures)
    apart, apart_reversed = float(np.abs(data - golden).max()), float(np.abs(data[::-1] - golden).max())
    lean = float(min(abs(data[0] - data[2]), abs(golden[0] - golden[2])))
    if lean < _CLEAR_LEVELS or apart < _CLOSER * apart_reversed:
        return []
    evidence = (
        f"channel means differ from the golden inputs' by up to {apart:.0f} grey levels, and by {apart_reversed:.0f} "
        "with the channels reversed"
    )
    remedy = "look at one input as a picture; give labelled data, which proves the order"
    return [
        warning(
            "input-channel-order", pictures.name, evidence, remedy, difference=apart, difference_reversed=apart_reversed
        )
    ]


def _matches(pictures: Pictures, golden: Array, *, reverse: bool) -> int:
    """How many golden pictures are in the data, their channels reversed or not."""
    if reverse:
        golden = flipped(golden, pictures.expected, pictures.axis)
    near = _SAME_PICTURE * (float(golden.std()) or 1.0)
    rows = _thinned(pictures.values, pictures.axis)
    return sum(
        min(float(np.abs(row - picture).mean()) for row in rows) < near for picture in _thinned(golden, pictures.axis)
    )


def flipped(values: Array, encoding: Encoding | None, axis: int) -> npt.NDArray[np.float32]:
    """Channels swapped before the normalisation; after it where the encoding is not known."""
    if encoding is None:
        return np.ascontiguousarray(np.flip(values, axis), np.float32)
    return encoding.apply(np.flip(encoding.undo(values, axis), axis), axis)


def _thinned(values: Array, axis: int) -> Array:
    return values[:, :, ::4, ::4] if axis == 1 else values[:, ::4, ::4]


def _channel_means(values: Array, pictures: Pictures) -> npt.NDArray[np.float64]:
    """Mean of each channel in grey levels where the encoding is known, else in hundredths of the spread."""
    encoding = pictures.expected
    levels = encoding.undo(values, pictures.axis) if encoding else 64 * values / (float(values.std()) or 1.0)
    axes = tuple(place for place in range(4) if place != pictures.axis)
    return np.asarray(levels.mean(axis=axes), np.float64)


def unlike_golden(name: str, values: Array, golden: Array | None) -> list[Finding]:
    """Whether mean and spread are far from the golden inputs', for want of anything that proves more.

    Args:
        name: of the input.
        values: float, any shape.
        golden: of the same input, any number of calls; None when there are none of real data.
    """
    if golden is None:
        return []
    spread, spread_golden = float(values.std()), float(golden.std()) or 1.0
    shift = abs(float(values.mean()) - float(golden.mean())) / spread_golden
    ratio = spread / spread_golden
    if shift < _FAR_STD and 1 / _SPREAD_RATIO < ratio < _SPREAD_RATIO:
        return []
    evidence = (
        f"mean {values.mean():.3g} and standard deviation {spread:.3g}; golden inputs have {golden.mean():.3g} and "
        f"{spread_golden:.3g}"
    )
    remedy = "compare how the application makes inputs with how the calibration data was made"
    return [warning("input-unlike-golden", name, evidence, remedy, shift=shift, spread_ratio=ratio)]
