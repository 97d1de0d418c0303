"""Exports to `onnx`: the file takes a camera's frames, and sizes that it cannot take are refused."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from sanderling.api import export
from sanderling.core.errors import OptionError
from sanderling.run.vision.frames import frame_of
from sanderling.run.vision.transforms import transform
from tests.square_detector import square_detector, square_detector_package

pytest.importorskip("cv2")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return square_detector_package(tmp_path_factory.mktemp("package"))


@pytest.mark.parametrize(("source", "size", "shape"), [("nv12", "100x60", (90, 100)), ("rgba", "1x3", (3, 1, 4))])
def test_file_gives_what_host_and_model_give(package, tmp_path, source, size, shape):
    export(package.path, tmp_path / "out", target="onnx", options={"source": source, "size": size})
    (file,) = (tmp_path / "out").glob("*.onnx")
    pixels = np.random.default_rng(0).integers(16, 236, shape).astype(np.uint8)
    got = onnxruntime.InferenceSession(file).run(["hm"], {"frame": pixels})[0]
    prepared, _ = transform(frame_of(pixels, source), package.manifest.preprocessing)
    model = onnxruntime.InferenceSession(square_detector().SerializeToString())
    np.testing.assert_allclose(got, model.run(["hm"], {"images": prepared})[0], atol=1 / 255)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "yuyv"}, "expected one of rgb"),
        ({"size": "100"}, "expected WIDTHxHEIGHT"),
        ({"size": "99999x99999"}, "at most 100,000,000 pixels"),
        ({"source": "nv21", "size": "33x22"}, "must be even"),
        ({"matrix": "bt2020"}, "expected one of bt601-narrow"),
    ],
)
def test_frames_that_cannot_be_taken_are_refused(package, tmp_path, options, message):
    with pytest.raises(OptionError, match=message):
        export(package.path, tmp_path / "out", target="onnx", options=options)
    assert not (tmp_path / "out").exists()
