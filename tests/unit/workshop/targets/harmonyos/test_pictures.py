from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from sanderling.core.errors import EngineError
from sanderling.model.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from sanderling.run.pictures import fit_pixels, normalize
from sanderling.run.vision.frames import frame_of
from sanderling.run.vision.transforms import transform
from sanderling.workshop.targets.harmonyos import toolchain
from tests.arkts import SOURCES

pytestmark = pytest.mark.usefixtures("arkts")
GREY = {"color": "gray", "mean": (0.5,), "std": (0.25,)}
WAYS = [
    {"width": 96, "height": 96, "resize_to": 110, "mean": IMAGENET_MEAN, "std": IMAGENET_STD},
    {"width": 96, "height": 80, "resize": "stretch", "interpolation": "bicubic"},
    {"width": 48, "height": 96, "resize": "stretch", "interpolation": "nearest"},
    {"width": 64, "height": 64, "resize_to": 73, "interpolation": "bicubic", "color": "bgr", "std": (0.2, 0.3, 0.4)},
    {"width": 64, "height": 64, "resize_to": 64, **GREY},
    {"width": 64, "height": 64, "resize_to": 70, "interpolation": "nearest", "layout": "NHWC", "scale": 1.0},
    {"width": 96, "height": 80, "resize": "letterbox"},
    {"width": 64, "height": 96, "resize": "letterbox", "pad": 0, "anchor": "top-left", "antialias": False, **GREY},
    {"width": 64, "height": 64, "resize_to": 70, "interpolation": "bicubic", "antialias": False, "color": "bgr"},
    {"width": 80, "height": 64, "resize": "stretch", "interpolation": "area"},
]
SIZES = [(120, 160), (161, 120), (31, 57), (96, 96), (500, 75), (83, 84), (226, 75)]  # height and width
MATRICES = {  # luma offset, then what V, U and V, and U add; ITU-R BT.601 and BT.709
    "bt601": (16.0, 255 / 219, 1.596027, -0.391762, -0.812968, 2.017232),
    "bt601-wide": (0.0, 1.0, 1.402, -0.344136, -0.714136, 1.772),
    "bt709": (16.0, 255 / 219, 1.792741, -0.213249, -0.532909, 2.112402),
}


@pytest.fixture
def prepare(tmp_path):
    """Prepares frames on the module; returns arrays."""

    def prepared(jobs):
        file = tmp_path / "jobs.json"
        file.write_text(json.dumps(jobs))
        answers = json.loads(toolchain.run_script("pictures.js", [str(SOURCES), str(file)]))
        return [np.frombuffer(base64.b64decode(each["base64"]), np.float32).reshape(each["shape"]) for each in answers]

    return prepared


def frame(data, width, height, order, stride=None):
    encoded = base64.b64encode(np.ascontiguousarray(data).tobytes()).decode()
    bytes_a_pixel = {"rgb": 3, "rgba": 4, "bgra": 4}.get(order, 1)
    return {
        "width": width,
        "height": height,
        "order": order,
        "stride": stride or width * bytes_a_pixel,
        "base64": encoded,
    }


def job(made, preprocessing, **rest):
    return {"frame": made, "preprocessing": preprocessing.model_dump(mode="json"), "channelsLast": False, **rest}


