"""What `--option NAME=VALUE` of the target `ascend` says, and the shapes of inputs that follow from it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sanderling.core.errors import OptionError
from sanderling.core.tensor import TensorSpec
from sanderling.workshop.targets.ascend.aipp import SOURCES, STANDARDS
from sanderling.workshop.targets.ascend.atc import DYNAMIC, PRECISION_MODES, PRECISION_MODES_V2, Profiles

KIRIN = "kirin"  # as a device
OPTIONS: Mapping[str, str] = {
    "source": f"picture to feed, converted on the chip by AIPP: {', '.join(SOURCES)}; default: the tensor",
    "matrix": f"how its YUV is meant: {', '.join(STANDARDS)}",
    "batch": "sizes of the first axis, a file for each: 1 (default) or 1,4,8",
    "dynamic-batch": "sizes of the first axis, all in one file: 1,2,4,8; not for INT8",
    "image-sizes": "heights and widths, all in one file: 224,224;320,320; not for INT8",
    "dims": "sizes of all dynamic axes in the inputs' order, all in one file: 1,128;4,256; not for INT8",
    "axes": "fixed sizes of dynamic axes by name: sequence=128,past=64",
    "precision-mode-v2": f"of the whole network: {', '.join(PRECISION_MODES_V2)}",
    "precision-mode": f"its older form, instead: {', '.join(PRECISION_MODES)}",
    "black-list": "types of operators that mixed precision leaves in FP32: SoftmaxV2,Exp",
    "white-list": "types of operators that mixed precision lowers: MatMulV2",
    "time-limit": "seconds that one run of atc or omg may take: 1800",
}
_NUMBER = re.compile(r"-?\d+")
_NAME = re.compile(r"[A-Za-z]\w*")
_TIMEOUT_S = "1800"
_FOR_KIRIN = ("batch", "dims", "axes", "time-limit")


@dataclass(frozen=True)
class Settings:
    """The options, read.

    Attributes:
        source: picture that AIPP converts; empty for none.
        matrix: name of the video standard.
        batches: sizes of the first axis, each for a file of its own; empty where none was asked for.
        dynamic_batch: sizes of the first axis in one file.
        image_sizes: heights and widths in one file.
        dims: sizes of all dynamic axes in one file.
        axes: sizes by the names of axes.
        precision_mode: as `atc` has it, or empty.
        precision_mode_v2: likewise.
        black_list: types of operators for mixed precision.
        white_list: likewise.
        timeout_s: of one run of `atc`.
    """

    source: str
    matrix: str
    batches: tuple[int, ...]
    dynamic_batch: tuple[int, ...]
    image_sizes: Profiles
    dims: Profiles
    axes: Mapping[str, int]
    precision_mode: str
    precision_mode_v2: str
    black_list: tuple[str, ...]
    white_list: tuple[str, ...]
    timeout_s: float


def read_settings(options: Mapping[str, str], device: str = "") -> Settings:
    """Read the options.

    Raises:
        OptionError: a value that is none, two that exclude each other, or one that the device does not have.
    """
    foreign = [name for name in options if name not in _FOR_KIRIN] if device == KIRIN else []
    if foreign:
        raise OptionError(f"device '{KIRIN}' has no option '{foreign[0]}': available are {', '.join(_FOR_KIRIN)}")
    settings = Settings(
        source=options.get("source", ""),
        matrix=options.get("matrix", next(iter(STANDARDS))),
        batches=_sizes(options, "batch"),
        dynamic_batch=_sizes(options, "dynamic-batch"),
        image_sizes=_profiles(options, "image-sizes"),
        dims=_profiles(options, "dims"),
        axes=_axes(options.get("axes", "")),
        precision_mode=options.get("precision-mode", ""),
        precision_mode_v2=options.get("precision-mode-v2", ""),
        black_list=_types(options, "black-list"),
        white_list=_types(options, "white-list"),
        timeout_s=_positive(options.get("time-limit", _TIMEOUT_S)),
    )
    if "source" in options and settings.source not in SOURCES:
        raise _wrong("source", settings.source, f"one of {', '.join(SOURCES)}")
    if "matrix" in options and not settings.source:
        raise OptionError("option matrix is how YUV is meant: give source=nv12 or source=nv21 with it")
    _check_batches(settings)
    return settings


def input_shapes(specs: Sequence[TensorSpec], settings: Settings, batch: int) -> dict[str, tuple[int, ...]]:
    """The value of ``--input_shape``: fixed sizes, and -1 where profiles are asked for.

    Args:
        specs: of the model's inputs.
        settings: of the export.
        batch: of this file, where the first axis is neither fixed nor a profile's.

    Raises:
        OptionError: a dynamic axis has no size, an unknown axis is named, or the model's batch is another.
    """
    names = {size for spec in specs for size in spec.shape if isinstance(size, str)}
    unknown = settings.axes.keys() - names
    if unknown:
        known = ", ".join(sorted(names)) or "none"
        raise OptionError(f"option axes: no axis is called '{min(unknown)}': dynamic axes are {known}")
    shapes = {spec.name: tuple(_size(spec, axis, settings, batch) for axis in range(len(spec.shape))) for spec in specs}
    fixed = {spec.shape[0] for spec in specs if spec.shape and isinstance(spec.shape[0], int)}
    if settings.batches and fixed and fixed != {batch}:
        raise OptionError(
            f"option batch={batch}: the model's first axis is fixed at {min(fixed)}; build it with --dynamic"
        )
    return shapes


def _size(spec: TensorSpec, axis: int, settings: Settings, batch: int) -> int:
    size = spec.shape[axis]
    if isinstance(size, int):
        return size
    if size in settings.axes:
        return settings.axes[size]
    profiled = (
        (axis == 0 and bool(settings.dynamic_batch))
        or (axis in (2, 3) and bool(settings.image_sizes))
        or (bool(settings.dims) and not (axis == 0 and settings.batches))
    )
    if profiled:
        return DYNAMIC
    if axis == 0:
        return batch
    raise OptionError(
        f"axis '{size}' of input '{spec.name}' has no size: fix it with --option axes={size}=SIZE, or list sizes with "
        "dims= or image-sizes="
    )


def _check_batches(settings: Settings) -> None:
    if len(set(settings.batches)) < len(settings.batches):
        raise OptionError(f"option batch names a size twice: {settings.batches}")
    small = next((size for size in settings.batches if size <= 0), None)
    if small is not None:
        raise OptionError(f"option batch takes sizes from 1 on: got {small}")
    if settings.batches and settings.dynamic_batch:
        raise OptionError("options batch and dynamic-batch exclude each other: a file for each size, or one for all")
    if len(settings.batches) > 1 and (settings.image_sizes or settings.dims):
        raise OptionError("option batch takes one size where image-sizes or dims lists others: run the export for each")


def _sizes(options: Mapping[str, str], name: str) -> tuple[int, ...]:
    return _numbers(name, options[name]) if name in options else ()


def _profiles(options: Mapping[str, str], name: str) -> Profiles:
    return tuple(_numbers(name, part) for part in options[name].split(";")) if name in options else ()


def _numbers(name: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(_NUMBER.fullmatch(part) for part in parts):
        raise _wrong(name, text, f"whole numbers, as in {OPTIONS[name].rpartition(': ')[2]}")
    return tuple(map(int, parts))


def _axes(text: str) -> dict[str, int]:
    pairs = [part.partition("=") for part in text.split(",") if part]
    if not all(name and _NUMBER.fullmatch(size) and int(size) > 0 for name, _, size in pairs):
        raise _wrong("axes", text, "NAME=SIZE,NAME=SIZE")
    return {name: int(size) for name, _, size in pairs}


def _types(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    if name not in options:
        return ()
    listed = tuple(part.strip() for part in options[name].split(","))
    if not all(_NAME.fullmatch(part) for part in listed):
        raise _wrong(name, options[name], "types of operators, such as SoftmaxV2,Exp")
    return listed


def _positive(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise _wrong("time-limit", text, "seconds, greater than 0")
    return seconds


def _wrong(name: str, value: str, expected: str) -> OptionError:
    return OptionError(f"target 'ascend', --option {name}={value}: expected {expected}")
