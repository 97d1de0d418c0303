"""How a picture becomes a model's input, as data that every host can carry out."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sanderling.core.errors import OptionError
from sanderling.core.json_text import json_object
from sanderling.core.tensor import TensorSpec

ColorOrder = Literal["rgb", "bgr", "gray"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "area"]


class Preprocessing(BaseModel):
    """Resize, crop, scale and normalise; ``(value * scale - mean) / std`` per channel.

    Attributes:
        width: of the result, pixels.
        height: of the result, pixels.
        color: channel order that the model expects.
        resize: ``shorter`` scales the shorter side to ``resize_to`` and crops the centre; ``stretch`` scales
            both sides to the result's size; ``letterbox`` keeps the proportions and pads; ``none`` requires pictures
            of exactly that size.
        resize_to: shorter side before the crop, pixels; only with ``shorter``.
        pad: value of the padding, in [0, 255]; only with ``letterbox``.
        anchor: where a letterbox has the picture; only with ``letterbox``.
        interpolation: as Pillow and PyTorch (antialias) define it; ``area`` is the mean of what a pixel covers.
        antialias: whether a filter grows with the pixels that it merges; without it, bilinear and bicubic are those of
            OpenCV and of PyTorch's ``interpolate``.
        layout: order of axes of the tensor.
        scale: factor on uint8 values before normalisation.
        mean: per channel, in scaled units.
        std: per channel, in scaled units, > 0.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    width: int = Field(gt=0, le=16_384)
    height: int = Field(gt=0, le=16_384)
    color: ColorOrder = "rgb"
    resize: Literal["shorter", "stretch", "letterbox", "none"] = "shorter"
    resize_to: int | None = Field(default=None, gt=0, le=16_384)
    pad: int = Field(default=114, ge=0, le=255)
    anchor: Literal["center", "top-left"] = "center"
    interpolation: Interpolation = "bilinear"
    antialias: bool = True
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    scale: float = Field(default=1 / 255, gt=0)
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)

    @property
    def channels(self) -> int:
        """1 for grey, otherwise 3."""
        return 1 if self.color == "gray" else 3

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the tensor for one picture."""
        if self.layout == "NCHW":
            return (1, self.channels, self.height, self.width)
        return (1, self.height, self.width, self.channels)

    @model_validator(mode="after")
    def _consistent(self) -> Preprocessing:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != self.channels:
                raise ValueError(f"{name} has {len(values)} values: {self.color} needs {self.channels}")
        if min(self.std) <= 0:
            raise ValueError(f"std must be greater than 0, got {min(self.std)}")
        if self.resize == "shorter" and (self.resize_to or 0) < max(self.width, self.height):
            raise ValueError(f"resize_to is {self.resize_to}: 'shorter' needs at least {max(self.width, self.height)}")
        return self


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
PRESETS = ("imagenet", "unit")


def parse_preprocessing(text: str, spec: TensorSpec) -> Preprocessing:
    """Read ``imagenet``, ``unit`` (only 1/255), a JSON object or the path of a JSON file.

    What the text leaves out (size, layout, channels) is taken from ``spec``, the model's input of rank 4.

    Raises:
        OptionError: the text is none of these, a key is unknown, or the result does not fit ``spec``.
    """
    layout, height, width, channels = _picture_shape(spec)
    fields: dict[str, object] = {"layout": layout}
    if height and width:
        fields |= {"height": height, "width": width}
    if channels == 1:
        fields |= {"color": "gray", "mean": (0.0,), "std": (1.0,)}
    fields |= _preset(text, channels) if text in PRESETS else _json_object(text)
    sides = (fields.get("height"), fields.get("width"))
    if fields.get("resize", "shorter") == "shorter" and all(isinstance(side, int) for side in sides):
        fields.setdefault("resize_to", round(max(side for side in sides if isinstance(side, int)) / 0.875))
    try:
        preprocessing = Preprocessing.model_validate(fields)
    except ValidationError as error:
        detail = error.errors()[0]
        place = ".".join(map(str, detail["loc"])) or "preprocessing"
        known = ", ".join(Preprocessing.model_fields)
        raise OptionError(f"preprocessing: {place}: {detail['msg']}; known keys are {known}") from error
    check_fits(preprocessing, spec)
    return preprocessing


def check_fits(preprocessing: Preprocessing, spec: TensorSpec) -> None:
    """Check that the tensor that ``preprocessing`` yields is one that ``spec`` takes.

    Raises:
        OptionError: dtype, rank or a fixed axis differs.
    """
    fits = len(spec.shape) == 4 and all(
        isinstance(want, str) or want == got or axis == 0
        for axis, (want, got) in enumerate(zip(spec.shape, preprocessing.shape, strict=False))
    )
    if not fits or spec.dtype != "float32":
        raise OptionError(f"preprocessing yields float32{list(preprocessing.shape)}: the model expects {spec}")


def _picture_shape(spec: TensorSpec) -> tuple[str, int | None, int | None, int | None]:
    if len(spec.shape) != 4:
        raise OptionError(f"preprocessing is for pictures (4 axes): the model expects {spec}")
    sizes = [size if isinstance(size, int) else None for size in spec.shape]
    if sizes[3] in (1, 3) and sizes[1] not in (1, 3):
        return "NHWC", sizes[1], sizes[2], sizes[3]
    return "NCHW", sizes[2], sizes[3], sizes[1]


def _preset(name: str, channels: int | None) -> dict[str, object]:
    if name == "unit":
        return {}
    if channels == 1:
        raise OptionError("preprocessing 'imagenet' is for 3 channels: the model's input has 1; give JSON instead")
    return {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}


def _json_object(text: str) -> dict[str, object]:
    source = text
    if not text.lstrip().startswith("{"):
        path = Path(text)
        if not _is_file(path):
            raise OptionError(
                f"preprocessing '{text}' is neither a preset ({', '.join(PRESETS)}), nor JSON, nor a file"
            )
        source = path.read_text(encoding="utf-8", errors="replace")
    return json_object(source, "preprocessing")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a text that is too long for a file's name
        return False
