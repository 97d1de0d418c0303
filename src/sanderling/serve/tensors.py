"""Tensors of the Open Inference Protocol as NumPy arrays, and back.

Source: Open Inference Protocol, REST "Tensor Data Types", and Triton's binary tensor data extension.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from sanderling.core.errors import TensorError
from sanderling.core.tensor import Array

Buffer = bytes | bytearray | memoryview
_NAMES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BF16": "bfloat16",
    "BYTES": "str",
}
_DATATYPES = {name: datatype for datatype, name in _NAMES.items()}
_NUMBERS: tuple[set[type], str] = ({int, float}, "numbers")
_KINDS: dict[str, tuple[set[type], str]] = {
    "BOOL": ({bool}, "true and false"),
    **dict.fromkeys(("FP16", "FP32", "FP64", "BF16"), _NUMBERS),
}
_LENGTH = struct.Struct("<I")
_SLICE = 64 * 1024  # elements that are converted between two chances for other threads
_COPIED_BYTES = 4096  # of a tensor whose copy costs less than a view
MOST_AXES = 32
_MOST_ELEMENTS = 2**59  # of eight bytes; NumPy counts an axis of 0 as 1 here


def datatypes() -> tuple[str, ...]:
    """All of the protocol's names of datatypes."""
    return tuple(_NAMES)


@cache
def datatype_of(dtype: str | np.dtype[Any]) -> str:
    """The protocol's name of a dtype, given as it is, by NumPy's name or as ``str``.

    Raises:
        TensorError: the protocol has none.
    """
    name = dtype if isinstance(dtype, str) else dtype.name
    try:
        return _DATATYPES[name]
    except KeyError:
        raise TensorError(f"dtype {name} has no name in the protocol: available are {', '.join(_DATATYPES)}") from None


@cache
def dtype_of(datatype: str) -> np.dtype[Any]:
    """NumPy's dtype for a datatype; ``object`` for BYTES.

    Raises:
        TensorError: there is no such datatype.
    """
    name = _NAMES.get(datatype)
    if name is None:
        raise TensorError(f"datatype '{datatype[:40]}' is unknown: available are {', '.join(_NAMES)}")
    if name == "bfloat16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(object) if name == "str" else np.dtype(name)


def element_count(name: str, shape: object) -> int:
    """Number of elements of a shape as a client gave it.

    Raises:
        TensorError: it is no list of whole numbers ≥ 0, or has more axes or elements than any array.
    """
    if not isinstance(shape, list | tuple):
        raise TensorError(f"tensor '{name}' has shape {_cut(shape)}: expected a list of whole numbers ≥ 0")
    if len(shape) > MOST_AXES:
        raise TensorError(f"tensor '{name}' has {len(shape)} axes: at most {MOST_AXES} are taken")
    most = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise TensorError(f"tensor '{name}' has {_cut(size)} in its shape: expected whole numbers ≥ 0")
        most *= size or 1
    if most > _MOST_ELEMENTS:
        raise TensorError(f"tensor '{name}' has shape {_cut(list(shape))}, which is more than memory holds")
    return math.prod(shape)


def decode_binary(name: str, datatype: str, shape: Sequence[int], data: Buffer) -> Array:
    """Read a tensor from the bytes of its elements, little-endian, row by row.

    Args:
        name: for errors.
        datatype: of the protocol, such as ``FP32``.
        shape: as the client gave it.
        data: exactly the tensor's bytes; they are viewed, not copied, and copied only where they are misaligned.

    Returns:
        An array of that shape; BYTES as objects of ``bytes``.

    Raises:
        TensorError: the datatype or the shape is wrong, or the number of bytes does not fit them.
    """
    dtype = dtype_of(datatype)
    count = element_count(name, shape)
    if datatype == "BYTES":
        return _decode_strings(name, count, memoryview(data)).reshape(shape)
    size_bytes = count * dtype.itemsize
    if len(data) != size_bytes:
        raise TensorError(
            f"tensor '{name}' has {len(data)} bytes: expected {size_bytes} for {datatype} of shape {list(shape)}"
        )
    array: Array = np.ndarray(shape, dtype, data)
    if datatype == "BOOL" and count and array.view(np.uint8).max() > 1:
        raise TensorError(f"tensor '{name}' of BOOL has a byte that is neither 0 nor 1")
    return array if array.flags.aligned else array.copy()


def encode_binary(array: Array) -> Buffer:
    """The bytes of an array's elements, little-endian, row by row; a view where the array is large and contiguous.

    Args:
        array: of numbers, or of ``str`` or ``bytes``.

    Raises:
        TensorError: the protocol has no name for its dtype.
    """
    if array.dtype.kind in "OUS":
        return b"".join(_LENGTH.pack(len(item)) + item for item in _byte_strings(array))
    datatype_of(array.dtype)
    if array.nbytes <= _COPIED_BYTES:
        return array.tobytes()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def decode_json(name: str, datatype: str, shape: Sequence[int], data: object) -> Array:
    """Read a tensor from lists, nested or flat.

    Args:
        name: for errors.
        datatype: of the protocol, such as ``FP32``.
        shape: as the client gave it.
        data: numbers, booleans, or strings for BYTES.

    Returns:
        An array of that shape; BYTES as objects of ``bytes``.

    Raises:
        TensorError: the datatype or the shape is wrong, lists are uneven, there are more or fewer elements, or one does
            not fit the datatype.
    """
    dtype = dtype_of(datatype)
    count = element_count(name, shape)
    values = _flat(name, data)
    if len(values) != count:
        raise TensorError(f"tensor '{name}' has {len(values)} elements: expected {count} for shape {list(shape)}")
    if datatype == "BYTES":
        return _json_strings(name, values).reshape(shape)
    if count <= _SLICE:
        return _json_numbers(name, datatype, values).reshape(shape)
    array = np.empty(count, dtype)
    for begin in range(0, count, _SLICE):
        array[begin : begin + _SLICE] = _json_numbers(name, datatype, values[begin : begin + _SLICE])
    return array.reshape(shape)


