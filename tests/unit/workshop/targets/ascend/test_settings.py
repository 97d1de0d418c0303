"""Options of the target `ascend`, and the shapes that follow from them."""

import pytest

from sanderling.core.errors import OptionError
from sanderling.core.tensor import TensorSpec
from sanderling.workshop.targets.ascend.settings import OPTIONS, input_shapes, read_settings

PICTURE = TensorSpec(name="image", dtype="float32", shape=("N", 3, "H", "W"))
TEXT = (
    TensorSpec(name="ids", dtype="int64", shape=("N", "length")),
    TensorSpec(name="mask", dtype="int64", shape=("N", "length")),
)


def test_nothing_said_is_a_batch_of_one_fed_with_tensors():
    settings = read_settings({})
    assert (settings.source, settings.batches, settings.dims, settings.timeout_s) == ("", (), (), 1800)


def test_values_are_read():
    settings = read_settings(
        {
            "source": "nv12",
            "matrix": "bt709-narrow",
            "image-sizes": "224,224; 320,256",
            "axes": "length=128,past=64",
            "black-list": "SoftmaxV2, Exp",
            "time-limit": "2.5",
        }
    )
    assert settings.image_sizes == ((224, 224), (320, 256))
    assert settings.axes == {"length": 128, "past": 64}
    assert settings.black_list == ("SoftmaxV2", "Exp")
    assert (settings.matrix, settings.timeout_s) == ("bt709-narrow", 2.5)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"source": "yuyv"}, "--option source=yuyv: expected one of nv12, nv21, rgb, xrgb, gray"),
        ({"matrix": "bt601-wide"}, "option matrix is how YUV is meant: give source=nv12"),
        ({"batch": "1,two"}, "--option batch=1,two: expected whole numbers"),
        ({"batch": "4,4"}, "names a size twice"),
        ({"batch": "0"}, "sizes from 1 on: got 0"),
        ({"batch": "1", "dynamic-batch": "1,2"}, "batch and dynamic-batch exclude each other"),
        ({"batch": "1,2", "dims": "1,2;3,4"}, "option batch takes one size where"),
        ({"image-sizes": "224x224"}, "--option image-sizes=224x224: expected whole numbers, as in 224,224;320,320"),
        ({"axes": "length"}, "--option axes=length: expected NAME=SIZE"),
        ({"axes": "length=0"}, "--option axes=length=0: expected NAME=SIZE"),
        ({"black-list": "Soft max"}, "--option black-list=Soft max: expected types of operators"),
        ({"time-limit": "soon"}, "--option time-limit=soon: expected seconds, greater than 0"),
        ({"time-limit": "-1"}, "--option time-limit=-1: expected seconds"),
    ],
)
def test_what_is_no_value_is_refused(options, told):
    with pytest.raises(OptionError) as refused:
        read_settings(options)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("options", "specs", "shapes"),
    [
        ({"axes": "H=8,W=6"}, [PICTURE], {"image": (4, 3, 8, 6)}),
        ({"axes": "H=8,W=6", "dynamic-batch": "1,2"}, [PICTURE], {"image": (-1, 3, 8, 6)}),
        ({"image-sizes": "8,8;9,9"}, [PICTURE], {"image": (4, 3, -1, -1)}),
        ({"dims": "1,8;2,9"}, TEXT, {"ids": (-1, -1), "mask": (-1, -1)}),
        ({"dims": "8;9", "batch": "4"}, TEXT, {"ids": (4, -1), "mask": (4, -1)}),
        ({"axes": "length=16"}, TEXT, {"ids": (4, 16), "mask": (4, 16)}),
    ],
)
def test_shapes_follow_the_options(options, specs, shapes):
    assert input_shapes(specs, read_settings(options), 4) == shapes


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "axis 'H' of input 'image' has no size: fix it with --option axes=H=SIZE"),
        ({"axes": "length=4"}, "no axis is called 'length': dynamic axes are H, N, W"),
    ],
)
def test_axis_without_a_size_is_named(options, told):
    with pytest.raises(OptionError, match=told):
        input_shapes([PICTURE], read_settings(options), 1)


def test_fixed_batch_of_the_model_is_not_changed():
    fixed = TensorSpec(name="image", dtype="float32", shape=(1, 3, 8, 8))
    assert input_shapes([fixed], read_settings({}), 1) == {"image": (1, 3, 8, 8)}
    with pytest.raises(OptionError, match="option batch=4: the model's first axis is fixed at 1"):
        input_shapes([fixed], read_settings({"batch": "4"}), 4)


def test_every_option_has_its_help():
    assert all(text for text in OPTIONS.values())
