from __future__ import annotations

import zipfile

import numpy as np
import pytest

from sanderling.core.errors import DataError, OutputError
from sanderling.core.tensor import TensorSpec
from sanderling.run.feeds import read_feeds, write_outputs

IMAGE = TensorSpec(name="image", dtype="float32", shape=(1, 3))
MASK = TensorSpec(name="mask", dtype="int64", shape=(1, 3))
VALUES = np.array([[1, 2, 3]], np.float32)


def complaint(path, inputs=(IMAGE,)) -> str:
    with pytest.raises(DataError) as caught:
        read_feeds(path, inputs)
    return str(caught.value)


def test_npz_gives_every_array_by_name(tmp_path):
    np.savez(tmp_path / "x.npz", image=VALUES, mask=np.ones((1, 3), np.int64))
    feeds = read_feeds(tmp_path / "x.npz", (IMAGE, MASK))
    assert feeds.keys() == {"image", "mask"}
    np.testing.assert_array_equal(feeds["image"], VALUES)


def test_npy_stands_for_the_only_input(tmp_path):
    np.save(tmp_path / "x.npy", VALUES)
    np.testing.assert_array_equal(read_feeds(tmp_path / "x.npy", (IMAGE,))["image"], VALUES)


def test_npy_for_two_inputs_is_refused_with_their_names(tmp_path):
    np.save(tmp_path / "x.npy", VALUES)
    message = complaint(tmp_path / "x.npy", (IMAGE, MASK))
    assert "image: float32[1, 3]; mask: int64[1, 3]" in message
    assert ".npz" in message


def test_missing_file_is_told(tmp_path):
    assert "does not exist" in complaint(tmp_path / "nowhere.npz")


@pytest.mark.parametrize("data", [b"", b"just text", b"PK\x03\x04cut", b"\x93NUMPY\x01\x00"], ids=repr)
@pytest.mark.parametrize("name", ["x.npz", "x.npy"])
def test_file_that_holds_no_arrays_is_told(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    assert name in complaint(tmp_path / name)


@pytest.mark.parametrize("name", ["x.npz", "x.npy"])
def test_pickled_objects_are_never_loaded(tmp_path, name):
    save = np.savez if name == "x.npz" else np.save
    save(tmp_path / name, np.array([{"a": 1}], dtype=object))
    assert "plain arrays" in complaint(tmp_path / name)


def test_npz_with_something_else_inside_is_told(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("image.txt", "hello")
    assert "image.txt" in complaint(tmp_path / "x.npz")


def test_npz_with_damaged_packed_data_is_told(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", image=np.arange(3000, dtype=np.float32))
    data = bytearray((tmp_path / "x.npz").read_bytes())
    data[200:400] = b"\xff" * 200
    (tmp_path / "x.npz").write_bytes(data)
    assert "x.npz" in complaint(tmp_path / "x.npz")


@pytest.mark.parametrize("name", ["scores", "layer/scores", "file", "allow_pickle", "ünïcode"])
def test_outputs_are_read_back_as_they_were_written(tmp_path, name):
    write_outputs(tmp_path / "y.npz", {name: VALUES, "other": VALUES + 1})
    with np.load(tmp_path / "y.npz") as arrays:
        np.testing.assert_array_equal(arrays[name], VALUES)
        np.testing.assert_array_equal(arrays["other"], VALUES + 1)


def test_outputs_go_to_exactly_the_named_file(tmp_path):
    write_outputs(tmp_path / "result", {"y": VALUES})
    assert [path.name for path in tmp_path.iterdir()] == ["result"]


def test_outputs_that_cannot_be_written_are_an_output_error(tmp_path):
    with pytest.raises(OutputError, match="cannot write"):
        write_outputs(tmp_path / "missing" / "y.npz", {"y": VALUES})
