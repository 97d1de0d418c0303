"""The doctor on trained networks and crops of real photos: mistakes in the inputs are named, right inputs are not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import sanderling
from sanderling.api import build
from sanderling.core.errors import UnavailableError
from sanderling.core.progress import Silent
from sanderling.demo.photos import CALIBRATION, EVALUATION, find_photos, write_crops
from sanderling.demo.story import ARGUMENTS, MODEL, PREPROCESSING, find_weights
from sanderling.measure.samples import SampleReader
from sanderling.model.package import Package

ROOT = Path(__file__).parents[2]
CROPS = 32
SWAPPED, SCALE, LAYOUT, NORMALIZATION = (
    f"input-{name}" for name in ("channel-order", "scale", "layout", "normalization")
)


def options(name: str) -> tuple[str, dict]:
    """Source and options of a network's build."""
    if name == "lite0":
        arguments = {"factory_arguments": ARGUMENTS, "preprocess": json.dumps(PREPROCESSING)}
        return MODEL, {"weights": find_weights(), **arguments}
    from benchmarks.zoo.mobilenet_v2 import mobilenet_v2_weights

    return "benchmarks.zoo.mobilenet_v2:mobilenet_v2", {"weights": mobilenet_v2_weights(), "preprocess": "imagenet"}


@pytest.fixture(scope="module", params=["lite0", pytest.param("mobilenet_v2", marks=pytest.mark.drill)])
def net(request, tmp_path_factory):
    """A package of the network in FP32, and the folder of crops that it was evaluated on."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        try:
            source, given = options(request.param)
            photos = find_photos([*CALIBRATION, *EVALUATION])
        except (FileNotFoundError, UnavailableError) as error:
            pytest.skip(str(error))
        write_crops(photos, folder / "crops", count=CROPS, seed=3, progress=Silent())
        sizes = {"inputs": ["input=1,3,224,224"], "dynamic": ["batch"]}
        crops = folder / "crops"
        made = build(source, folder / "net.sdl", evaluation=crops, precision="fp32", repeats=1, **sizes, **given)
    return made.path, crops


@pytest.fixture(scope="module")
def right(net):
    """Every crop as the package says, (N, 3, 224, 224), and mean and std as (3, 1, 1)."""
    package, crops = net
    manifest = Package.open(package).manifest
    samples = SampleReader(manifest.inputs, manifest.preprocessing, None, Silent()).read(crops)
    values = np.concatenate([samples.one(index)["input"] for index in range(len(samples))])
    assert manifest.preprocessing is not None
    mean, std = (
        np.float32(entry)[:, None, None] for entry in (manifest.preprocessing.mean, manifest.preprocessing.std)
    )
    return values, mean, std


def faults(path: Path, values: np.ndarray, tmp_path: Path, **more) -> set[str]:
    np.savez(tmp_path / "captured.npz", input=np.ascontiguousarray(values, np.float32))
    found = sanderling.doctor(path, data=tmp_path / "captured.npz", engines=["onnxruntime"], **more)
    return {finding.kind for finding in found.findings if finding.severity == "fault"}


def test_right_pictures_and_arrays_have_no_fault(net, right, tmp_path):
    package, crops = net
    found = sanderling.doctor(package, data=crops)
    assert [finding for finding in found.findings if finding.severity != "advice"] == []
    assert faults(package, right[0], tmp_path) == set()
    assert faults(package / "model.fp32.onnx", right[0], tmp_path) == set()


@pytest.mark.parametrize(
    ("mistake", "kind"),
    [
        ("swapped", SWAPPED),
        ("missing /255", SCALE),
        ("raw", SCALE),
        ("divided twice", SCALE),
        ("NHWC", LAYOUT),
        ("NHWC memory", LAYOUT),
        ("no mean", NORMALIZATION),
        ("unit", NORMALIZATION),
    ],
)
def test_mistake_in_the_inputs_is_named(net, right, tmp_path, mistake, kind):
    values, mean, std = right
    level = values * std + mean  # 0 … 1
    wrong = {
        "swapped": lambda: (level[:, ::-1] - mean) / std,
        "missing /255": lambda: (255 * level - mean) / std,
        "raw": lambda: 255 * level,
        "divided twice": lambda: (level / 255 - mean) / std,
        "NHWC": lambda: values.transpose(0, 2, 3, 1),
        "NHWC memory": lambda: np.ascontiguousarray(values.transpose(0, 2, 3, 1)).reshape(values.shape),
        "no mean": lambda: level / std,
        "unit": lambda: level,
    }[mistake]()
    assert faults(net[0], wrong, tmp_path) == {kind}


@pytest.mark.parametrize("mistake", ["raw", "divided twice", "NHWC memory"])
def test_mistake_is_named_by_the_networks_answers_alone(net, right, tmp_path, mistake):
    """Without package, preprocessing and labels, only what the network answers, and the values, tell."""
    values, mean, std = right
    level = values * std + mean
    wrong = {"raw": 255 * level, "divided twice": level / 255}.get(
        mistake, np.ascontiguousarray(values.transpose(0, 2, 3, 1)).reshape(values.shape)
    )
    kind = LAYOUT if mistake == "NHWC memory" else SCALE
    assert faults(net[0] / "model.fp32.onnx", wrong, tmp_path) == {kind}
