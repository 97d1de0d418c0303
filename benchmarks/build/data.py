"""Data of the benchmarks: photos from packages, and Fashion-MNIST as arrays."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np

from benchmarks.zoo.fashion_data import Split, load_fashion_mnist, normalize
from sanderling.core.progress import Silent
from sanderling.demo.photos import CALIBRATION, EVALUATION, find_photos, write_crops

OPENCV_DOC = Path("/usr/share/doc/opencv-doc")
_LEAST_SIDE = 224
_FASHION_CALIBRATION = 512


def photo_crops(folder: Path) -> tuple[Path, Path]:
    """Write the demonstration's crops: 128 to calibrate on, 240 of other photos to measure on."""
    calibration, evaluation = folder / "crops-calibration", folder / "crops-evaluation"
    write_crops(find_photos(CALIBRATION), calibration, count=128, seed=1, progress=Silent())
    write_crops(find_photos(EVALUATION), evaluation, count=240, seed=2, progress=Silent())
    return calibration, evaluation


def opencv_photos(folder: Path) -> tuple[Path, Path] | None:
    """Copy the JPEG pictures of Debian's opencv-doc: those of its manual, and those of its examples.

    Equal files are taken once, so that no picture is in both. None when the package is not installed.
    """
    if not OPENCV_DOC.is_dir():
        return None
    seen: set[str] = set()
    targets = (folder / "opencv-examples", folder / "opencv-manual")
    for target, source in zip(targets, ("examples", "opencv4/html"), strict=True):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for path in sorted(p for p in (OPENCV_DOC / source).rglob("*") if p.suffix.lower() in (".jpg", ".jpeg")):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest not in seen and _shorter_side(path) >= _LEAST_SIDE:
                shutil.copy(path, target / f"{len(seen):04d}-{path.name}")
                seen.add(digest)
    return targets[1], targets[0]


def fashion_arrays(folder: Path) -> tuple[Path, Path]:
    """Write 512 training pictures to calibrate on, and the 10,000 labelled test pictures, normalised."""
    calibration, test = folder / "fashion-calibration.npz", folder / "fashion-test.npz"
    _write_fashion(calibration, "train", _FASHION_CALIBRATION)
    _write_fashion(test, "t10k", None)
    return calibration, test


def _write_fashion(path: Path, split: Split, count: int | None) -> None:
    images, labels = load_fashion_mnist(split)
    np.savez(path, input=normalize(images[:count]), labels=labels[:count])


def _shorter_side(path: Path) -> int:
    from PIL import Image

    with Image.open(path) as image:
        return min(image.size)
