"""Results written to shared memory: straight by the engine where that can be, else copied when they are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sanderling.core.errors import TensorError
from sanderling.core.tensor import Array, Feeds, TensorSpec
from sanderling.run.pool import Member
from sanderling.serve.shared_memory import Place, SharedMemoryRegistry
from sanderling.serve.tensors import encode_binary


class OutputPlaces:
    """Where the results of one request go that do not go into its answer.

    Args:
        places: by name of output.
        session: that will run it.
        feeds: its inputs, whose sizes the outputs' named axes have.
        registry: of the regions.

    Attributes:
        buffers: an array for every output, for the engine to write to; None where a size is not known before.

    Raises:
        NotFoundError: there is no such region.
        TensorError: a place is smaller than its output, or does not lie in its region.
    """

    def __init__(
        self,
        places: Mapping[str, Place],
        session: Member,
        feeds: Feeds,
        registry: SharedMemoryRegistry,
    ) -> None:
        self.places = places
        self._lent = {
            name: np.frombuffer(registry.view(place.region, place.offset, place.size_bytes), np.uint8)
            for name, place in places.items()
        }
        sizes = _axis_sizes(session.accepted, feeds) if places else {}
        self.buffers: dict[str, Array] | None = self._bind(session.returned, sizes) if places else None

    def write(self, outputs: Mapping[str, Array]) -> dict[str, int]:
        """Copy what the engine did not write there itself.

        Returns:
            Bytes that each output takes in its place.

        Raises:
            TensorError: a place is smaller than its output.
        """
        written: dict[str, int] = {}
        for name, lent in self._lent.items():
            array = outputs[name]
            if self.buffers is not None and array is self.buffers[name]:
                written[name] = array.nbytes
                continue
            encoded = np.frombuffer(encode_binary(array), np.uint8)
            self._check_size(name, len(encoded))
            lent[: len(encoded)] = encoded
            written[name] = len(encoded)
        return written

    def _bind(self, specs: Sequence[TensorSpec], sizes: Mapping[str, int]) -> dict[str, Array] | None:
        bound: dict[str, Array] = {}
        for spec in specs:
            shape = tuple(sizes.get(size, -1) if isinstance(size, str) else size for size in spec.shape)
            if spec.dtype == "str" or -1 in shape:
                return None
            lent = self._lent.get(spec.name)
            if lent is None:
                bound[spec.name] = np.empty(shape, spec.dtype)
                continue
            dtype = np.dtype(spec.dtype)
            size_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            self._check_size(spec.name, size_bytes)
            array = lent[:size_bytes].view(dtype).reshape(shape)
            if not array.flags.aligned:
                return None
            bound[spec.name] = array
        return bound

    def _check_size(self, name: str, size_bytes: int) -> None:
        place = self.places[name]
        if size_bytes > place.size_bytes:
            raise TensorError(
                f"output '{name}' takes {size_bytes} bytes: its place in shared memory region '{place.region}' has "
                f"{place.size_bytes}"
            )


def _axis_sizes(specs: Sequence[TensorSpec], feeds: Feeds) -> dict[str, int]:
    """Sizes of named axes, as the inputs have them."""
    return {
        axis: feeds[spec.name].shape[index]
        for spec in specs
        if spec.name in feeds and feeds[spec.name].ndim == len(spec.shape)
        for index, axis in enumerate(spec.shape)
        if isinstance(axis, str)
    }
