"""Pictures from files to tensors, on the host."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from sanderling.core.errors import DataError, UnavailableError, first_line
from sanderling.core.tensor import Array
from sanderling.model.preprocessing import Preprocessing
from sanderling.run.vision.frames import Frame
from sanderling.run.vision.placing import fit

if TYPE_CHECKING:
    from PIL import Image

PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
PIXEL_LIMIT = 100_000_000
_REDUCED_LIMIT = 25_000_000
_REDUCTIONS = (2, 4, 8)  # that a JPEG decoder has for nothing
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
    with _opened(path, name) as image:
        if image.width * image.height > PIXEL_LIMIT:
            raise DataError(f"{_name(path, name)} has {_too_large(image)}")
        _pillow()[1].exif_transpose(image, in_place=True)
        return _fitted(image, preprocessing)


def read_frame(path: Path | BinaryIO, *, index: int = 0) -> Frame:
    """Read a picture as it is, upright; of an animation the first frame.

    A JPEG of more than 100 million pixels is decoded at a half, a quarter or an eighth of its size, so that at most 25
    million are left: ``Frame.reduction`` says so.

    Args:
        path: of the file, or its bytes as a stream.
        index: of the frame.

    Raises:
        DataError: see ``read_picture``; also a picture in another format that is too large.
    """
    with _opened(path) as image:
        reduction = _reduce(path, image)
        _pillow()[1].exif_transpose(image, in_place=True)
        return _frame(image, path, index, reduction=reduction)


def read_animation(path: Path) -> Iterator[Frame]:
    """Frames of an animated GIF, WebP or PNG, one after the other; of any other picture its only one.

    Raises:
        DataError: see ``read_picture``; also when the file ends within a frame, after those before it.
    """
    seconds = 0.0
    with _opened(path) as image:
        if getattr(image, "n_frames", 1) == 1:
            yield read_frame(path)
            return
        if image.width * image.height > PIXEL_LIMIT:
            raise DataError(f"{_name(path)} has {_too_large(image)}")
        for index in range(image.n_frames):
            image.seek(index)
            yield _frame(image, path, index, timestamp_s=seconds)
            seconds += _shown_s(image)


def animation_rate(path: Path) -> float:
    """Frames a second of an animation, by its first frame.

    Raises:
        DataError: see ``read_picture``.
    """
    with _opened(path) as image:
        image.load()
        return 1 / _shown_s(image)


def _shown_s(image: Any) -> float:  # noqa: ANN401 - a Pillow file
    """How long the frame that was loaded is shown: a tenth of a second where it says nothing, as in browsers."""
    return float(image.info.get("duration") or 100) / 1e3


def is_animated(path: Path) -> bool:
    """Whether a picture has several frames; False where it cannot be read."""
    try:
        with _opened(path) as image:
            return int(getattr(image, "n_frames", 1)) > 1
    except DataError:
        return False


@contextmanager
def _opened(path: Path | BinaryIO, name: str = "the picture") -> Iterator[Any]:
    """A picture whose pixels are not decoded yet; whatever goes wrong with it becomes an error of ours."""
    image_module, _ = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", image_module.DecompressionBombWarning)
            with _open(image_module, path) as opened:
                yield opened
    except (DataError, GeneratorExit):
        raise
    except FileNotFoundError as error:
        raise DataError(f"{_name(path, name)} does not exist: expected a picture") from error
    except image_module.UnidentifiedImageError as error:
        raise DataError(f"{_name(path, name)} is not a readable picture: it is in no known format") from error
    except Exception as error:
        raise DataError(f"{_name(path, name)} is not a readable picture: {first_line(error)}") from error


def _open(image_module: ModuleType, path: Path | BinaryIO) -> Any:  # noqa: ANN401 - a Pillow file
    """A picture; also a JPEG that Pillow takes for a bomb, as that can be decoded smaller."""
    try:
        return image_module.open(path)
    except image_module.DecompressionBombError as error:
        from PIL.JpegImagePlugin import JpegImageFile

        try:
            return JpegImageFile(path)
        except SyntaxError:
            raise DataError(
                f"{_name(path)} is enormous: {first_line(error)}; at most {PIXEL_LIMIT:,} are read"
            ) from error


def _name(path: Path | BinaryIO, name: str = "the picture") -> str:
    return str(path) if isinstance(path, Path) else name


def _too_large(image: Image.Image) -> str:
    return f"{image.width}×{image.height} pixels: at most {PIXEL_LIMIT:,} are read"


def _reduce(path: Path | BinaryIO, image: Any) -> int:  # noqa: ANN401 - a Pillow file, whose ``draft`` its stubs do not know
    """Have a large JPEG decoded in a smaller size; returns by how much each side is shorter."""
    width, height = image.size
    if width * height <= PIXEL_LIMIT:
        return 1
    fitting = [each for each in _REDUCTIONS if width * height <= _REDUCED_LIMIT * each**2]
    if image.format == "JPEG" and fitting and not image.info.get("progressive"):  # a progressive one is held whole
        image.draft(image.mode, (-(-width // fitting[0]), -(-height // fitting[0])))
        return fitting[0]
    most = _REDUCED_LIMIT * _REDUCTIONS[-1] ** 2
    raise DataError(f"{_name(path)} has {_too_large(image)}, of a baseline JPEG {most:,}")


def _frame(
    image: Image.Image, path: Path | BinaryIO, index: int, *, timestamp_s: float = 0.0, reduction: int = 1
) -> Frame:
    gray = image.mode in ("L", "1", "LA", "I", "F") or image.mode.startswith("I;16")
    pixels = np.asarray(_converted(image, "L" if gray else "RGB"), dtype=np.uint8)
    return Frame(
        pixels,
        "gray" if gray else "rgb",
        width=pixels.shape[1],
        height=pixels.shape[0],
        timestamp_s=timestamp_s,
        index=index,
        name=str(path) if isinstance(path, Path) else "",
        reduction=reduction,
    )


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
    image = _converted(image, _MODES[preprocessing.color])
    how = preprocessing.interpolation
    if how == "area" or (how != "nearest" and not preprocessing.antialias):
        from sanderling.run.vision.transforms import fitted

        pixels = fitted(np.asarray(image, dtype=np.uint8), preprocessing)  # Pillow has no such filter
    else:
        pixels = np.asarray(_resized(image, preprocessing), dtype=np.uint8)
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
    return image if image.mode == mode else image.convert(mode)


def _resized(image: Image.Image, preprocessing: Preprocessing) -> Image.Image:
    found = fit(preprocessing, image.width, image.height)
    if preprocessing.resize == "none":
        return image
    image_module, _ = _pillow()
    method = image_module.Resampling[preprocessing.interpolation.upper()]
    inner: Image.Image = image.resize((found.width, found.height), method, box=found.box)
    if preprocessing.resize != "letterbox":
        return inner
    pad = preprocessing.pad
    whole: Image.Image = image_module.new(
        image.mode, (preprocessing.width, preprocessing.height), (pad,) * len(image.getbands())
    )
    whole.paste(inner, (found.left, found.top))
    return whole


def _pillow() -> tuple[ModuleType, ModuleType]:
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise UnavailableError("pictures need Pillow: pip install 'sanderling[vision]'") from error
    return Image, ImageOps
