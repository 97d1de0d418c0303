from __future__ import annotations

import struct
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sanderling.core.errors import TensorError
from sanderling.serve.tensors import (
    datatype_of,
    decode_binary,
    decode_json,
    dtype_of,
    element_count,
    encode_binary,
    encode_json,
    to_text,
)

NUMBERS = ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64")
DATATYPES = (*NUMBERS, "BOOL", "BF16", "BYTES")
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
arrays = st.one_of(
    st.sampled_from(NUMBERS).flatmap(lambda name: hnp.arrays(dtype_of(name), shapes)), hnp.arrays(np.bool_, shapes)
)
byte_arrays = hnp.arrays(object, shapes, elements=st.binary(max_size=9))


@given(arrays)
def test_numbers_come_back_as_they_were_sent(array):
    decoded = decode_binary("x", datatype_of(array.dtype.name), array.shape, encode_binary(array))
    assert decoded.dtype == array.dtype
    np.testing.assert_array_equal(decoded, array)


@given(byte_arrays)
def test_byte_strings_come_back_as_they_were_sent(array):
    decoded = decode_binary("x", "BYTES", array.shape, encode_binary(array))
    np.testing.assert_array_equal(decoded, array)


def test_bfloat16_comes_back_as_it_was_sent():
    array = np.array([[1.5, -2.0, 0.0]], ml_dtypes.bfloat16)
    decoded = decode_binary("x", "BF16", [1, 3], encode_binary(array))
    assert decoded.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(decoded, array)


@given(arrays)
def test_numbers_come_back_from_json(array):
    if not np.isfinite(array).all():
        return
    decoded = decode_json("x", datatype_of(array.dtype.name), array.shape, encode_json("x", array))
    np.testing.assert_array_equal(decoded, array)


def test_nested_lists_are_read_like_flat_ones():
    np.testing.assert_array_equal(decode_json("x", "INT32", [2, 2], [[1, 2], [3, 4]]), [[1, 2], [3, 4]])


def test_binary_numbers_are_a_view_of_the_body():
    body = bytearray(struct.pack("<4f", 1, 2, 3, 4))
    array = decode_binary("x", "FP32", [4], memoryview(body))
    body[:4] = struct.pack("<f", 9)
    assert array[0] == 9
    assert array.flags.writeable


def test_misaligned_numbers_are_copied_to_where_engines_can_read_them():
    block = np.zeros(64, np.uint8)
    at = -block.ctypes.data % 16 + 1
    data = memoryview(block)[at : at + 8]
    data[:] = struct.pack("<2f", 1, 2)
    array = decode_binary("x", "FP32", [2], data)
    assert array.flags.aligned
    assert array.tolist() == [1, 2]


@settings(max_examples=300)
@given(
    datatype=st.sampled_from((*DATATYPES, "FP8", "")),
    shape=st.lists(st.integers(-2, 2**64), max_size=5) | st.none() | st.text(max_size=2),
    data=st.binary(max_size=64),
)
def test_random_bytes_are_a_tensor_or_an_error_of_ours(datatype, shape, data):
    try:
        array = decode_binary("x", datatype, shape, data)
    except TensorError:
        return
    assert list(array.shape) == list(shape)


def test_lying_sizes_allocate_nothing():
    data = bytes(64)
    tracemalloc.start()
    for datatype in DATATYPES:
        for shape in ([2**40], [2**31, 2**31], [0, 2**63], [2**62]):
            with pytest.raises(TensorError):
                decode_binary("x", datatype, shape, data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "told"),
    [
        ("FP8", [1], b"\0", "datatype 'FP8' is unknown: available are BOOL"),
        ("FP32", [-1], b"", "-1 in its shape"),
        ("FP32", [1.0], bytes(4), "1.0 in its shape"),
        ("FP32", [True], bytes(4), "True in its shape"),
        ("FP32", "12", bytes(4), "expected a list of whole numbers"),
        ("FP32", [1] * 33, bytes(4), "33 axes"),
        ("FP32", [2**32, 2**32], b"", "more than memory holds"),
        ("FP32", [0, 2**63], b"", "more than memory holds"),
        ("FP32", [0, 2**62, 3], b"", "more than memory holds"),
        ("FP32", [2, 2], bytes(15), "has 15 bytes: expected 16 for FP32 of shape [2, 2]"),
        ("FP32", [2, 2], bytes(17), "has 17 bytes: expected 16"),
        ("BOOL", [2], b"\0\2", "neither 0 nor 1"),
        ("BYTES", [1], b"\5\0\0\0abc", "says that element 0 has 5 bytes: only 3 are left"),
        ("BYTES", [1], b"\xff\xff\xff\xffabc", "says that element 0 has 4294967295 bytes"),
        ("BYTES", [2], b"\4\0\0\0abcd\1", "ends before the length of element 1 of 2"),
        ("BYTES", [1], b"\1\0\0\0ab", "1 bytes after its last element"),
        ("BYTES", [2**40], b"\0\0\0\0", "expected at least"),
    ],
)
def test_binary_that_is_not_what_it_says_is_refused_with_both_numbers(datatype, shape, data, told):
    with pytest.raises(TensorError) as caught:
        decode_binary("x", datatype, shape, data)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "told"),
    [
        ("INT32", [2], [1], "has 1 elements: expected 2"),
        ("INT32", [1], 1, "data of int: expected a list"),
        ("INT32", [1], [1.5], "elements of float: expected whole numbers"),
        ("INT32", [1], [True], "elements of bool"),
        ("INT8", [1], [300], "is no INT8"),
        ("UINT8", [1], [-1], "is no UINT8"),
        ("FP32", [1], ["1"], "elements of str: expected numbers"),
        ("FP16", [1], [1e10], "too large for FP16"),
        ("FP32", [1], [10**400], "is no FP32"),
        ("BOOL", [1], [1], "elements of int: expected true and false"),
        ("FP32", [3], [[1, 2], [3]], "lists of different lengths"),
        ("FP32", [2], [1, [2]], "lists of different lengths"),
        ("FP32", [1], [None], "elements of NoneType"),
        ("BYTES", [1], [1], "of BYTES has a int"),
        ("BYTES", [1], ["\ud800"], "half a surrogate pair"),
    ],
)
def test_json_that_is_not_what_it_says_is_refused(datatype, shape, data, told):
    with pytest.raises(TensorError) as caught:
        decode_json("x", datatype, shape, data)
    assert told in str(caught.value)


def test_lists_nested_too_deeply_are_refused():
    data: list = [1]
    for _ in range(100):
        data = [data]
    with pytest.raises(TensorError, match="nested deeper"):
        decode_json("x", "FP32", [1], data)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_json_cannot_say_is_refused(value):
    with pytest.raises(TensorError, match="NaN or infinity"):
        encode_json("scores", np.array([value], np.float32))
    with pytest.raises(TensorError, match="not UTF-8"):
        encode_json("names", np.array([b"\xff"], object))


def test_infinity_of_a_client_is_kept():
    assert decode_json("x", "FP16", [1], [float("inf")]).tolist() == [float("inf")]


def test_text_for_a_model_of_strings_must_be_utf8():
    assert to_text("x", np.array([["é".encode()]], object)).tolist() == [["é"]]
    with pytest.raises(TensorError, match="not UTF-8"):
        to_text("x", np.array([b"\xff"], object))


def test_a_scalar_has_one_element():
    assert element_count("x", []) == 1
