"""The compiled bridge, called through its C interface. Loaded in worker processes only: see ``worker.py``."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sanderling.core.errors import EngineError, ModelError
from sanderling.core.tensor import Array

_DTYPES = {  # MindSpore's numbers, include/api/data_type.h
    30: "bool",
    32: "int8",
    33: "int16",
    34: "int32",
    35: "int64",
    37: "uint8",
    38: "uint16",
    39: "uint32",
    40: "uint64",
    42: "float16",
    43: "float32",
    44: "float64",
}
_TEXT_BYTES = 1024
_MOST_AXES = 16


class Bridge:
    """The bridge's library; one a process."""

    def __init__(self, library: Path) -> None:
        os.environ["GLOG_v"] = "2"  # noqa: SIM112 - its own spelling; warnings and errors, which hold the reasons
        try:
            self._library = ctypes.CDLL(str(library))
        except OSError as error:
            raise EngineError(f"its libraries cannot be loaded: {error}") from error
        self._library.sdl_load.restype = ctypes.c_void_p
        self._library.sdl_output.restype = ctypes.c_void_p

    def convert(self, source: Path, target: Path, *, half: bool, channels_last: bool, config: Path | None) -> None:
        """Write a lowered ``.onnx`` or a ``.tflite`` as ``target``, which must end in ``.ms``.

        Raises:
            ModelError: the converter failed; what it logged is on standard error.
        """
        message = ctypes.create_string_buffer(_TEXT_BYTES)
        texts = [os.fsencode(source), os.fsencode(target.with_suffix(""))]
        flags = [int(source.suffix == ".tflite"), int(half), int(channels_last)]
        if self._library.sdl_convert(*texts, *flags, os.fsencode(config or ""), message, _size(message)):
            raise ModelError(_text(message))

    def load(self, data: bytes, threads: int) -> NativeGraph:
        """Load the bytes of a ``.ms``; 0 threads leave their number to the runtime.

        Raises:
            ModelError: the runtime refuses them.
        """
        message = ctypes.create_string_buffer(_TEXT_BYTES)
        size = ctypes.c_size_t(len(data))
        handle = self._library.sdl_load(data, size, threads, message, _size(message))
        if not handle:
            raise ModelError(f"its runtime refuses it: {_text(message)}")
        return NativeGraph(self._library, ctypes.c_void_p(handle))


class NativeTensor:
    """Name, dtype and sizes of an input or output, as the runtime has them now."""

    def __init__(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        self.name, self.dtype, self.shape = name, dtype, shape


class NativeGraph:
    """A loaded ``.ms``. For one thread at a time."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._library, self._handle = library, handle

    def inputs(self) -> list[NativeTensor]:
        """What is fed, in the runtime's order."""
        return [self._described(0, index) for index in range(self._library.sdl_count(self._handle, 0))]

    def outputs(self) -> list[NativeTensor]:
        """What is returned; the sizes are those of the last run."""
        return [self._described(1, index) for index in range(self._library.sdl_count(self._handle, 1))]

    def resize(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Give all inputs, in the runtime's order, their shapes; only once, and before the first run.

        Raises:
            EngineError: the shapes do not fit the graph.
        """
        ranks = (ctypes.c_int * len(shapes))(*map(len, shapes))
        sizes = [size for shape in shapes for size in shape]
        message = ctypes.create_string_buffer(_TEXT_BYTES)
        flat = (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
        if self._library.sdl_resize(self._handle, ranks, flat, message, _size(message)):
            raise EngineError(f"it cannot be resized to {list(shapes)}: {_text(message)}")

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Execute once.

        Args:
            arrays: in the runtime's order, with its dtypes and sizes.

        Raises:
            EngineError: an array does not fit, or execution failed.
        """
        plain = [np.ascontiguousarray(array) for array in arrays]
        pointers = (ctypes.c_void_p * max(1, len(plain)))(*(array.ctypes.data for array in plain))
        sizes = (ctypes.c_size_t * max(1, len(plain)))(*(array.nbytes for array in plain))
        message = ctypes.create_string_buffer(_TEXT_BYTES)
        if self._library.sdl_run(self._handle, pointers, sizes, message, _size(message)):
            raise EngineError(f"it failed: {_text(message)}")
        return [self._copied(index, tensor) for index, tensor in enumerate(self.outputs())]

    def close(self) -> None:
        """Free the graph; a second call does nothing."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            self._library.sdl_free(handle)

    def _described(self, is_output: int, index: int) -> NativeTensor:
        name = ctypes.create_string_buffer(_TEXT_BYTES)
        dtype, layout, shape = ctypes.c_int(), ctypes.c_int(), (ctypes.c_int64 * _MOST_AXES)()
        places = [ctypes.byref(dtype), ctypes.byref(layout), shape]
        rank = self._library.sdl_describe(self._handle, is_output, index, name, _size(name), *places, _MOST_AXES)
        return NativeTensor(_text(name), _DTYPES.get(dtype.value, f"dtype {dtype.value}"), tuple(shape[:rank]))

    def _copied(self, index: int, tensor: NativeTensor) -> Array:
        size = ctypes.c_size_t()
        address = self._library.sdl_output(self._handle, index, ctypes.byref(size))
        array = np.empty(tensor.shape, tensor.dtype)
        if array.nbytes != size.value or (not address and size.value):
            told = f"{size.value} bytes for {tensor.dtype}{list(tensor.shape)}"
            raise EngineError(f"output '{tensor.name}' has {told}")
        if size.value:
            ctypes.memmove(array.ctypes.data, address, size.value)
        return array


def _size(text: ctypes.Array[ctypes.c_char]) -> ctypes.c_size_t:
    return ctypes.c_size_t(len(text))


def _text(text: ctypes.Array[ctypes.c_char]) -> str:
    return text.value.decode(errors="replace").strip().rstrip(".")
