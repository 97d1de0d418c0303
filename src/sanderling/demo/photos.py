"""Real photos that come inside the wheels of scikit-image and scikit-learn, and crops of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sanderling.core.errors import UnavailableError
from sanderling.core.files import replacing
from sanderling.core.progress import Progress

_FOLDERS = {"skimage": "data", "sklearn": "datasets/images"}
_INSTALL = "pip install --no-deps scikit-image scikit-learn"

CALIBRATION = (
    "skimage/astronaut.png",
    "skimage/brick.png",
    "skimage/camera.png",
    "skimage/coins.png",
    "skimage/grass.png",
    "skimage/gravel.png",
    "skimage/hubble_deep_field.jpg",
    "skimage/ihc.png",
    "skimage/motorcycle_left.png",
    "skimage/retina.jpg",
    "sklearn/china.jpg",
)
EVALUATION = ("skimage/chelsea.png", "skimage/coffee.png", "skimage/rocket.jpg", "sklearn/flower.jpg")


def find_photos(names: Sequence[str]) -> list[Path]:
    """Paths of photos such as ``skimage/coffee.png``, without importing the packages.

    Raises:
        UnavailableError: a package is not installed, or has no such photo.
    """
    found = []
    for name in names:
        package, _, file = name.partition("/")
        spec = importlib.util.find_spec(package)
        folders = list(spec.submodule_search_locations or ()) if spec else []
        path = next((Path(folder) / _FOLDERS[package] / file for folder in folders), None)
        if path is None or not path.is_file():
            raise UnavailableError(f"photo '{name}' is missing: {_INSTALL}")
        found.append(path)
    return found


def write_crops(
    photos: Sequence[Path],
    folder: Path,
    *,
    count: int,
    seed: int,
    progress: Progress,
    least_share: float = 0.6,
) -> None:
    """Write ``count`` crops of the photos as PNG, by turns, each a random square with a random flip.

    Args:
        photos: sources.
        folder: of the crops, replaced as a whole.
        count: of crops.
        seed: of places, sizes and flips.
        progress: advanced by one a crop.
        least_share: smallest side of a crop, as a share of the photo's shorter side.

    Raises:
        UnavailableError: Pillow is not installed.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise UnavailableError("photos need Pillow: pip install 'sanderling[vision]'") from error
    generator = np.random.default_rng(seed)
    images = [Image.open(path).convert("RGB") for path in photos]
    with replacing(folder) as target:
        target.mkdir()
        for index in range(count):
            image = images[index % len(images)]
            side = int(generator.uniform(least_share, 1.0) * min(image.size))
            left = int(generator.integers(0, image.width - side + 1))
            top = int(generator.integers(0, image.height - side + 1))
            crop = image.crop((left, top, left + side, top + side)).resize((256, 256), Image.Resampling.BICUBIC)
            if generator.random() < 0.5:
                crop = ImageOps.mirror(crop)
            name = photos[index % len(photos)].stem
            crop.save(target / f"{index:04d}-{name}.png", compress_level=1)
            progress.advance()