def random_picture(size, seed=0):
    source = np.random.default_rng(seed)
    blocks = source.integers(0, 256, (size[0] // 5 + 1, size[1] // 5 + 1, 3)).repeat(5, axis=0).repeat(5, axis=1)
    noise = source.integers(-30, 31, (*size, 3))
    return (blocks[: size[0], : size[1]] + noise).clip(0, 255).astype(np.uint8)


def rgba(picture):
    return np.concatenate([picture, np.full((*picture.shape[:2], 1), 255, np.uint8)], axis=2)


def test_pictures_come_out_as_on_the_host(prepare):
    cases = [(Preprocessing(**way), random_picture(size, seed)) for seed, size in enumerate(SIZES) for way in WAYS]
    made = prepare([job(frame(rgba(each), each.shape[1], each.shape[0], "rgba"), way) for way, each in cases])
    for (way, picture), got in zip(cases, made, strict=True):
        wanted = normalize(fit_pixels(picture, way)[None], way)
        assert np.abs(got - wanted).max() <= way.scale / min(way.std) * 1.001, (way, picture.shape)
        filters = way.antialias and way.interpolation != "area"
        assert (got == wanted).mean() > (0.99 if filters else 0.75), (
            way,
            picture.shape,
        )  # OpenCV rounds in its own way


def test_model_that_takes_channels_last_gets_them_so(prepare):
    way, picture = Preprocessing(**WAYS[0]), random_picture((120, 160))
    made = frame(rgba(picture), 160, 120, "rgba")
    second, last = prepare([job(made, way), {**job(made, way), "channelsLast": True}])
    np.testing.assert_array_equal(last, second.transpose(0, 2, 3, 1))


def test_order_of_bytes_and_padded_rows_do_not_matter(prepare):
    way, picture = Preprocessing(**WAYS[0]), random_picture((120, 160))
    padded = np.zeros((120, 700), np.uint8)
    padded[:, :640] = rgba(picture).reshape(120, 640)
    frames = [
        frame(rgba(picture), 160, 120, "rgba"),
        frame(picture, 160, 120, "rgb"),
        frame(rgba(picture)[:, :, [2, 1, 0, 3]], 160, 120, "bgra"),
        frame(padded, 160, 120, "rgba", stride=700),
    ]
    first, *others = prepare([job(each, way) for each in frames])
    for other in others:
        np.testing.assert_array_equal(other, first)


@pytest.mark.parametrize("order", ["nv12", "nv21"])
@pytest.mark.parametrize("matrix", MATRICES)
def test_yuv_frames_agree_with_the_standard_to_one_step(prepare, order, matrix):
    width, height = 96, 64
    source = np.random.default_rng(3)
    luma = source.integers(16, 236, (height, width), dtype=np.uint8)
    chroma = source.integers(16, 241, (height // 2, width // 2, 2), dtype=np.uint8)
    data = np.concatenate([luma.ravel(), chroma.ravel()])
    way = Preprocessing(width=width, height=height, resize="none", scale=1.0)
    (made,) = prepare([job(frame(data, width, height, order), way, matrix=matrix)])
    u, v = (chroma[:, :, index].repeat(2, axis=0).repeat(2, axis=1) - 128.0 for index in (0, 1))
    u, v = (u, v) if order == "nv12" else (v, u)
    low, gain, red_v, green_u, green_v, blue_u = MATRICES[matrix]
    grey = (luma - low) * gain
    wanted = np.stack([grey + red_v * v, grey + green_u * u + green_v * v, grey + blue_u * u]).clip(0, 255)
    assert np.abs(made[0] - wanted).max() <= 1.0


@pytest.mark.parametrize(
    ("matrix", "standard"), [("bt601", "bt601-narrow"), ("bt601-wide", "bt601-wide"), ("bt709", "bt709-narrow")]
)
def test_yuv_frames_have_the_hosts_levels(prepare, matrix, standard):
    pytest.importorskip("cv2")
    way = Preprocessing(width=160, height=120, resize="none", scale=1.0)
    data = np.random.default_rng(4).integers(0, 256, (180, 160), dtype=np.uint8)
    (made,) = prepare([job(frame(data, 160, 120, "nv12"), way, matrix=matrix)])
    np.testing.assert_array_equal(made, transform(frame_of(data, "nv12", standard=standard), way)[0])


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (frame(np.zeros(15 * 10 * 3 // 2, np.uint8), 15, 10, "nv12"), "15×10 cannot be nv12: width and height must be"),
        (frame(np.zeros(10, np.uint8), 8, 8, "rgba"), "8×8 rgba with 32 bytes a row has 10 bytes: expected 256"),
        (frame(np.zeros(256, np.uint8), 8, 8, "rgba", stride=8), "8×8 rgba with 8 bytes a row"),
        (frame(np.zeros(192, np.uint8), 8, 8, "rgb"), "picture has 8×8 pixels: expected 16×16"),
    ],
)
def test_frames_that_do_not_fit_are_refused(prepare, made, message):
    way = Preprocessing(width=16, height=16, resize="none")
    with pytest.raises(EngineError, match=message):
        prepare([job(made, way)])
