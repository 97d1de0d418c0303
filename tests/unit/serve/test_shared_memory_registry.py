from __future__ import annotations

import contextlib
import gc
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanderling.core.errors import OptionError, TensorError, UnavailableError
from sanderling.serve.errors import ConflictError, NotFoundError
from sanderling.serve.shared_memory import ANY_KEY, FOLDER, MOST_REGIONS, Place, Region, SharedMemoryRegistry, place_of

SIZE = 10_000
INTEGERS = st.integers(-(1 << 66), 1 << 66)

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="this system has no /dev/shm")


@contextlib.contextmanager
def shared_object(size_bytes: int = SIZE, name: str = "sanderling-test") -> Iterator[Path]:
    path = FOLDER / f"{name}-{uuid.uuid4().hex}"
    path.write_bytes(np.arange(size_bytes, dtype=np.uint8).tobytes())
    try:
        yield path
    finally:
        path.unlink()


def key_of(path: Path) -> str:
    return f"/{path.name}"


def maps_of(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(path.name)


def test_view_reads_and_writes_the_clients_memory():
    registry = SharedMemoryRegistry(ANY_KEY)
    with shared_object() as path:
        registry.register("frames", key_of(path), offset=4100, size_bytes=500)
        view = registry.view("frames", 10, 4)
        assert view.tolist() == [4110 % 256, 4111 % 256, 4112 % 256, 4113 % 256]
        view[:] = bytes([7, 7, 7, 7])
        assert path.read_bytes()[4110:4114] == bytes([7, 7, 7, 7])


def test_key_may_lack_its_slash_as_for_shm_open():
    registry = SharedMemoryRegistry(ANY_KEY)
    with shared_object() as path:
        assert registry.register("frames", path.name, offset=0, size_bytes=SIZE).key == path.name
        assert registry.view("frames", 0, 2).tolist() == [0, 1]


def test_regions_lists_what_is_registered():
    registry = SharedMemoryRegistry(ANY_KEY)
    with shared_object() as path:
        registry.register("a", key_of(path), offset=0, size_bytes=SIZE)
        registry.register("b", key_of(path), offset=9, size_bytes=90)
        assert registry.regions() == (Region("a", key_of(path), 0, SIZE), Region("b", key_of(path), 9, 90))
        assert registry.regions("b") == (Region("b", key_of(path), 9, 90),)
        registry.unregister("a")
        registry.unregister("a")
        assert [region.name for region in registry.regions()] == ["b"]
        registry.unregister()
        assert registry.regions() == ()


def test_unregistered_region_stays_mapped_until_its_last_array_goes():
    registry = SharedMemoryRegistry(ANY_KEY)
    with shared_object() as path:
        registry.register("frames", key_of(path), offset=0, size_bytes=SIZE)
        view = np.frombuffer(registry.view("frames", 0, SIZE), np.uint16)
        registry.unregister("frames")
        assert view[:2].tolist() == [256, 770]
        assert maps_of(path) == 1
        del view
        gc.collect()
        assert maps_of(path) == 0


@given(offset=INTEGERS, size_bytes=INTEGERS)
def test_only_what_lies_in_the_object_can_be_registered(offset, size_bytes):
    registry = SharedMemoryRegistry(ANY_KEY)
    with shared_object() as path:
        if offset >= 0 and size_bytes >= 1 and offset + size_bytes <= SIZE:
            registry.register("frames", key_of(path), offset=offset, size_bytes=size_bytes)
        else:
            with pytest.raises(OptionError):
                registry.register("frames", key_of(path), offset=offset, size_bytes=size_bytes)
            assert registry.regions() == ()


@given(
    offset=st.integers(0, 9000),
    size_bytes=st.integers(1, 1000),
    at=st.integers(-2, 1002) | INTEGERS,
    length=st.integers(-2, 1002) | INTEGERS,
)
def test_only_what_lies_in_the_region_can_be_viewed(offset, size_bytes, at, length):
    registry = SharedMemoryRegistry(ANY_KEY)
    with shared_object() as path:
        registry.register("frames", key_of(path), offset=offset, size_bytes=size_bytes)
        if at >= 0 and length >= 0 and at + length <= size_bytes:
            expected = np.arange(SIZE, dtype=np.uint8)[offset + at : offset + at + length]
            assert registry.view("frames", at, length) == expected.tobytes()
        else:
            with pytest.raises(TensorError, match=f"which has {size_bytes}"):
                registry.view("frames", at, length)


@pytest.mark.parametrize(
    "key",
    ["", "/", "/..", "..", ".", "/../etc/passwd", "/a/b", "//etc/passwd", "a\0b", "/" + "x" * 256, "/\ud800"],
    ids=ascii,
)
def test_key_that_is_no_plain_name_is_refused(key):
    with pytest.raises(OptionError):
        SharedMemoryRegistry(ANY_KEY).register("frames", key, offset=0, size_bytes=1)


def test_link_is_not_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    link = FOLDER / f"sanderling-test-{uuid.uuid4().hex}"
    link.symlink_to(secret)
    try:
        with pytest.raises(OptionError, match="cannot be opened"):
            SharedMemoryRegistry(ANY_KEY).register("frames", key_of(link), offset=0, size_bytes=6)
    finally:
        link.unlink()


def test_pipe_is_refused_at_once():
    pipe = FOLDER / f"sanderling-test-{uuid.uuid4().hex}"
    os.mkfifo(pipe)
    try:
        with pytest.raises(OptionError, match="is not an object of shared memory"):
            SharedMemoryRegistry(ANY_KEY).register("frames", key_of(pipe), offset=0, size_bytes=6)
    finally:
        pipe.unlink()


def test_object_that_is_not_there_is_told():
    with pytest.raises(OptionError, match="'/sanderling-none' does not exist: make it before"):
        SharedMemoryRegistry(ANY_KEY).register("frames", "/sanderling-none", offset=0, size_bytes=6)


def test_server_without_a_prefix_maps_nothing():
    registry = SharedMemoryRegistry()
    assert not registry.is_allowed
    with shared_object() as path, pytest.raises(UnavailableError, match="--shared-memory-prefix"):
        registry.register("frames", key_of(path), offset=0, size_bytes=1)


def test_only_keys_with_the_prefix_are_mapped():
    registry = SharedMemoryRegistry("/camera-")
    with shared_object(name="camera") as allowed, shared_object(name="other") as other:
        registry.register("frames", key_of(allowed), offset=0, size_bytes=1)
        with pytest.raises(OptionError, match="expected one that begins with /camera-"):
            registry.register("others", key_of(other), offset=0, size_bytes=1)


@pytest.mark.parametrize("prefix", ["camera", "/a/b", "/a\0", "/../x"])
def test_prefix_of_another_form_is_refused(prefix):
    with pytest.raises(OptionError, match="has the wrong form"):
        SharedMemoryRegistry(prefix)


def test_name_that_is_taken_is_refused_and_stays():
    registry = SharedMemoryRegistry(ANY_KEY)
    with shared_object() as path:
        registry.register("frames", key_of(path), offset=0, size_bytes=5)
        with pytest.raises(ConflictError, match="registered already"):
            registry.register("frames", key_of(path), offset=1, size_bytes=6)
        assert registry.regions("frames")[0].size_bytes == 5


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_name_without_a_use_is_refused(name):
    with shared_object() as path, pytest.raises(OptionError, match="expected 1 to 255"):
        SharedMemoryRegistry(ANY_KEY).register(name, key_of(path), offset=0, size_bytes=5)


def test_unknown_region_is_told_with_those_there_are():
    registry = SharedMemoryRegistry(ANY_KEY)
    with shared_object() as path:
        registry.register("frames", key_of(path), offset=0, size_bytes=5)
        for ask in (lambda: registry.view("frame\n", 0, 1), lambda: registry.regions("frame\n")):
            with pytest.raises(NotFoundError, match=r"no shared memory region 'frame\\n': registered are frames"):
                ask()


def test_object_that_has_become_smaller_is_told():
    registry = SharedMemoryRegistry(ANY_KEY)
    with shared_object() as path:
        registry.register("frames", key_of(path), offset=0, size_bytes=SIZE)
        os.truncate(path, 4096)
        assert registry.view("frames", 0, 4096)[4095] == 255
        with pytest.raises(TensorError, match="has become smaller: it has 4096 bytes"):
            registry.view("frames", 0, 4097)


def test_number_of_regions_is_bounded():
    registry = SharedMemoryRegistry(ANY_KEY)
    with shared_object(size_bytes=1) as path:
        for index in range(MOST_REGIONS):
            registry.register(str(index), key_of(path), offset=0, size_bytes=1)
        with pytest.raises(OptionError, match="is one too many"):
            registry.register("last", key_of(path), offset=0, size_bytes=1)
    registry.unregister()


def test_place_is_read_from_a_tensors_parameters():
    told = {"shared_memory_region": "frames", "shared_memory_byte_size": 8, "shared_memory_offset": 4}
    assert place_of("image", told) == Place("frames", 4, 8)
    assert place_of("image", {**told, "shared_memory_offset": 0}) == Place("frames", 0, 8)
    assert place_of("image", {"other": 1}) is None


@pytest.mark.parametrize(
    "told",
    [
        {"shared_memory_region": "frames"},
        {"shared_memory_byte_size": 8},
        {"shared_memory_offset": 8},
        {"shared_memory_region": 5, "shared_memory_byte_size": 8},
        {"shared_memory_region": "frames", "shared_memory_byte_size": True},
        {"shared_memory_region": "frames", "shared_memory_byte_size": 8, "shared_memory_offset": "4"},
    ],
    ids=str,
)
def test_half_a_place_is_refused(told):
    with pytest.raises(TensorError, match="missing or of a wrong type"):
        place_of("image", told)
