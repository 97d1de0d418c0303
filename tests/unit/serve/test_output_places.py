from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sanderling.core.errors import TensorError
from sanderling.core.tensor import TensorSpec
from sanderling.serve.errors import NotFoundError
from sanderling.serve.output_places import OutputPlaces
from sanderling.serve.shared_memory import ANY_KEY, FOLDER, Place, SharedMemoryRegistry

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="this system has no /dev/shm")


@pytest.fixture
def lent() -> Iterator[tuple[SharedMemoryRegistry, Path]]:
    """A registry with a region ``frames`` of 256 bytes, and its file."""
    path = FOLDER / f"sanderling-test-{uuid.uuid4().hex}"
    path.write_bytes(bytes(256))
    registry = SharedMemoryRegistry(ANY_KEY)
    registry.register("frames", path.name, offset=0, size_bytes=256)
    yield registry, path
    path.unlink()


def model(*outputs: TensorSpec) -> SimpleNamespace:
    """As much of a session as is asked."""
    return SimpleNamespace(accepted=(TensorSpec(name="x", dtype="float32", shape=("N", 2)),), returned=outputs)


def output(name: str = "y", dtype: str = "float32", shape=("N", 4)) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


FEEDS = {"x": np.zeros((3, 2), np.float32)}


def test_engine_is_given_the_place_itself_and_arrays_for_the_other_outputs(lent):
    registry, path = lent
    places = OutputPlaces({"y": Place("frames", 64, 48)}, model(output(), output("z")), FEEDS, registry)
    assert {name: array.shape for name, array in places.buffers.items()} == {"y": (3, 4), "z": (3, 4)}
    places.buffers["y"][:] = 5
    assert places.write(places.buffers) == {"y": 48}
    assert np.frombuffer(path.read_bytes(), np.float32)[16:28].tolist() == [5] * 12


def test_result_in_another_array_is_copied(lent):
    registry, path = lent
    places = OutputPlaces({"y": Place("frames", 0, 48)}, model(output()), FEEDS, registry)
    assert places.write({"y": np.full((3, 4), 7, np.float32)}) == {"y": 48}
    assert np.frombuffer(path.read_bytes(), np.float32)[:12].tolist() == [7] * 12


@pytest.mark.parametrize("spec", [output(shape=("M", 4)), output(dtype="str")], ids=str)
def test_output_of_unknown_size_is_copied_when_it_is_there(lent, spec):
    registry, path = lent
    places = OutputPlaces({"y": Place("frames", 0, 20)}, model(spec), FEEDS, registry)
    assert places.buffers is None
    if spec.dtype == "str":
        assert places.write({"y": np.array(["ab", "c"], object)}) == {"y": 11}
        assert path.read_bytes()[:11] == b"\2\0\0\0ab\1\0\0\0c"
        return
    assert places.write({"y": np.ones((1, 4), np.float32)}) == {"y": 16}
    with pytest.raises(TensorError, match=r"output 'y' takes 32 bytes: its place .* has 20"):
        places.write({"y": np.ones((2, 4), np.float32)})


def test_misaligned_place_is_written_by_a_copy(lent):
    registry, path = lent
    places = OutputPlaces({"y": Place("frames", 1, 48)}, model(output()), FEEDS, registry)
    assert places.buffers is None
    assert places.write({"y": np.full((3, 4), 7, np.float32)}) == {"y": 48}
    assert path.read_bytes()[1:49] == np.full(12, 7, np.float32).tobytes()


def test_place_that_is_too_small_is_refused_before_anything_runs(lent):
    with pytest.raises(TensorError, match=r"output 'y' takes 48 bytes: its place .* has 47"):
        OutputPlaces({"y": Place("frames", 0, 47)}, model(output()), FEEDS, lent[0])
    with pytest.raises(TensorError, match="do not lie in"):
        OutputPlaces({"y": Place("frames", 250, 48)}, model(output()), FEEDS, lent[0])
    with pytest.raises(NotFoundError, match="registered are frames"):
        OutputPlaces({"y": Place("other", 0, 48)}, model(output()), FEEDS, lent[0])


def test_request_without_places_costs_nothing(lent):
    places = OutputPlaces({}, model(output()), FEEDS, lent[0])
    assert places.buffers is None
    assert places.write({"y": np.zeros((3, 4))}) == {}
