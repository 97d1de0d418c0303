"""AIPP: what an Ascend chip does to a picture before the network, as a file for `atc` and as arithmetic.

The order is the chip's: swap channels, convert colours in integers, subtract and scale in FP16.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sanderling.core.errors import OptionError
from sanderling.model.colors import GRAY_SHARES, VIDEO_STANDARDS, VideoStandard
from sanderling.model.preprocessing import Preprocessing
from sanderling.run.pictures import normalize

Matrix = tuple[tuple[int, int, int], tuple[int, int, int], tuple[int, int, int]]
Pixels = npt.NDArray[np.uint8]

_FORMATS = {
    "nv12": "YUV420SP_U8",
    "nv21": "YUV420SP_U8",
    "rgb": "RGB888_U8",
    "xrgb": "XRGB8888_U8",
    "gray": "YUV400_U8",
}
SOURCES = tuple(_FORMATS)
_YUV = ("nv12", "nv21")
_LARGEST_SIDE = 4096
_SHIFT = 8  # the matrix is in 256ths
_ROUNDING_LEVELS = 0.5  # what a shift, which rounds down, takes away on average


@dataclass(frozen=True)
class Standard:
    """How AIPP makes RGB of YUV by a video standard.

    Attributes:
        matrix: RGB from YUV in 256ths, as the vendor gives it.
        input_bias: is subtracted from Y, U and V before.
    """

    matrix: Matrix
    input_bias: tuple[int, int, int]


STANDARDS = {
    "bt601-narrow": Standard(((298, 0, 409), (298, -100, -208), (298, 516, 0)), (16, 128, 128)),
    "bt601-wide": Standard(((256, 0, 359), (256, -88, -183), (256, 454, 0)), (0, 128, 128)),
    "bt709-narrow": Standard(((298, 0, 459), (298, -55, -136), (298, 541, 0)), (16, 128, 128)),
}
_NOTHING = (0, 0, 0)
_GRAY_OF_RGB: Matrix = ((77, 150, 29), _NOTHING, _NOTHING)


@dataclass(frozen=True)
class Aipp:
    """Settings of AIPP for one input.

    Attributes:
        source: one of ``SOURCES``.
        standard: name of the video standard; empty where the source is not YUV.
        width: of the picture, pixels; 0 where `atc` takes it from the input's shape.
        height: of the picture, pixels; 0 like ``width``.
        swap: exchange U and V, or R and B, first.
        matrix: of the colours, in 256ths; None leaves them.
        input_bias: is subtracted before the matrix.
        channels: of the model.
        mean: whole part of what is subtracted per channel, in [0, 255].
        least: the rest of it, FP16, in [0, 255].
        reciprocal: factor per channel, FP16.
    """

    source: str
    standard: str
    width: int
    height: int
    swap: bool
    matrix: Matrix | None
    input_bias: tuple[int, int, int]
    channels: int
    mean: tuple[int, ...]
    least: tuple[float, ...]
    reciprocal: tuple[float, ...]


def configure(preprocessing: Preprocessing, source: str, standard: str, *, fixed_size: bool = True) -> Aipp:
    """Find the settings that do what ``preprocessing`` does to a picture of the model's size.

    Args:
        preprocessing: of the package; resizing and cropping stay with whoever makes the picture.
        source: one of ``SOURCES``.
        standard: one of ``STANDARDS``; only YUV needs it.
        fixed_size: False where the input's height and width are dynamic.

    Raises:
        OptionError: an unknown name, a size, layout or colour that AIPP cannot have, or a mean beyond its range.
    """
    _check(preprocessing, source, standard)
    matrix, bias = _colors(preprocessing, source, standard)
    rounds = any(value % (1 << _SHIFT) for row in matrix or () for value in row)
    shift = _ROUNDING_LEVELS if rounds else 0.0
    parts = [_subtracted(value / preprocessing.scale, shift) for value in preprocessing.mean]
    return Aipp(
        source=source,
        standard=standard if source in _YUV else "",
        width=preprocessing.width if fixed_size else 0,
        height=preprocessing.height if fixed_size else 0,
        swap=source == "nv21" or (source in ("rgb", "xrgb") and preprocessing.color == "bgr"),
        matrix=matrix,
        input_bias=bias,
        channels=preprocessing.channels,
        mean=tuple(whole for whole, _ in parts),
        least=tuple(rest for _, rest in parts),
        reciprocal=tuple(float(np.float16(preprocessing.scale / value)) for value in preprocessing.std),
    )


def to_text(aipp: Aipp) -> str:
    """The file for ``--insert_op_conf``, in protobuf's text format."""
    lines = [
        "aipp_mode: static",
        f"input_format: {_FORMATS[aipp.source]}",
        f"src_image_size_w: {aipp.width}",
        f"src_image_size_h: {aipp.height}",
        f"csc_switch: {_flag(aipp.matrix is not None)}",
        f"rbuv_swap_switch: {_flag(aipp.swap)}",
    ]
    if aipp.source == "xrgb":
        lines.append("ax_swap_switch: true")
    if aipp.matrix is not None:
        lines += [
            f"matrix_r{row}c{column}: {value}"
            for row, values in enumerate(aipp.matrix)
            for column, value in enumerate(values)
        ]
        biases = "input" if aipp.source in _YUV else "output"
        lines += [f"{biases}_bias_{channel}: {value}" for channel, value in enumerate(aipp.input_bias)]
    for channel in range(aipp.channels):
        lines.append(f"mean_chn_{channel}: {aipp.mean[channel]}")
        lines.append(f"min_chn_{channel}: {aipp.least[channel]:.9g}")
        lines.append(f"var_reci_chn_{channel}: {aipp.reciprocal[channel]:.9g}")
    return "\n".join(["aipp_op {", *(f"  {line}" for line in lines), "}", ""])


