from __future__ import annotations

import pytest

from sanderling.core.errors import OptionError
from sanderling.core.tensor import TensorSpec
from sanderling.model.sound import is_sound, parse_sound

WAVEFORM = TensorSpec(name="sound", dtype="float32", shape=("batch", 16_000))


@pytest.mark.parametrize("text", ["sound:16000", '{"sample_rate_hz": 16000}'])
def test_sample_rate_is_read_and_the_length_is_the_models(text):
    assert is_sound(text)
    spec = parse_sound(text, WAVEFORM)
    assert (spec.sample_rate_hz, spec.length, spec.seconds) == (16_000, 16_000, 1.0)


def test_channel_axis_of_one_is_a_sound_too():
    assert parse_sound("sound:8000", TensorSpec(name="x", dtype="float32", shape=(1, 1, 800))).length == 800


def test_preprocessing_of_pictures_is_no_sound():
    assert not is_sound("imagenet")
    assert not is_sound('{"scale": 1}')


@pytest.mark.parametrize("text", ["sound:", "sound:fast", "sound:-1", "sound:5", '{"sample_rate_hz": 8000, "x": 1}'])
def test_impossible_sample_rate_is_an_error_with_the_form_that_is_expected(text):
    with pytest.raises(OptionError, match="expected sound:RATE, with 1000 to 384000"):
        parse_sound(text, WAVEFORM)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("int16", (1, 16_000)), ("float32", (1, 3, 8, 8)), ("float32", (1, 2, 8)), ("float32", (1, "n"))],
)
def test_model_that_takes_no_sound_is_an_error(dtype, shape):
    with pytest.raises(OptionError, match="the model expects x"):
        parse_sound("sound:16000", TensorSpec(name="x", dtype=dtype, shape=shape))
