from __future__ import annotations

import gzip
import zlib

import numpy as np
import pytest

from sanderling.serve.errors import MediaError, RequestError, TooLargeError
from sanderling.serve.http.body import ALIGNMENT, BodyPool, SizedBody, unpack


@pytest.mark.parametrize(("size", "alignment"), [(1000, 16), (100_000, ALIGNMENT)])
@pytest.mark.parametrize("aligned_at", [0, 1, 37, 200])
def test_the_first_tensor_of_a_body_is_aligned(aligned_at, size, alignment):
    body = SizedBody(size, aligned_at)
    assert len(body.data) == size
    assert (np.frombuffer(body.data, np.uint8).ctypes.data + aligned_at) % alignment == 0


def test_a_body_takes_what_fits_and_no_more():
    body = SizedBody(5)
    assert body.put(b"abc") == 3
    assert not body.is_whole
    assert body.put(b"defgh") == 2
    assert body.is_whole
    assert bytes(body.data) == b"abcde"
    assert len(body.room()) == 0


@pytest.mark.parametrize(("encoding", "pack"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
def test_a_packed_body_is_unpacked(encoding, pack):
    data = np.random.default_rng(0).bytes(3_000_000)
    assert unpack(pack(data), encoding, 4_000_000) == data
    with pytest.raises(TooLargeError, match="at most 1000 are taken"):
        unpack(pack(data), encoding, 1000)


def test_a_bomb_is_unpacked_no_further_than_the_limit():
    bomb = zlib.compress(bytes(200_000_000), 9)
    with pytest.raises(TooLargeError, match="1000001 bytes or more"):
        unpack(bomb, b"deflate", 1_000_000)


@pytest.mark.parametrize(
    "data", [b"", b"nonsense", gzip.compress(b"x" * 100, mtime=0)[:-5], gzip.compress(b"x", mtime=0) + b"more"]
)
def test_a_broken_packed_body_is_refused(data):
    with pytest.raises(RequestError):
        unpack(data, b"gzip", 1000)


def test_an_unknown_encoding_is_refused():
    with pytest.raises(MediaError, match="'br' is not understood: expected gzip or deflate"):
        unpack(b"", b"br", 1000)


def test_memory_of_a_body_is_used_again_only_when_nobody_refers_to_it():
    pool, size = BodyPool(), 100_000
    first = pool.take(size, 0)
    address = np.frombuffer(first.data, np.uint8).ctypes.data
    kept = np.frombuffer(first.data[8:16], np.float64)
    del first
    kept[:] = 7.0
    for _ in range(3):
        other = np.frombuffer(pool.take(size, 0).data, np.uint8)
        other[:] = 0
        assert other.ctypes.data != address
    assert kept[0] == 7.0
    del kept
    bodies = [pool.take(size, 0) for _ in range(4)]
    assert address in [np.frombuffer(body.data, np.uint8).ctypes.data for body in bodies]


def test_kept_memory_has_a_limit():
    pool = BodyPool(limit_bytes=500_000)
    for size in range(100_000, 200_000, 1_000):
        pool.take(size, 0)
        assert pool.kept_bytes <= 500_000
    assert len(pool.take(600_000, 0).data) == 600_000
