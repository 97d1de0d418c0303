from __future__ import annotations

import pytest

from sanderling.run.sealed import SEAL_BYTES, is_intact, seal, unsealed


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache" / "graph.bin"


@pytest.mark.parametrize("content", [b"", b"graph", bytes(range(256)) * 1000])
def test_what_was_kept_comes_back(path, content):
    assert seal(content, path) == ""
    assert is_intact(path)
    assert unsealed(path) == content


def test_file_is_kept_like_its_bytes(path, tmp_path):
    (tmp_path / "made").write_bytes(b"graph")
    assert seal(tmp_path / "made", path) == ""
    assert unsealed(path) == b"graph"


def test_missing_file_is_nothing(path):
    assert unsealed(path) is None
    assert not is_intact(path)


@pytest.mark.parametrize("place", [0, SEAL_BYTES - 1, SEAL_BYTES, -1])
def test_altered_byte_is_noticed(path, place):
    seal(b"graph" * 100, path)
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    assert unsealed(path) is None
    assert not is_intact(path)


@pytest.mark.parametrize("length", [0, 10, SEAL_BYTES, SEAL_BYTES + 3])
def test_file_that_is_cut_short_is_noticed(path, length):
    seal(b"graph", path)
    path.write_bytes(path.read_bytes()[:length])
    assert unsealed(path) is None
    assert not is_intact(path)


def test_cache_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    note = seal(b"graph", tmp_path / "file" / "graph.bin")
    assert note.startswith("; not cached: ")
