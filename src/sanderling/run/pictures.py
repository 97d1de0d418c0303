"""Pictures from files to tensors, on the host."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt

from sanderling.core.errors import DataError, UnavailableError, first_line
from sanderling.core.tensor import Array
from sanderling.model.preprocessing import Preprocessing

if TYPE_CHECKING:
    from PIL import Image

PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
_PIXEL_LIMIT = 100_000_000
_MODES = {"rgb": "RGB", "bgr": "RGB", "gray": "L"}


def read_picture(
    path: Path | BinaryIO, preprocessing: Preprocessing, *, name: str = "the picture"
) -> npt.NDArray[np.float32]:
    """Read a picture and preprocess it.

    Args:
        path: of a file, or its bytes as a stream: JPEG, PNG, WebP, BMP, TIFF, or GIF (its first frame); EXIF
            orientation is applied.
        preprocessing: what the model expects.
        name: of bytes, for messages.

    Returns:
        float32, shape ``preprocessing.shape``.

    Raises:
        DataError: the file is missing, no picture, cut short, or has more than 100 million pixels.
    """
    return normalize(read_pixels(path, preprocessing, name=name)[None], preprocessing)


def read_pixels(
    path: Path | BinaryIO, preprocessing: Preprocessing, *, name: str = "the picture"
) -> npt.NDArray[np.uint8]:
    """Read a picture, resize and crop it; see ``read_picture``.

    Returns:
        uint8, shape (H, W, C), in the model's colour order.
    """
    image_module, ops = _pillow()
    name = str(path) if isinstance(path, Path) else name
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", image_module.DecompressionBombWarning)
            with image_module.open(path) as opened:
                if opened.width * opened.height > _PIXEL_LIMIT:
                    size = f"{opened.width}×{opened.height}"
                    raise DataError(f"{name} has {size} pixels: at most {_PIXEL_LIMIT:,} are read")
                return _fitted(ops.exif_transpose(opened), preprocessing)
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{name} does not exist: expected a picture") from error
    except image_module.UnidentifiedImageError as error:
        raise DataError(f"{name} is not a readable picture: it is in no known format") from error
    except Exception as error:
        raise DataError(f"{name} is not a readable picture: {first_line(error)}") from error


def fit_pixels(pixels: Array, preprocessing: Preprocessing) -> npt.NDArray[np.uint8]:
    """Resize and crop one picture that is in memory.

    Args:
        pixels: uint8, shape (H, W, 3) in RGB order or (H, W) grey.
        preprocessing: what the model expects.

    Returns:
        uint8, shape (H, W, C), in the model's colour order.

    Raises:
        DataError: another dtype or shape.
    """
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3):
        raise DataError(f"picture is {pixels.dtype}{list(pixels.shape)}: expected uint8 (H, W, 3) or (H, W)")
    image_module, _ = _pillow()
    return _fitted(image_module.fromarray(pixels), preprocessing)


def normalize(pixels: npt.NDArray[np.uint8], preprocessing: Preprocessing) -> npt.NDArray[np.float32]:
    """Scale and normalise pictures that have the model's size.

    Args:
        pixels: uint8, shape (N, H, W, C), in the model's colour order.
        preprocessing: what the model expects.

    Returns:
        float32, shape (N, C, H, W) or (N, H, W, C) by ``preprocessing.layout``.
    """
    mean = np.asarray(preprocessing.mean, np.float32)
    std = np.asarray(preprocessing.std, np.float32)
    values = (pixels.astype(np.float32) * np.float32(preprocessing.scale) - mean) / std
    if preprocessing.layout == "NCHW":
        values = values.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(values)


def _fitted(image: Image.Image, preprocessing: Preprocessing) -> npt.NDArray[np.uint8]:
    image = _resized(_converted(image, _MODES[preprocessing.color]), preprocessing)
    pixels = np.asarray(image, dtype=np.uint8)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    return pixels[:, :, ::-1] if preprocessing.color == "bgr" else pixels


def _converted(image: Image.Image, mode: str) -> Image.Image:
    """Convert to ``mode``; 16-bit grey is scaled to 8 bits, as Pillow would clip it."""
    if image.mode.startswith("I;16") or image.mode == "I":
        image_module, _ = _pillow()
        wide = np.asarray(image).astype(np.int64)
        image = image_module.fromarray((wide >> 8).clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert(mode)


def _resized(image: Image.Image, preprocessing: Preprocessing) -> Image.Image:
    size = (preprocessing.width, preprocessing.height)
    if preprocessing.resize == "none":
        if image.size != size:
            raise DataError(
                f"picture has {image.width}×{image.height} pixels: expected {size[0]}×{size[1]} (resize is 'none')"
            )
        return image
    image_module, _ = _pillow()
    method = image_module.Resampling[preprocessing.interpolation.upper()]
    if preprocessing.resize == "stretch":
        return image.resize(size, method)
    short = preprocessing.resize_to or max(size)
    if image.width <= image.height:
        scaled = (short, int(short * image.height / image.width))
    else:
        scaled = (int(short * image.width / image.height), short)
    left, top = (round((have - want) / 2) for have, want in zip(scaled, size, strict=True))
    # Only the region that the crop keeps is resampled: a long thin picture must not cost its whole length.
    ratio_x, ratio_y = image.width / scaled[0], image.height / scaled[1]
    box = (left * ratio_x, top * ratio_y, (left + size[0]) * ratio_x, (top + size[1]) * ratio_y)
    return image.resize(size, method, box=box)


def _pillow() -> tuple[ModuleType, ModuleType]:
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise UnavailableError("pictures need Pillow: pip install 'sanderling[vision]'") from error
    return Image, ImageOps
