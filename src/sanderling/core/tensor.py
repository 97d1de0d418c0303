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
    _check_names(feeds, specs, "input")
    sizes: dict[str, tuple[int, str]] = {}
    for spec in specs:
        _check_tensor(feeds[spec.name], spec, sizes, "input")


def check_outputs(outputs: Feeds, specs: Sequence[TensorSpec], feeds: Feeds | None = None) -> None:
    """Check that results can be written to ``outputs``: one array of its own for every output that ``specs`` describe.

    Args:
        outputs: arrays that an engine will write to.
        specs: of all outputs.
        feeds: inputs of the same call, which must lie elsewhere.

    Raises:
        TensorError: as of ``check_feeds``; or an array is of strings, read-only, not C-contiguous, or shares memory
            with another output or an input.
    """
    _check_names(outputs, specs, "output")
    sizes: dict[str, tuple[int, str]] = {}
    others = {f"input '{name}'": array for name, array in (feeds or {}).items()}
    for spec in specs:
        array = outputs[spec.name]
        _check_tensor(array, spec, sizes, "output")
        _check_writable(array, spec)
        for other, taken in others.items():
            if np.may_share_memory(array, taken):
                raise TensorError(
                    f"output '{spec.name}' shares memory with {other}: expected an array of its own for every output"
                )
        others[f"output '{spec.name}'"] = array


def empty_arrays(specs: Sequence[TensorSpec], batch: int = 1) -> dict[str, Array]:
    """Arrays with any content that fit ``specs``.

    Raises:
        TensorError: one is of strings, whose length is not known.
    """
    for spec in specs:
        if spec.dtype == "str":
            raise TensorError(f"'{spec.name}' is of strings, which have no buffer: give arrays of your own")
    return {spec.name: np.empty(spec.concrete_shape(batch), _dtype(spec.dtype)) for spec in specs}


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


def _check_names(given: Feeds, specs: Sequence[TensorSpec], role: str) -> None:
    expected = {spec.name: spec for spec in specs}
    if given.keys() != expected.keys():
        unknown = sorted(given.keys() - expected.keys())
        missing = sorted(expected.keys() - given.keys())
        problem = f"unknown {role} {unknown}" if unknown else f"missing {role} {missing}"
        raise TensorError(f"{problem}: available {role}s are {'; '.join(map(str, specs))}")


def _check_tensor(array: Array, spec: TensorSpec, sizes: dict[str, tuple[int, str]], role: str) -> None:
    shape = spec.shape
    if not isinstance(array, np.ndarray) or array.dtype != _dtype(spec.dtype) or array.ndim != len(shape):
        _check_kind(array, spec, role)
    for axis, got in enumerate(array.shape):
        want = shape[axis]
        if got == want:
            continue
        if isinstance(want, int):
            told = f"{role} '{spec.name}' has shape {array.shape}"
            raise TensorError(f"{told}: axis {axis} must be {want}, {spec}")
        known = sizes.setdefault(want, (got, spec.name))
        if known[0] != got:
            told = f"{role} '{spec.name}' has {got} along '{want}'"
            raise TensorError(f"{told}, but {role} '{known[1]}' has {known[0]}")


def _check_kind(array: Array, spec: TensorSpec, role: str) -> None:
    """Check what is no array, or has another dtype or rank than its spec."""
    told = f"{role} '{spec.name}'"
    if not isinstance(array, np.ndarray):
        raise TensorError(f"{told} is a {type(array).__name__}: expected a NumPy array, {spec}")
    cure = f"convert it with .astype('{spec.dtype}')" if role == "input" else f"make it of {spec.dtype}"
    if not array.dtype.isnative:
        raise TensorError(f"{told} has foreign byte order {array.dtype.str}: {cure}")
    if array.dtype != _dtype(spec.dtype) and not (spec.dtype == "str" and array.dtype.kind in "UO"):
        raise TensorError(f"{told} has dtype {array.dtype.name}: expected {spec.dtype}; {cure}")
    if array.ndim != len(spec.shape):
        raise TensorError(f"{told} has shape {array.shape}: expected {len(spec.shape)} axes, {spec}")


def _check_writable(array: Array, spec: TensorSpec) -> None:
    told = f"output '{spec.name}'"
    if spec.dtype == "str":
        raise TensorError(f"{told} is of strings, whose length is not known before: run without arrays for outputs")
    if not array.flags.writeable:
        raise TensorError(f"{told} is read-only: expected an array that can be written to, {spec}")
    if not array.flags.c_contiguous:
        raise TensorError(f"{told} has strides {array.strides}: expected a C-contiguous array, {spec}")
