from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sanderling.api import build
from sanderling.model.package import Package
from sanderling.workshop.targets.harmonyos.module import FILES, RAWFILE, write_description, write_project
from tests.installing import install_arkts
from tests.models import conv_classifier, save
from tests.samples import write_samples

THERMAL = {"leave": "OVERHEATED", "return": "WARM"}


@pytest.fixture(scope="session")
def arkts() -> None:
    """Node and its packages, fetched once; skipped where they cannot be had."""
    reason = install_arkts()
    if reason:
        pytest.skip(f"ArkTS is not checked: {reason}")


@pytest.fixture(scope="session")
def package(tmp_path_factory) -> Package:
    """A small classifier of any number of pictures, with FP32, FP16 and INT8."""
    folder = tmp_path_factory.mktemp("classifier")
    source = save(conv_classifier(size=16), folder / "classifier.onnx")
    samples = write_samples(folder / "calibration.npz", size=16)
    arguments = {"calibration": samples, "budget": "agreement=20", "preprocess": "unit", "repeats": 5}
    return Package.open(build(source, folder / "small.sdl", **arguments).path)


@pytest.fixture(scope="session")
def project(package, tmp_path_factory) -> Path:
    """The project of that package, with ONNX files in the place of its models, as the stand-in takes them."""
    folder = tmp_path_factory.mktemp("project")
    write_project(package, folder)
    models = []
    for variant in package.manifest.variants:
        if variant.id in ("int8", "fp32"):
            file = folder / FILES / f"{variant.id}.ms"
            shutil.copyfile(package.file(variant.file), file)
            models.append(model_entry(variant.id, file))
    write_description(package, folder, models, chosen="int8", thermal=THERMAL)
    return folder


@pytest.fixture(scope="session")
def rawfile(project) -> Path:
    return project / RAWFILE


def model_entry(variant: str, file: Path) -> dict[str, object]:
    """What a description says of a model."""
    known = {"variant": variant, "precision": variant, "file": file.name, "format": "ms", "batch": 1}
    return known | {"resizable": True, "channelsLast": [], "sizeBytes": file.stat().st_size}
