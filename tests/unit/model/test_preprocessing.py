from __future__ import annotations

import json

import pytest

from sanderling.core.errors import OptionError
from sanderling.core.tensor import TensorSpec
from sanderling.model.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing, check_fits, parse_preprocessing


def image(*shape: int | str, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name="image", dtype=dtype, shape=shape)


COLOR = image("N", 3, 224, 224)
GRAY = image(1, 1, 28, 28)


def complaint(text: str, spec: TensorSpec = COLOR) -> str:
    with pytest.raises(OptionError) as caught:
        parse_preprocessing(text, spec)
    return str(caught.value)


def test_imagenet_preset_is_the_one_that_torchvision_uses():
    preset = parse_preprocessing("imagenet", COLOR)
    assert (preset.resize, preset.resize_to, preset.width, preset.height) == ("shorter", 256, 224, 224)
    assert (preset.mean, preset.std) == (IMAGENET_MEAN, IMAGENET_STD)
    assert (preset.scale, preset.color, preset.interpolation) == (1 / 255, "rgb", "bilinear")
    assert preset.shape == (1, 3, 224, 224)


def test_unit_preset_only_scales():
    preset = parse_preprocessing("unit", COLOR)
    assert (preset.scale, set(preset.mean), set(preset.std)) == (1 / 255, {0.0}, {1.0})


def test_gray_input_takes_one_channel():
    preset = parse_preprocessing("unit", GRAY)
    assert (preset.color, preset.channels, preset.shape) == ("gray", 1, (1, 1, 28, 28))
    assert (preset.mean, preset.std) == ((0.0,), (1.0,))


def test_imagenet_preset_on_a_gray_input_is_refused():
    assert "has 1" in complaint("imagenet", GRAY)


def test_channels_last_is_recognised():
    preset = parse_preprocessing("imagenet", image(1, 192, 160, 3))
    assert (preset.layout, preset.height, preset.width, preset.shape) == ("NHWC", 192, 160, (1, 192, 160, 3))


def test_json_overrides_what_the_spec_says_and_the_rest_is_taken_from_it():
    text = json.dumps({"color": "bgr", "resize": "stretch", "mean": [1, 2, 3], "std": [4, 5, 6], "scale": 1})
    parsed = parse_preprocessing(text, COLOR)
    assert (parsed.color, parsed.resize, parsed.mean, parsed.std) == ("bgr", "stretch", (1, 2, 3), (4, 5, 6))
    assert (parsed.width, parsed.height, parsed.scale) == (224, 224, 1)


def test_json_file_is_read(tmp_path):
    (tmp_path / "p.json").write_text('{"resize_to": 300}')
    assert parse_preprocessing(str(tmp_path / "p.json"), COLOR).resize_to == 300


def test_json_gives_the_size_where_the_model_leaves_it_open():
    parsed = parse_preprocessing('{"height": 32, "width": 48}', image("N", 3, "H", "W"))
    assert (parsed.height, parsed.width, parsed.resize_to) == (32, 48, round(48 / 0.875))


def test_missing_size_is_told_when_the_model_leaves_it_open():
    assert "width" in complaint("imagenet", image("N", 3, "H", "W"))


def test_unknown_key_is_told_with_the_known_ones():
    message = complaint('{"heigth": 224}')
    assert "heigth" in message
    assert "known keys are width, height, color, resize" in message


@pytest.mark.parametrize(
    "fields",
    [
        {"std": [0, 1, 1]},
        {"std": [-1, 1, 1]},
        {"std": [1, 1]},
        {"std": 1},
        {"std": ["a", 1, 1]},
        {"std": [float("nan"), 1, 1]},
        {"std": [float("inf"), 1, 1]},
        {"mean": [0, 0]},
        {"mean": [0, float("nan"), 0]},
        {"scale": 0},
        {"scale": float("nan")},
        {"scale": float("inf")},
        {"resize": "crop"},
        {"resize_to": 100},
        {"interpolation": "lanczos"},
        {"color": "cmyk"},
        {"height": 0},
        {"height": "tall"},
        {"height": 224.5},
        {"height": 100_000},
    ],
    ids=str,
)
def test_value_that_no_picture_can_be_prepared_with_is_refused(fields):
    assert next(iter(fields)) in complaint(json.dumps(fields))


@pytest.mark.parametrize("text", ["imagnet", "{", "[1]", "", "missing.json", "a" * 5000], ids=lambda text: text[:12])
def test_text_that_is_neither_preset_nor_json_nor_file_is_refused(text):
    assert "preprocessing" in complaint(text)


def test_json_file_with_a_list_is_refused(tmp_path):
    (tmp_path / "p.json").write_text("[1]")
    assert "must be a JSON object, got list" in complaint(str(tmp_path / "p.json"))


@pytest.mark.parametrize("fields", [{"height": 200}, {"layout": "NHWC"}, {"color": "gray", "mean": [0], "std": [1]}])
def test_result_that_does_not_fit_the_model_is_told_with_both_shapes(fields):
    message = complaint(json.dumps(fields))
    assert "preprocessing yields float32[1, " in message
    assert "the model expects image: float32[N, 3, 224, 224]" in message


@pytest.mark.parametrize("spec", [image(1, 10), image(1, 3, 8, 8, 8)])
def test_model_that_takes_no_pictures_is_told(spec):
    assert "4 axes" in complaint("imagenet", spec)


def test_integer_input_takes_no_normalised_pictures():
    assert "the model expects image: uint8" in complaint("imagenet", image(1, 3, 224, 224, dtype="uint8"))


def test_any_batch_fits():
    preset = parse_preprocessing("imagenet", COLOR)
    for batch in ("N", 1, 8):
        check_fits(preset, image(batch, 3, 224, 224))


def test_preprocessing_survives_its_round_trip():
    preset = parse_preprocessing("imagenet", COLOR)
    assert Preprocessing.model_validate_json(preset.model_dump_json()) == preset