def encode_json(name: str, array: Array) -> list[Any]:
    """The elements of an array in one flat list.

    Raises:
        TensorError: a number is not finite, or a string is not UTF-8: neither can be written in JSON.
    """
    if array.dtype.kind in "OUS":
        try:
            return [item.decode() for item in _byte_strings(array)]
        except UnicodeDecodeError:
            raise TensorError(f"'{name}' holds bytes that are not UTF-8: ask for it with binary_data") from None
    values: list[Any] = finite_numbers(name, array).reshape(-1).tolist()
    return values


def finite_numbers(name: str, array: Array) -> Array:
    """An array of numbers that JSON can hold; bfloat16 as float32.

    Raises:
        TensorError: one is not finite.
    """
    if array.dtype.kind in "biu":
        return array
    array = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    if not np.isfinite(array).all():
        raise TensorError(f"'{name}' holds NaN or infinity, which JSON cannot: ask for it with binary_data")
    return array


def to_text(name: str, array: Array) -> Array:
    """BYTES as objects of ``str``, which models of strings take.

    Raises:
        TensorError: they are not UTF-8.
    """
    text = np.empty(array.size, object)
    try:
        text[:] = [item.decode() if isinstance(item, bytes) else str(item) for item in array.reshape(-1)]
    except UnicodeDecodeError as error:
        raise TensorError(f"tensor '{name}' holds bytes that are not UTF-8, which the model takes: {error}") from None
    return text.reshape(array.shape)


def _decode_strings(name: str, count: int, data: memoryview) -> Array:
    """Strings that each have their length before them, in four bytes."""
    if count * _LENGTH.size > len(data):
        raise TensorError(
            f"tensor '{name}' has {len(data)} bytes: expected at least {count * _LENGTH.size} for {count} BYTES"
        )
    array = np.empty(count, object)
    at = 0
    for index in range(count):
        if at + _LENGTH.size > len(data):
            raise TensorError(f"tensor '{name}' ends before the length of element {index} of {count}")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length > len(data) - at:
            raise TensorError(
                f"tensor '{name}' says that element {index} has {length} bytes: only {len(data) - at} are left"
            )
        array[index] = bytes(data[at : at + length])
        at += length
    if at != len(data):
        raise TensorError(f"tensor '{name}' has {len(data) - at} bytes after its last element: expected none")
    return array


def _byte_strings(array: Array) -> list[bytes]:
    return [item if isinstance(item, bytes) else str(item).encode() for item in array.reshape(-1)]


def _flat(name: str, data: object) -> list[Any]:
    """Nested lists as one; every list of a level must have the same length."""
    if not isinstance(data, list):
        raise TensorError(f"tensor '{name}' has data of {type(data).__name__}: expected a list")
    level: list[Any] = data
    for _ in range(MOST_AXES):
        if not any(isinstance(item, list) for item in level):
            return level
        if not all(isinstance(item, list) for item in level) or len({len(item) for item in level}) > 1:
            raise TensorError(f"tensor '{name}' has lists of different lengths: expected the same along each axis")
        level = list(itertools.chain.from_iterable(level))
    raise TensorError(f"tensor '{name}' has lists nested deeper than {MOST_AXES}")


def _check_kinds(name: str, datatype: str, values: list[Any]) -> None:
    """That no element changes when it is converted: no fraction or boolean becomes a whole number."""
    wanted, told = _KINDS.get(datatype, ({int}, "whole numbers"))
    found = set(map(type, values)) - wanted
    if found:
        kinds = ", ".join(sorted(kind.__name__ for kind in found))
        raise TensorError(f"tensor '{name}' of {datatype} has elements of {kinds}: expected {told}")


def _json_numbers(name: str, datatype: str, values: list[Any]) -> Array:
    dtype = dtype_of(datatype)
    _check_kinds(name, datatype, values)
    try:
        with np.errstate(over="ignore"):
            array = np.array(values, dtype)
    except (OverflowError, ValueError, TypeError) as error:
        raise TensorError(f"tensor '{name}' has an element that is no {datatype}: {error}") from None
    if dtype.kind not in "biu" and np.isinf(array).any() and not any(map(math.isinf, values)):
        raise TensorError(f"tensor '{name}' has an element that is too large for {datatype}")
    return array


def _json_strings(name: str, values: list[Any]) -> Array:
    array = np.empty(len(values), object)
    for index, value in enumerate(values):
        if not isinstance(value, str):
            raise TensorError(f"tensor '{name}' of BYTES has a {type(value).__name__}: expected strings")
        try:
            array[index] = value.encode()
        except UnicodeEncodeError:
            raise TensorError(f"tensor '{name}' has element {index} with half a surrogate pair") from None
    return array


def _cut(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
