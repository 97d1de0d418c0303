"""What a graph's inputs and outputs look like, and whether arrays fit them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from sanderling.core.errors import OptionError, TensorError

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]


class TensorSpec(BaseModel):
    """Name, dtype and shape of one input or output.

    Attributes:
        name: the graph's own name.
        dtype: NumPy's name, such as ``float32`` or ``int64``.
        shape: one entry per axis; a string names a dynamic axis.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    @property
    def dynamic_axes(self) -> tuple[int, ...]:
        """Positions of the axes without a fixed size."""
        return tuple(axis for axis, size in enumerate(self.shape) if isinstance(size, str))

    def concrete_shape(self, batch: int = 1) -> tuple[int, ...]:
        """Shape with the first axis as ``batch`` where it is dynamic, and 1 for any other dynamic axis."""
        return tuple(
            size if isinstance(size, int) else (batch if axis == 0 else 1) for axis, size in enumerate(self.shape)
        )

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Read ``NAME=1,3,224,224``; ``NAME=`` is a scalar.

    Raises:
        OptionError: the text has another form, or an axis is 0.
    """
    name, separator, sizes = text.strip().rpartition("=")
    parts = [part.strip() for part in sizes.split(",")] if sizes.strip() else []
    if not separator or not name.strip() or not all(part.isdecimal() and part.isascii() for part in parts):
        raise OptionError(f"--input '{text}' has the wrong form: expected NAME=1,3,224,224 or NAME=1,16:int64")
    shape = tuple(int(part) for part in parts)
    if 0 in shape:
        raise OptionError(f"--input '{text}' has an axis of size 0: every axis needs at least 1")
    return name.strip(), shape


def check_feeds(feeds: Feeds, specs: Sequence[TensorSpec]) -> None:
    """Check that ``feeds`` holds exactly the tensors that ``specs`` describe.

    Raises:
        TensorError: a name is missing or unknown, or a dtype, a rank or a fixed axis differs; dynamic axes
            of one name must agree with each other.
    """
    expected = {spec.name: spec for spec in specs}
    if feeds.keys() != expected.keys():
        unknown = sorted(feeds.keys() - expected.keys())
        missing = sorted(expected.keys() - feeds.keys())
        problem = f"unknown input {unknown}" if unknown else f"missing input {missing}"
        raise TensorError(f"{problem}: available inputs are {'; '.join(map(str, specs))}")
    sizes: dict[str, tuple[int, str]] = {}
    for spec in specs:
        _check_tensor(feeds[spec.name], spec, sizes)


def random_feeds(specs: Sequence[TensorSpec], *, batch: int = 1, seed: int = 0) -> dict[str, Array]:
    """Feeds that fit ``specs``: standard normal floats, integers and booleans of 0 and 1."""
    generator = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for spec in specs:
        shape = spec.concrete_shape(batch)
        if spec.dtype.startswith("float"):
            feeds[spec.name] = generator.standard_normal(shape, np.float32).astype(spec.dtype)
        else:
            feeds[spec.name] = generator.integers(0, 2, shape).astype(spec.dtype)
    return feeds


@cache
def _dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of that name; one that no array has for a name that NumPy does not know."""
    try:
        return np.dtype(name)
    except TypeError:
        return np.dtype(np.void)


def _check_tensor(array: Array, spec: TensorSpec, sizes: dict[str, tuple[int, str]]) -> None:
    if not isinstance(array, np.ndarray):
        raise TensorError(f"input '{spec.name}' is a {type(array).__name__}: expected a NumPy array, {spec}")
    if not array.dtype.isnative:
        raise TensorError(
            f"input '{spec.name}' has foreign byte order {array.dtype.str}: convert it with .astype('{spec.dtype}')"
        )
    if array.dtype != _dtype(spec.dtype) and not (spec.dtype == "str" and array.dtype.kind in "UO"):
        raise TensorError(
            f"input '{spec.name}' has dtype {array.dtype.name}: expected {spec.dtype}; "
            f"convert it with .astype('{spec.dtype}')"
        )
    if array.ndim != len(spec.shape):
        raise TensorError(f"input '{spec.name}' has shape {array.shape}: expected {len(spec.shape)} axes, {spec}")
    for axis, (got, want) in enumerate(zip(array.shape, spec.shape, strict=True)):
        if isinstance(want, int):
            if got != want:
                raise TensorError(f"input '{spec.name}' has shape {array.shape}: axis {axis} must be {want}, {spec}")
        elif want in sizes and sizes[want][0] != got:
            raise TensorError(
                f"input '{spec.name}' has {got} along '{want}', but input '{sizes[want][1]}' has {sizes[want][0]}"
            )
        else:
            sizes[want] = (got, spec.name)
