"""The target `harmonyos` on EfficientNet-Lite0 with real weights and crops of real photos."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from PIL import Image

from sanderling.api import export
from sanderling.core.errors import UnavailableError
from sanderling.model.package import Package
from sanderling.run.pictures import read_picture
from sanderling.workshop.targets.harmonyos import toolchain
from sanderling.workshop.targets.harmonyos.module import MODULE
from tests.installing import install_arkts, install_mindspore

PHOTOS = 12


@pytest.fixture(scope="module")
def exported(lite0, tmp_path_factory):
    """The project of its FP32 and INT8 variants, checked and run here."""
    for reason in (install_mindspore(), install_arkts()):
        if reason:
            pytest.skip(reason)
    try:
        return export(lite0, tmp_path_factory.mktemp("harmonyos") / "out", target="harmonyos")
    except UnavailableError as error:
        pytest.skip(str(error))


def proofs_of(exported, words):
    return [proof for proof in exported.record["proofs"] if words in proof["what"]]


def test_files_pass_type_check_and_lint(exported):
    (proof,) = proofs_of(exported, "type checker and the linter")
    assert proof["value"] == 0
    assert "in 36 .ets files" in proof["what"]


def test_all_decisions_are_those_of_the_vectors(exported):
    (proof,) = proofs_of(exported, "policy's test vectors")
    assert proof["value"] == 0


def test_golden_calls_run_on_the_module_lane_by_lane_and_as_one(exported):
    proofs = proofs_of(exported, "self-test of the module")
    preferred = exported.record["details"]["preferred"]
    lanes = dict.fromkeys((f"lane mindspore/cpu/{preferred},", "lane mindspore/cpu/fp32,"))
    assert all(lane in proof["what"] for lane, proof in zip(lanes, proofs, strict=True))
    (queue,) = proofs_of(exported, "module's queue")
    assert "in calls of up to 4 rows" in queue["what"]
    assert all(proof["passed"] for proof in (*proofs, queue))


def test_photos_become_the_same_tensor_as_on_the_host(exported, lite0, tmp_path):
    manifest = Package.open(lite0).manifest
    photos = sorted(path for path in (lite0.parent / "evaluation").rglob("*.*") if path.suffix in (".jpg", ".png"))
    assert photos
    jobs = [job(photo, manifest.preprocessing) for photo in photos[:PHOTOS]]
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps(jobs))
    sources = exported.path / MODULE / "src/main/ets"
    answers = json.loads(toolchain.run_script("pictures.js", [str(sources), str(file)]))
    for photo, answer in zip(photos, answers, strict=False):
        made = np.frombuffer(base64.b64decode(answer["base64"]), np.float32).reshape(answer["shape"])
        wanted = read_picture(photo, manifest.preprocessing)
        assert np.abs(made - wanted).max() <= manifest.preprocessing.scale / min(manifest.preprocessing.std) * 1.001


def job(photo, preprocessing):
    pixels = np.asarray(Image.open(photo).convert("RGBA"))
    height, width, _ = pixels.shape
    frame = {"width": width, "height": height, "order": "rgba", "stride": 4 * width}
    encoded = base64.b64encode(pixels.tobytes()).decode()
    return {
        "frame": frame | {"base64": encoded},
        "preprocessing": preprocessing.model_dump(mode="json"),
        "channelsLast": False,
    }