def convert(aipp: Aipp, pixels: Pixels) -> npt.NDArray[np.float16]:
    """What the chip makes of pixels, step by step.

    Args:
        aipp: settings.
        pixels: uint8 (H, W, channels), as ``unpacked`` gives them.

    Returns:
        float16, shape (1, C, H, W).

    Source: the vendor's formulas, ``(matrix @ (pixel - input_bias)) >> 8`` and
    ``(pixel - mean_chn - min_chn) * var_reci_chn``.
    """
    if aipp.swap:
        pixels = pixels[..., (0, 2, 1)] if aipp.source in _YUV else pixels[..., ::-1]
    colors = pixels.astype(np.int32)
    if aipp.matrix is not None:
        mixed = (colors - np.array(aipp.input_bias)) @ np.array(aipp.matrix).T
        colors = (mixed >> _SHIFT).clip(0, 255)
    centred = (colors[..., : aipp.channels] - np.array(aipp.mean)).astype(np.float16)
    scaled = (centred - np.array(aipp.least, np.float16)) * np.array(aipp.reciprocal, np.float16)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None])


def unpacked(source: str, picture: Pixels) -> Pixels:
    """A picture as it lies in memory, as (H, W, channels): Y, U, V (NV21: Y, V, U), R, G, B, or grey.

    Args:
        source: one of ``SOURCES``.
        picture: uint8; (H * 3 / 2, W) for NV12 and NV21, (H, W, 3) for RGB, (H, W, 4) for XRGB, (H, W) for grey.
    """
    if source in _YUV:
        height = picture.shape[0] * 2 // 3
        chroma = picture[height:].reshape(height // 2, -1, 2).repeat(2, axis=0).repeat(2, axis=1)
        return np.concatenate([picture[:height, :, None], chroma], axis=2)
    if source == "xrgb":
        return picture[..., 1:]
    return picture[..., None] if source == "gray" else picture


def on_the_host(preprocessing: Preprocessing, source: str, standard: str, pixels: Pixels) -> npt.NDArray[np.float32]:
    """What the package's own preprocessing makes of the same pixels, YUV by the standard's own equations.

    Args:
        preprocessing: of the package.
        source: one of ``SOURCES``.
        standard: one of ``STANDARDS``, for YUV.
        pixels: uint8 (H, W, channels), as ``unpacked`` gives them.

    Returns:
        float32, shape (1, C, H, W).
    """
    colors = pixels.astype(np.float64)
    if source in _YUV:
        colors = colors[..., (0, 2, 1)] if source == "nv21" else colors
        colors = _exact_rgb(VIDEO_STANDARDS[standard], colors, gray=preprocessing.color == "gray")
    elif preprocessing.color == "gray" and source != "gray":
        colors = colors @ np.array(GRAY_SHARES)[:, None]
    if preprocessing.color == "bgr":
        colors = colors[..., ::-1]
    return normalize(np.round(colors).clip(0, 255).astype(np.uint8)[None], preprocessing)


def worst_difference(aipp: Aipp, preprocessing: Preprocessing) -> float:
    """Largest difference between chip and host over all colours, in levels: 1 is 1/255 of a picture's range.

    Where channels are mixed, every fifth value of each is tried, which takes both ends in.
    """
    std = np.asarray(preprocessing.std, np.float64)[:, None, None]
    pixels = _palette(aipp)
    host = on_the_host(preprocessing, aipp.source, aipp.standard, pixels)
    apart = np.abs(convert(aipp, pixels)[0].astype(np.float64) - host[0]) * std
    return float(apart.max()) / preprocessing.scale


def largest_allowed(aipp: Aipp) -> float:
    """Levels that chip and host may differ by: one, and half a step of FP16 where it stores the brightest value.

    Half a level of what rounding down takes away is given back in ``min_chn``, but not below 0, where AIPP ends.
    """
    brightest = [(255 - mean) * factor for mean, factor in zip(aipp.mean, aipp.reciprocal, strict=True)]
    steps = [
        float(np.spacing(np.float16(value))) / factor for value, factor in zip(brightest, aipp.reciprocal, strict=True)
    ]
    return 1.0 + max(steps) / 2


def _check(preprocessing: Preprocessing, source: str, standard: str) -> None:
    """Refuse names that are unknown, and what AIPP cannot do."""
    if source not in SOURCES:
        raise OptionError(f"unknown source '{source}': available are {', '.join(SOURCES)}")
    if standard not in STANDARDS:
        raise OptionError(f"unknown matrix '{standard}': available are {', '.join(STANDARDS)}")
    width, height = preprocessing.width, preprocessing.height
    if preprocessing.layout != "NCHW":
        raise OptionError(f"AIPP feeds inputs of layout NCHW: this one is {preprocessing.layout}; export it again")
    if source in _YUV and (width % 2 or height % 2):
        raise OptionError(
            f"{source} has one U and V for 2×2 pixels: the input is {width}×{height}, and both must be even; "
            "use source=rgb, or an input of even size"
        )
    if not (2 <= width <= _LARGEST_SIDE and height <= _LARGEST_SIDE):
        raise OptionError(f"AIPP takes pictures of 2×1 to {_LARGEST_SIDE}×{_LARGEST_SIDE} pixels: got {width}×{height}")
    if source == "gray" and preprocessing.color != "gray":
        raise OptionError(
            f"source=gray has one channel: the model expects {preprocessing.color}; use rgb, nv12 or nv21"
        )
    if source in _YUV and preprocessing.color == "gray" and standard == "bt709-narrow":
        raise OptionError("the grey of the package is BT.601's, and Y of bt709-narrow is another: use a bt601 matrix")


def _colors(preprocessing: Preprocessing, source: str, standard: str) -> tuple[Matrix | None, tuple[int, int, int]]:
    """The matrix that makes the model's colours, and what is subtracted before."""
    gray = preprocessing.color == "gray"
    if source in ("rgb", "xrgb"):
        return (_GRAY_OF_RGB if gray else None), _NOTHING
    if source == "gray":
        return None, _NOTHING
    chosen = STANDARDS[standard]
    if gray:
        return ((chosen.matrix[0][0], 0, 0), _NOTHING, _NOTHING), (chosen.input_bias[0], 0, 0)
    red, green, blue = chosen.matrix
    return ((blue, green, red) if preprocessing.color == "bgr" else chosen.matrix), chosen.input_bias


def _subtracted(amount: float, shift: float) -> tuple[int, float]:
    """What is subtracted from a channel, in levels, as a whole number and an FP16 rest."""
    if not 0 <= amount <= 2 * 255:
        raise OptionError(f"AIPP subtracts 0 to 510 levels from a channel: mean / scale is {amount:.6g}")
    amount -= min(shift, amount)
    whole = min(int(amount), 255)
    return whole, float(np.float16(amount - whole))


def _exact_rgb(standard: VideoStandard, yuv: npt.NDArray[np.float64], *, gray: bool) -> npt.NDArray[np.float64]:
    """RGB, or the grey that it mixes to, by the standard's definition, in levels, not rounded."""
    rows = np.array(standard.rows)
    if gray:
        factor, low = rows[0, 0], 16 if standard.narrow else 0
        return np.asarray((yuv[..., :1] - low) * factor, np.float64)
    return np.asarray(yuv @ rows[:, :3].T + rows[:, 3], np.float64)


def _palette(aipp: Aipp) -> Pixels:
    """Pixels (H, W, channels) of every colour that tells something new."""
    if aipp.matrix is None:
        levels = np.arange(256, dtype=np.uint8)
        return levels[:, None, None].repeat(3 if aipp.source in ("rgb", "xrgb") else 1, axis=2)
    levels = np.arange(0, 256, 5, dtype=np.uint8)
    return np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), axis=-1).reshape(len(levels), -1, 3)


def _flag(value: bool) -> str:
    return "true" if value else "false"
