"""One preprocessing in its forms, on the same 50 pictures: on the host, in the graph, as ArkTS, and as AIPP."""

from __future__ import annotations

import base64
import json

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from sanderling.core.errors import UnavailableError
from sanderling.demo.photos import CALIBRATION, EVALUATION, find_photos
from sanderling.model.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from sanderling.run.pictures import read_frame, read_picture
from sanderling.run.vision.frames import Frame, frame_of
from sanderling.run.vision.transforms import transform
from sanderling.workshop.fused_preprocessing import FrameSource, preprocessing_alone
from sanderling.workshop.targets.ascend.aipp import configure, convert, largest_allowed, unpacked
from sanderling.workshop.targets.harmonyos import toolchain
from tests.arkts import SOURCES
from tests.installing import install_arkts

cv2 = pytest.importorskip("cv2")
COUNT = 50
WAYS = [
    Preprocessing(width=96, height=96, resize="letterbox", mean=IMAGENET_MEAN, std=IMAGENET_STD),
    Preprocessing(width=80, height=96, resize_to=104, color="bgr", interpolation="bicubic"),
    Preprocessing(width=96, height=64, resize="stretch", interpolation="area"),
    Preprocessing(width=64, height=64, resize="letterbox", antialias=False, color="gray", mean=(0.5,), std=(0.25,)),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Crops of real photos in 50 sizes, as PNG and JPEG."""
    try:
        photos = [Image.open(path).convert("RGB") for path in find_photos([*CALIBRATION, *EVALUATION])]
    except UnavailableError as error:
        pytest.skip(str(error))
    random, folder = np.random.default_rng(7), tmp_path_factory.mktemp("pictures")
    made = []
    for index in range(COUNT):
        photo = photos[index % len(photos)]
        width, height = (int(random.integers(20, min(side, 300))) for side in photo.size)
        left, top = (
            int(random.integers(0, side - size)) for side, size in zip(photo.size, (width, height), strict=True)
        )
        path = folder / f"{index:02d}.{'png' if index % 2 else 'jpg'}"
        photo.crop((left, top, left + width, top + height)).save(path)
        made.append(path)
    return made


def way_of(index):
    return WAYS[index % len(WAYS)]


def levels(one, other, preprocessing):
    """Largest difference in levels of 255."""
    std = np.asarray(preprocessing.std, np.float64).reshape(1, -1, 1, 1)
    return float((np.abs(one.astype(np.float64) - other) * std).max()) / preprocessing.scale


def as_rgb(frame):
    return np.repeat(frame.pixels[:, :, None], 3, axis=2) if frame.format == "gray" else frame.pixels


def as_nv12(frame) -> Frame:
    """The frame as a camera would give it; a last odd row or column is left out."""
    rgb = as_rgb(frame)[: frame.height // 2 * 2, : frame.width // 2 * 2]
    height, width = rgb.shape[:2]
    planes = cv2.cvtColor(rgb, cv2.COLOR_RGB2YUV_I420)
    chroma = planes[height:].reshape(2, -1)
    return frame_of(np.concatenate([planes[:height], chroma.T.reshape(height // 2, width)]), "nv12")


def in_graph(frame, preprocessing):
    source = FrameSource(frame.format, frame.width, frame.height, frame.standard)
    model = preprocessing_alone(preprocessing, source, name="frame").SerializeToString()
    return onnxruntime.InferenceSession(model).run(None, {"frame": frame.pixels})[0]


def as_arkts(frames, tmp_path):
    jobs = []
    for index, frame in enumerate(frames):
        packed = 1 if frame.format == "nv12" else 3
        encoded = base64.b64encode(np.ascontiguousarray(frame.pixels).tobytes()).decode()
        made = {"width": frame.width, "height": frame.height, "order": frame.format, "stride": packed * frame.width}
        ways = way_of(index).model_dump(mode="json")
        jobs.append({"frame": made | {"base64": encoded}, "preprocessing": ways, "channelsLast": False})
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps(jobs))
    answers = json.loads(toolchain.run_script("pictures.js", [str(SOURCES), str(file)]))
    return [np.frombuffer(base64.b64decode(each["base64"]), np.float32).reshape(each["shape"]) for each in answers]


@pytest.mark.parametrize("pixel_format", ["rgb", "nv12"])
def test_host_and_graph_agree_on_50_pictures(files, pixel_format):
    for index, file in enumerate(files):
        frame = frame_of(as_rgb(read_frame(file))) if pixel_format == "rgb" else as_nv12(read_frame(file))
        host, _ = transform(frame, way_of(index))
        assert levels(in_graph(frame, way_of(index)), host, way_of(index)) <= 1.001, file.name


def test_files_and_frames_agree_on_50_pictures(files):
    for index, file in enumerate(files):
        host, _ = transform(read_frame(file), way_of(index))
        assert levels(read_picture(file, way_of(index)), host, way_of(index)) <= 1.001, file.name


@pytest.mark.parametrize("pixel_format", ["rgb", "nv12"])
def test_host_and_arkts_agree_on_50_pictures(files, tmp_path, pixel_format):
    reason = install_arkts()
    if reason:
        pytest.skip(f"ArkTS is not checked: {reason}")
    read = [read_frame(file) for file in files]
    frames = [frame_of(as_rgb(frame)) if pixel_format == "rgb" else as_nv12(frame) for frame in read]
    for index, made in enumerate(as_arkts(frames, tmp_path)):
        host, _ = transform(frames[index], way_of(index))
        assert levels(made, host, way_of(index)) <= 1.001, files[index].name


@pytest.mark.parametrize("standard", ["bt601-narrow", "bt601-wide", "bt709-narrow"])
def test_host_and_aipp_agree_on_50_pictures(files, standard):
    preprocessing = Preprocessing(width=96, height=64, resize="none", mean=IMAGENET_MEAN, std=IMAGENET_STD)
    aipp = configure(preprocessing, "nv12", standard)
    for file in files:
        nv12 = as_nv12(frame_of(np.asarray(Image.open(file).convert("RGB").resize((96, 64)))))
        frame = frame_of(nv12.pixels, "nv12", standard=standard)
        host, _ = transform(frame, preprocessing)
        chip = convert(aipp, unpacked("nv12", nv12.pixels))
        assert levels(chip, host, preprocessing) <= largest_allowed(aipp), file.name
