from __future__ import annotations

import numpy as np
import pytest

from sanderling.core.errors import TensorError
from sanderling.core.tensor import TensorSpec, check_feeds, check_outputs, random_feeds

IMAGE = TensorSpec(name="image", dtype="float32", shape=("N", 3, 8))
MASK = TensorSpec(name="mask", dtype="int64", shape=("N", 8))
SPECS = (IMAGE, MASK)


def feeds(**changes: object) -> dict:
    return {"image": np.zeros((2, 3, 8), np.float32), "mask": np.zeros((2, 8), np.int64)} | changes


def complaint(given: dict, specs: tuple[TensorSpec, ...] = SPECS) -> str:
    with pytest.raises(TensorError) as caught:
        check_feeds(given, specs)
    return str(caught.value)


def test_fitting_feeds_pass():
    check_feeds(feeds(), SPECS)


def test_unknown_input_is_named_with_the_available_ones():
    message = complaint(feeds(imag=np.zeros(1, np.float32)))
    assert "unknown input ['imag']" in message
    assert "image: float32[N, 3, 8]" in message
    assert "mask: int64[N, 8]" in message


def test_missing_input_is_named_with_the_available_ones():
    message = complaint({"image": feeds()["image"]})
    assert "missing input ['mask']" in message
    assert "mask: int64[N, 8]" in message


def test_wrong_dtype_is_told_with_the_expected_one_and_the_cure():
    message = complaint(feeds(image=np.zeros((2, 3, 8))))
    assert "'image' has dtype float64: expected float32" in message
    assert ".astype('float32')" in message


def test_wrong_rank_is_told_with_the_expected_number_of_axes():
    message = complaint(feeds(image=np.zeros((3, 8), np.float32)))
    assert "'image' has shape (3, 8): expected 3 axes" in message


def test_wrong_fixed_axis_is_told_with_its_position_and_size():
    message = complaint(feeds(image=np.zeros((2, 4, 8), np.float32)))
    assert "'image' has shape (2, 4, 8): axis 1 must be 3" in message


def test_dynamic_axes_of_one_name_must_agree():
    message = complaint(feeds(mask=np.zeros((5, 8), np.int64)))
    assert "'mask' has 5 along 'N', but input 'image' has 2" in message


def test_dynamic_axes_of_other_names_may_differ():
    other = TensorSpec(name="mask", dtype="int64", shape=("M", 8))
    check_feeds(feeds(mask=np.zeros((5, 8), np.int64)), (IMAGE, other))


def test_list_in_place_of_an_array_is_told():
    assert "'mask' is a list: expected a NumPy array" in complaint(feeds(mask=[[0] * 8] * 2))


def test_foreign_byte_order_is_refused_because_engines_read_it_as_garbage():
    # NumPy gives '>f4' the same name as '<f4', and ONNX Runtime takes its bytes as they lie.
    swapped = feeds()["image"].astype(np.dtype(np.float32).newbyteorder())
    assert "image" in complaint(feeds(image=swapped))


@pytest.mark.parametrize("array", [np.array(["a", "bc"]), np.array(["a", "bc"], object)], ids=["str", "object"])
def test_strings_fit_a_string_input(array):
    check_feeds({"text": array}, (TensorSpec(name="text", dtype="str", shape=(2,)),))


def test_concrete_shape_takes_the_batch_for_the_first_axis_and_one_for_others():
    spec = TensorSpec(name="x", dtype="float32", shape=("N", 3, "W"))
    assert spec.concrete_shape(4) == (4, 3, 1)
    assert spec.dynamic_axes == (0, 2)
    assert str(spec) == "x: float32[N, 3, W]"


def test_random_feeds_fit_their_specs_and_repeat_with_the_seed():
    specs = (*SPECS, TensorSpec(name="flag", dtype="bool", shape=(1,)), TensorSpec(name="h", dtype="float16", shape=()))
    first = random_feeds(specs, batch=2, seed=1)
    check_feeds(first, specs)
    assert all(np.array_equal(first[name], array) for name, array in random_feeds(specs, batch=2, seed=1).items())
    assert not np.array_equal(first["image"], random_feeds(specs, batch=2, seed=2)["image"])


SCORES = TensorSpec(name="scores", dtype="float32", shape=("N", 4))
BOXES = TensorSpec(name="boxes", dtype="float32", shape=("N", 2))


def outputs(**changes: object) -> dict:
    return {"scores": np.empty((2, 4), np.float32), "boxes": np.empty((2, 2), np.float32)} | changes


def refusal(given: dict, given_feeds: dict | None = None) -> str:
    with pytest.raises(TensorError) as caught:
        check_outputs(given, (SCORES, BOXES), given_feeds)
    return str(caught.value)


def test_fitting_outputs_pass():
    check_outputs(outputs(), (SCORES, BOXES), feeds())
    halves = np.empty((2, 2, 2), np.float32)
    check_outputs({"a": halves[0], "b": halves[1]}, [BOXES.model_copy(update={"name": name}) for name in "ab"])


def test_outputs_of_other_names_are_told_with_the_available_ones():
    assert "unknown output ['box']: available outputs are scores" in refusal(outputs(box=np.zeros(1)))
    assert "missing output ['boxes']" in refusal({"scores": outputs()["scores"]})


@pytest.mark.parametrize(
    ("array", "told"),
    [
        ([[0.0] * 4] * 2, "output 'scores' is a list: expected a NumPy array, scores: float32[N, 4]"),
        (np.empty((2, 4)), "output 'scores' has dtype float64: expected float32; make it of float32"),
        (np.empty((2, 4), ">f4"), "output 'scores' has foreign byte order >f4"),
        (np.empty(4, np.float32), "output 'scores' has shape (4,): expected 2 axes"),
        (np.empty((2, 5), np.float32), "output 'scores' has shape (2, 5): axis 1 must be 4"),
        (np.empty((3, 4), np.float32), "output 'boxes' has 2 along 'N', but output 'scores' has 3"),
        (np.empty((4, 2), np.float32).T, "output 'scores' has strides (4, 8): expected a C-contiguous array"),
        (np.frombuffer(bytes(32), np.float32).reshape(2, 4), "output 'scores' is read-only"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_array_that_results_cannot_be_written_to_is_refused(array, told):
    assert told in refusal(outputs(scores=array))


def test_outputs_that_share_memory_are_refused():
    taken = np.empty(10, np.float32)
    both = outputs(scores=taken[:8].reshape(2, 4), boxes=taken[6:].reshape(2, 2))
    assert "output 'boxes' shares memory with output 'scores'" in refusal(both)
    image = feeds()["image"]
    inside = outputs(scores=image.reshape(-1)[:8].reshape(2, 4))
    assert "output 'scores' shares memory with input 'image'" in refusal(inside, feeds(image=image))


def test_outputs_of_strings_are_refused():
    words = TensorSpec(name="words", dtype="str", shape=("N",))
    with pytest.raises(TensorError, match="'words' is of strings"):
        check_outputs({"words": np.empty(2, object)}, (words,))
