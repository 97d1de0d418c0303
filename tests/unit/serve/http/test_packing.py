"""Answers are packed as the client likes best."""

from __future__ import annotations

import gzip
import zlib

import pytest

from sanderling.serve.http.packing import coding_of, packed


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        (b"gzip", b"gzip"),
        (b"deflate", b"deflate"),
        (b"gzip, deflate, br", b"gzip"),
        (b"GZIP;q=0.2, deflate;q=0.8", b"deflate"),
        (b"gzip;q=0, deflate", b"deflate"),
        (b"*", b"gzip"),
        (b"*;q=0.5, gzip;q=0", b"deflate"),
        (b"gzip;q=0.5, identity", b""),
        (b"identity", b""),
        (b"br", b""),
        (b"", b""),
        (b"gzip;q=0", b""),
        (b"gzip;q=x", b""),
        (b"gzip;q=nan", b""),
        (b"*;q=0", b""),
        (b";;,,=", b""),
    ],
)
def test_the_client_chooses_the_coding(accepted, coding):
    assert coding_of(accepted) == coding


@pytest.mark.parametrize(("coding", "unpack"), [(b"gzip", gzip.decompress), (b"deflate", zlib.decompress)])
def test_what_is_packed_can_be_unpacked(coding, unpack):
    assert unpack(packed([b"abc", memoryview(b"def"), b""], coding)) == b"abcdef"
